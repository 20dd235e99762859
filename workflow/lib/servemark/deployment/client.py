"""The benchmark client of one load point: one or several processes that share the load, and their merged result."""

import contextlib
import hashlib
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from servemark.deployment import attempts, client_server
from servemark.deployment.launcher import Launcher
from servemark.deployment.stage import Stage
from servemark.launch import command_lines
from servemark.measurement.merge import Samples, merge
from servemark.measurement.raw import RawError, RawResult, checked, read_data, read_raw
from servemark.processes.children import ToolResult
from servemark.records import Container, DaemonState, LoadPoint, Ready, StagedPrompts, write_atomically
from servemark.supervisor.process_request import DaemonRequest

# The same names stand in in_model_env/bench_client.py.
WARMUP, LOAD = "SERVEMARK_WARMUP", "SERVEMARK_LOAD"
_RUN_CLIENTS = Path(__file__).parents[1] / "in_model_env" / "run_clients.py"


def shares(point: LoadPoint) -> list[LoadPoint]:
    """Return the share of each client process; together they are the point.

    Concurrency is split evenly. Requests and warm-ups are split in proportion to it, so that all processes take the same time.
    With a request rate all have the same number of requests, and at least one warm-up, after which they wait for each other
    (in_model_env/bench_client.py). The first keeps the point's seed; the others derive theirs, so that no two send the same prompts.
    """
    count, paced = point.clients, point.request_rate is not None
    concurrency = [None] * count if point.concurrency is None else _split(point.concurrency, [1] * count)
    slots = [1] * count if paced else [share or 1 for share in concurrency]
    least = 1 if paced and count > 1 else 0
    return [
        point.model_copy(
            update={
                "clients": 1,
                "concurrency": concurrency[index],
                "request_rate": point.request_rate / count if point.request_rate is not None else None,
                "requests": requests,
                "warmups": max(warmups, least),
                "seed": _seed(point.seed, index),
            }
        )
        for index, (requests, warmups) in enumerate(zip(_split(point.requests, slots), _split(point.warmups, slots), strict=True))
    ]


def _split(total: int, weights: Sequence[int]) -> list[int]:
    """Return whole shares of a total, in proportion to weights. The rest goes to the largest remainders."""
    whole = sum(weights)
    shares = [total * weight // whole for weight in weights]
    remainders = sorted(range(len(weights)), key=lambda index: (-(total * weights[index] % whole), index))
    for index in remainders[: total - sum(shares)]:
        shares[index] += 1
    return shares


def _seed(seed: int, index: int) -> int:
    """Return the seed of a process: 31 bits, like the seeds of points."""
    if index == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed} {index}".encode()).digest()[:4], "big") >> 1


def chosen(rows: int, count: int, seed: int) -> list[int]:
    """Return the numbers of the rows that a point sends, in their order: every row once in random order, then again in another order."""
    generator = random.Random(seed)  # noqa: S311
    found: list[int] = []
    while len(found) < count:
        found += generator.sample(range(rows), min(rows, count - len(found)))
    return found


