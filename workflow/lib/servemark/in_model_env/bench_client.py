"""Run vLLM's benchmark client with servemark's request function, in the model environment.

usage: python bench_client.py bench serve --backend servemark ...

This script adds an entry to vLLM's public table of request functions (``ASYNC_REQUEST_FUNCS``; read in 0.19.1 and 0.32.0) and calls vLLM's
command line. docs/explanation/numbers.md has the reasons for its changes:

* Whole events: vLLM's function gets a stream that is cut only between events.
* Warm-ups: each has another prompt of the same length and a short output. A warm-up is a request without an id.
* Ramp-up and duration of a closed loop: the first request of each slot starts later than that of the slot before it. After the duration no
  request starts; a request that never started has the error :data:`UNSENT`, and measurement/merge.py removes it.
* Rows of a staged data set: read without pandas (:func:`read_rows_without_pandas`). A row with the messages of a conversation replaces the
  message that vLLM's client makes of a prompt.
* Recorded arrivals: vLLM's sending loop gets times from rows with texts (:func:`take_times_from_rows`).
* Prompts with common prefixes: their requests get ids (:func:`number_prefix_requests`).
* The chat route: the first event of a response has the role and no token, so the client leaves it out.
* Start: processes that share a load wait for each other. In a closed loop each waits before its first measured request: start times are
  taken after the wait, and vLLM's own duration includes it (measurement/merge.py). At a request rate each waits at the end of its last
  warm-up, before vLLM takes the time of the first arrival; otherwise arrivals would pile up.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

BACKEND = "servemark"
# File descriptor of the socket to client_server.py, if several processes share a load.
BARRIER = "SERVEMARK_START_BARRIER"
# JSON: `tokens`, the maximum of a warm-up's output, and `shared`, the fraction of each prompt that is a common prefix.
WARMUP = "SERVEMARK_WARMUP"
# JSON: `ramp_up_s` and `sending_s` of a closed loop, each a number of seconds or null.
LOAD = "SERVEMARK_LOAD"
# Error of a request that did not start in time. The same text stands in measurement/merge.py.
UNSENT = "servemark: not sent, because the duration of the load was over"
# Characters between the beginnings of two warm-ups: a prime, so that many beginnings differ.
STRIDE = 7919
Conversations = dict[str, list[dict[str, str]] | None]
SPARE = 16  # characters less, because a rotated text may have one or two more tokens


def has_no_token(event: bytes) -> bool:
    """Return whether an event of a chat response has the role of its message and no text (vLLM sends it just before the first token)."""
    try:
        (choice,) = json.loads(event.removeprefix(b"data:"))["choices"]
        return "role" in choice["delta"] and not any(choice["delta"].get(key) for key in ("content", "reasoning", "tool_calls"))
    except (ValueError, KeyError, TypeError):
        return False


async def without_role(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield whole events of a chat response, without the first one if it has the role and no token."""
    first = True
    async for some in events:
        if first:
            first = False
            event, blank_line, rest = some.partition(b"\n\n")
            some = rest if blank_line and has_no_token(event) else some
        if some:
            yield some


async def whole_events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the whole events of a stream from arbitrary pieces of its bytes, without comments."""
    rest = b""
    async for piece in pieces:
        whole, blank_line, rest = (rest + piece).rpartition(b"\n\n")
        if b"\n:" in whole or whole.startswith(b":"):
            # vLLM strips each piece, so a comment at its end would lose its blank line and join the next event.
            whole = b"\n\n".join(event for event in whole.split(b"\n\n") if not event.startswith(b":"))
        if whole:
            yield whole + blank_line
    if rest:
        yield rest


def in_whole_events(session: Any, *, chat: bool = False) -> SimpleNamespace:
    """Return the part of an HTTP session that vLLM's request function uses, with responses in whole events."""

    @contextlib.asynccontextmanager
    async def post(**request: Any) -> AsyncIterator[SimpleNamespace]:
        async with session.post(**request) as response:
            events = whole_events(response.content.iter_any())
            events = without_role(events) if chat else events
            content = SimpleNamespace(iter_any=lambda: events)
            yield SimpleNamespace(status=response.status, reason=response.reason, content=content)

    return SimpleNamespace(post=post)