@dataclass(frozen=True)
class BenchmarkClient:
    """The client's processes for one load point.

    Args:
        draft: path of the point's unfinished result file. The processes' files lie next to it; their names begin with its name.
        tokenizer: the folder of the model.
        trust_remote_code: the tokenizer may run Python code from that folder, as in the server.
    """

    point: LoadPoint
    ready: Ready
    draft: Path
    python: str
    tokenizer: str
    variables: Mapping[str, str] = field(default_factory=dict)
    container: Container | None = None
    dataset: Path | None = None
    trust_remote_code: bool = False

    @property
    def commands(self) -> list[list[str]]:
        """The command line of each process."""
        ready, folder = self.ready, str(self.draft.parent.absolute())
        url = ready.servers[0].url if self.point.ask == "replica" else ready.url
        assert url and ready.served_name, "a live deployment's live record is complete"
        model = command_lines.option_arguments({"trust-remote-code": self.trust_remote_code or None})
        return [
            command_lines.bench(
                self.python, url, ready.served_name, self.tokenizer, share, folder, self._beside(index).name, self._prompts(index)
            )
            + model
            for index, share in enumerate(shares(self.point))
        ]

    def _beside(self, suffix: str | int) -> Path:
        return self.draft.with_name(f"{self.draft.name}.{suffix}")

    def _prompts(self, index: int) -> str | None:
        """Return the path of the rows that a process sends; None without a data set."""
        return str(self._beside(f"{index}.jsonl").absolute()) if self.dataset else None

    def _write_prompts(self) -> None:
        """Write the rows of each process, each with its output length."""
        prompts = self.point.prompts
        if self.dataset is None or not isinstance(prompts, StagedPrompts):
            return
        point = self.point
        numbers = list(range(point.requests)) if prompts.timed else chosen(prompts.rows, point.requests, point.seed)
        wanted, rows = set(numbers), {}
        with open(self.dataset, "rb") as stream:
            for number, line in enumerate(stream):
                if number in wanted:
                    rows[number] = json.loads(line)
        if prompts.timed and point.request_rate:
            # The mean gap becomes that of the request rate. Requests that all came at once stay so.
            span_s = rows[numbers[-1]]["timestamp"] or math.inf
            stretch = (len(numbers) - 1) / point.request_rate / span_s
            rows = {number: row | {"timestamp": row["timestamp"] * stretch} for number, row in rows.items()}
        fixed = {} if prompts.recorded else {"output_tokens": prompts.output_tokens}
        begin = 0
        for index, share in enumerate(shares(self.point)):
            own, begin = numbers[begin : begin + share.requests], begin + share.requests
            lines = [json.dumps(rows[number] | fixed) + "\n" for number in own]
            write_atomically(self._beside(f"{index}.jsonl"), "".join(lines))

    def _expected(self, index: int) -> list[int]:
        """Return the recorded output lengths of a process's requests, in their order."""
        return [json.loads(line)["output_tokens"] for line in self._beside(f"{index}.jsonl").read_text().splitlines()]

    def clear(self) -> None:
        """Remove the processes' files."""
        for pattern in (f"{self.draft.name}*", f".{self.draft.name}*"):  # the second matches files that a killed write left
            for path in self.draft.parent.glob(pattern):
                path.unlink(missing_ok=True)

    def run(self, attempt: Path, modules: tuple[str, ...], timeout_s: float, here: Stage, check: Callable[[], str | None]) -> ToolResult:
        """Run all processes on the client's node. If the client server ended before they started, start another one and try once more.

        Args:
            timeout_s: seconds after which servemark stops the processes.
            check: servemark calls it repeatedly, and stops the processes if it returns a text.

        Returns:
            the end of run_clients.py.

        Raises:
            StageFailed: the supervisor has ended, or the environment's interpreter cannot be started.
        """
        launcher, order = Launcher.of(attempt), self._beside("order")
        node = self.ready.client_node or launcher.alloc.nodes[0]
        request = DaemonRequest(
            name=f"client-{self.point.name}",
            argv=(self.python,),
            env={"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **command_lines.NO_PROXY, **self.variables},
            secret_env={"OPENAI_API_KEY": str(self.ready.key_file)},
            log=str(here.log.absolute()),
            modules=modules,
            grace_s=3.0,
            container=self.container,
        )
        server = client_server.running(launcher, node, request)
        self._write_prompts()
        what = {"processes": self.commands, "variables": self._load(), "samples": str(self._beside("samples").absolute())}
        write_atomically(order, json.dumps(what) + "\n")

        def run(server: DaemonState) -> ToolResult:
            words = (str(_RUN_CLIENTS), *client_server.arguments(attempt, server), str(order.absolute()))
            tool = launcher.tool(node, request.model_copy(update={"argv": (self.python, *words), "secret_env": {}}))
            return tool.run(log=here.log, timeout_s=timeout_s, watch=here.watch, check=check)

        result = run(server)
        if result.exit_code == client_server.GONE and result.stopped is None:
            # For example, it was killed between two points, and the supervisor had not recorded that yet.
            attempts.await_end(attempt, server.name)
            result = run(client_server.running(launcher, node, request))
        return result

    def _load(self) -> dict[str, str]:
        """Return the variables that tell bench_client.py about the warm-ups and the times of the load."""
        point = self.point
        shared = point.prefix_tokens / (point.prefix_tokens + point.prompts.input_tokens)
        warmup = {"tokens": point.warmup_tokens, "shared": shared}
        # A request rate spreads its starts and ends with its last request by itself.
        timed = point.request_rate is None and (point.ramp_up_s is not None or point.sending_s is not None)
        return {
            **({} if point.warmup_tokens is None else {WARMUP: json.dumps(warmup)}),
            **({LOAD: json.dumps({"ramp_up_s": point.ramp_up_s, "sending_s": point.sending_s})} if timed else {}),
        }

    def collect(self) -> RawResult | RawError:
        """Merge the processes' results into ``draft`` and return its contents.

        If the result of a process cannot be used, its file becomes ``draft`` as evidence, and its error is returned.
        """
        parts, prompts = [], self.point.prompts
        for index in range(self.point.clients):
            try:
                data, raw = read_data(self._beside(index))
                if isinstance(prompts, StagedPrompts) and prompts.recorded:
                    data["expected_output_lens"] = self._expected(index)
                    raw = checked(data)
                parts.append((data, raw))
            except RawError as error:
                if self._beside(index).exists():
                    self._beside(index).replace(self.draft)
                return error
        cpu: list[Samples] = [()] * self.point.clients
        clock = None
        # Samples are optional: the requests' times do not depend on them.
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self._beside("samples").read_text())
            cpu, clock = found["cpu"], found["clock"]
        write_atomically(self.draft, json.dumps(merge(parts, cpu) | ({} if clock is None else {"clock": clock})))
        return read_raw(self.draft)