def rotated(prompt: Any, number: int, shared: float) -> Any:
    """Return the prompt of warm-up ``number`` (from 1): the same text rotated, so that no prefix cache has a block of it.

    Args:
        shared: fraction of the prompt that stays at its beginning, the common prefix of all measured prompts.
    """
    head = int(len(prompt) * shared)
    first, rest = prompt[:head], prompt[head:]
    if not isinstance(prompt, str) or len(rest) < 2:
        return prompt
    turn = number * STRIDE % (len(rest) - 1) + 1
    turned = rest[turn:] + rest[:turn]
    return first + (turned[:-SPARE] if len(turned) > 4 * SPARE else turned)


async def start(descriptor: int | None) -> None:
    """Report that this process is ready and wait for the others, while the event loop handles connections that the server closes."""
    if descriptor is not None:
        with socket.socket(fileno=descriptor) as end:
            end.setblocking(False)
            end.send(b"r")
            if not await asyncio.get_running_loop().sock_recv(end, 1):
                sys.exit("bench_client.py: The process client-point ended before the load began. Rerun the same command.")


class Pace:
    """When the measured requests of a closed loop may start.

    Args:
        slots: requests in flight at most.
        ramp_up_s: seconds over which the first requests of the slots start, evenly.
        sending_s: seconds after the first start during which requests may start.
        clock: seconds, the clock of the requests.
    """

    def __init__(
        self, slots: int, ramp_up_s: float | None, sending_s: float | None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.slots, self.ramp_up_s, self.sending_s, self.clock = slots, ramp_up_s, sending_s, clock
        self._numbers = itertools.count()
        self._begun: float | None = None

    async def may_start(self) -> bool:
        """Wait until the next request is due; return False if the duration is over."""
        now = self.clock()
        self._begun = now if self._begun is None else self._begun
        number = next(self._numbers)
        if self.ramp_up_s and number < self.slots:
            await asyncio.sleep(self._begun + number * self.ramp_up_s / self.slots - now)
        return self.sending_s is None or self.clock() - self._begun < self.sending_s


def request_function(
    send: Callable[..., Any],
    descriptor: int | None,
    warmup: dict[str, Any] | None,
    last_warmup: int | None,
    pace: Pace | None = None,
    unsent: Callable[[], Any] | None = None,
    conversations: Conversations | None = None,
) -> Callable[..., Any]:
    """Return the request function for vLLM's table.

    Args:
        send: vLLM's own function for the route.
        descriptor: file descriptor of the socket to client_server.py; None for one process.
        warmup: the value of :data:`WARMUP`; None for vLLM's own warm-ups.
        last_warmup: number of the warm-up that waits for the other processes; None if the first measured request waits.
        pace: when measured requests may start; None: at once.
        unsent: makes vLLM's record of a request without a response.
        conversations: messages by request id, of rows that have some; None for the completions route.
    """
    begun, ended = itertools.count(1), itertools.count(1)
    started: asyncio.Future[None] | None = None

    async def wait() -> None:
        nonlocal started
        started = started or asyncio.ensure_future(start(descriptor))
        await started

    async def send_one(request_func_input: Any, session: Any, pbar: Any = None) -> Any:
        measured = request_func_input.request_id is not None
        if measured and last_warmup is None:
            await wait()
        if measured and pace is not None and unsent is not None and not await pace.may_start():
            output = unsent()
            output.error = UNSENT
            return output
        messages = None
        if conversations:  # vLLM warms up with its first request
            messages = conversations.get(request_func_input.request_id if measured else next(iter(conversations)))
        if not measured and warmup is not None:
            number = next(begun)
            prompt = rotated(request_func_input.prompt, number, warmup["shared"])
            tokens = min(warmup["tokens"], request_func_input.output_len)
            request_func_input = dataclasses.replace(request_func_input, prompt=prompt, output_len=tokens)
            messages = messages and [{**message, "content": rotated(message["content"], number, 0.0)} for message in messages]
        if messages:
            body = {**(request_func_input.extra_body or {}), "messages": messages}
            request_func_input = dataclasses.replace(request_func_input, extra_body=body)
        output = await send(request_func_input, in_whole_events(session, chat=conversations is not None), pbar)
        if not output.success:  # vLLM sets 0, but a load may end with a failed request
            output.latency = time.perf_counter() - output.start_time
        elif conversations is not None:  # an older client may count the event with the usage, which has no token
            output.latency = output.ttft + sum(output.itl)
        if not measured and next(ended) == last_warmup:
            await wait()
        return output

    return send_one


def read_rows_without_pandas(conversations: Conversations) -> Any:
    """Read the file of vLLM's dataset ``custom`` line by line, in its order; return the class that does so.

    vLLM's own method needs pandas, which vLLM does not install (only its extra ``bench`` does), and takes prompts of digits for numbers.

    Args:
        conversations: gets the messages of each row by the id of its request; None for a row with a prompt. vLLM's data set takes prompts
            only, so it gets the text of all messages, of which it counts the tokens.
    """
    from vllm.benchmarks import datasets

    class Rows(datasets.CustomDataset):
        def load_data(self) -> None:
            with open(self.dataset_path, encoding="utf-8") as stream:
                self.data = [json.loads(line) for line in stream]
            for row in self.data:
                if "messages" in row:
                    row["prompt"] = "\n".join(message["content"] for message in row["messages"])

        def sample(self, *given: Any, **named: Any) -> Any:
            requests = super().sample(*given, **named)
            conversations.update({request.request_id: row.get("messages") for request, row in zip(requests, self.data, strict=False)})
            return requests

    # get_samples looks the class up by its name in its own module.
    sys.modules[datasets.CustomDataset.__module__].CustomDataset = Rows  # type: ignore[attr-defined]
    return Rows


def take_times_from_rows(rows: Any) -> None:
    """Replace vLLM's dataset ``timed_trace``, whose prompts are random, by ``rows`` of a file with texts and times of arrivals."""

    class Timed:
        def __init__(self, dataset_path: str, **_: Any) -> None:
            self.rows = rows(dataset_path=dataset_path, disable_shuffle=True)

        def sample(self, num_requests: int, tokenizer: Any, request_id_prefix: str = "") -> Any:
            named = {"num_requests": num_requests, "request_id_prefix": request_id_prefix}
            requests = self.rows.sample(tokenizer=tokenizer, output_len=-1, skip_chat_template=True, **named)
            moments = [row["timestamp"] for row in self.rows.data]
            return [dataclasses.replace(request, timestamp=moment) for request, moment in zip(requests, moments, strict=False)]

    sys.modules[rows.__base__.__module__].TimedTrace = Timed  # type: ignore[attr-defined]


def number_prefix_requests() -> None:
    """Give the requests of vLLM's dataset ``prefix_repetition`` ids as its other datasets have: without one, a request is a warm-up."""
    from vllm.benchmarks import datasets

    class Numbered(datasets.PrefixRepetitionRandomDataset):
        def sample(self, *given: Any, request_id_prefix: str = "", **named: Any) -> Any:
            requests = super().sample(*given, request_id_prefix=request_id_prefix, **named)
            return [dataclasses.replace(request, request_id=f"{request_id_prefix}{number}") for number, request in enumerate(requests)]

    sys.modules[datasets.PrefixRepetitionRandomDataset.__module__].PrefixRepetitionRandomDataset = Numbered  # type: ignore[attr-defined]


def main(argv: list[str]) -> Any:
    """Run vLLM's command line with the entry :data:`BACKEND` in its table."""
    from vllm.benchmarks.lib import endpoint_request_func as table

    warmup, descriptor, load = (json.loads(os.environ.pop(name, "null")) for name in (WARMUP, BARRIER, LOAD))
    if descriptor is not None:
        os.set_inheritable(descriptor, False)
    last_warmup = int(argv[argv.index("--num-warmups") + 1]) if "--request-rate" in argv else None
    chat = "/v1/chat/completions" in argv
    send = table.ASYNC_REQUEST_FUNCS["openai-chat" if chat else "openai"]
    conversations: Conversations = {}
    pace = Pace(int(argv[argv.index("--max-concurrency") + 1]), **load) if load else None
    unsent = table.RequestFuncOutput if load else None
    own = request_function(send, descriptor, warmup, last_warmup, pace, unsent, conversations if chat else None)
    table.ASYNC_REQUEST_FUNCS[BACKEND] = own
    table.OPENAI_COMPATIBLE_BACKENDS.append(BACKEND)  # for sampling parameters
    if ("--dataset-name", "custom") in itertools.pairwise(argv):
        read_rows_without_pandas(conversations)
    if ("--dataset-name", "timed_trace") in itertools.pairwise(argv):
        table.ASYNC_REQUEST_FUNCS["openai"] = own  # the only name that vLLM's client allows here
        take_times_from_rows(read_rows_without_pandas(conversations))
    if ("--dataset-name", "prefix_repetition") in itertools.pairwise(argv):
        number_prefix_requests()
    from vllm.entrypoints.cli.main import main as vllm

    return vllm()


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # this script's folder, whose modules must not hide others
    sys.exit(main(sys.argv))
