"""Run by the model environment's interpreter: vLLM's client, with one fault mended, with warm-ups that warm, held where it is one of
several processes.

usage: python bench_client.py ARGUMENTS OF vllm

As ``python -m vllm.entrypoints.cli.main``, but for three things.

What it reads from the network is not stripped. vLLM's client (benchmarks/lib/endpoint_request_func.py, 0.25.1, 0.32.0) strips each piece
that arrives, wherever the network has cut the stream: a cut beside the space of ``data: {...}`` makes the event unreadable and the request
failed (seen: 14 of 96 requests through the router, on a busy machine), and one beside a space of an answer loses that. vllm-project/vllm
pull request 51172 takes out the same three lines.

Its warm-ups (vllm/benchmarks/serve.py, ``benchmark()``) are the first measured prompt again and again, with answers of full length: a
server with a prefix cache reads it once, and answers the measured one from its cache; and a server that has read few prompts at once
still compiles kernels in the load (seen on H200: 5.2 s of standing still when the first wave of 512 requests gave way to the next).
Given how many tokens a warm-up's answer has, each request before the clock is another prompt, as long, with so short an answer. What all
measured prompts begin with (``random-prefix-len``) stays, so that the cache has it as it would have it after any of them. They are
told from the measured ones by the function that is awaited between them, of which below.

One of several processes, which begin to measure together, is held between its warm-ups and the start of its clock until run_clients.py,
which waits for all, lets it go. vLLM has no option for that. Its ``benchmark()`` (vllm/benchmarks/serve.py) asks for the server's
counters just before it looks at the clock (``fetch_spec_decode_metrics``, in 0.25 and 0.32 then ``fetch_diffusion_metrics``), and again
after the load: the last function that it awaits before is wrapped for its first call. Where there is none that we know, the process
begins as soon as it is ready.
"""

import asyncio
import dataclasses
import importlib.util
import inspect
import itertools
import os
import runpy
import socket
import sys

# Number of the descriptor on which run_clients.py hears that we are ready, and lets us go.
VARIABLE = "SERVEMARK_START_BARRIER"
# Tokens of a warm-up's answer, at most.
WARMUP = "SERVEMARK_WARMUP_TOKENS"
# Greater than prompts have characters in common multiples with: warm-up N begins N times so many characters further on.
STRIDE = 7919
ITS_OWN = "its warm-ups are its own, the first prompt again and again"
# Text cut anew at its ends may have a token or two more; so many characters less make up for it.
SPARE = 16
CLI = "vllm.entrypoints.cli.main"
MODULE = "vllm.benchmarks.serve"
KNOWN = ("fetch_spec_decode_metrics", "fetch_diffusion_metrics")
READY = b"r"
REQUESTS = "vllm.benchmarks.lib.endpoint_request_func"
STRIPPED = "chunk_bytes = chunk_bytes.strip()"


def last_step(module):
    """Name of the known function that ``benchmark()`` awaits last before it looks at the clock; None where there is none."""
    code = getattr(getattr(module, "benchmark", None), "__code__", None)
    names = code.co_names if code else ()  # in the order in which the code first uses them
    before = names[: names.index("perf_counter")] if "perf_counter" in names else ()
    found = [name for name in before if name in KNOWN and inspect.iscoroutinefunction(getattr(module, name, None))]
    return found[-1] if found else None


async def wait(descriptor):
    """Say that we are ready, and wait. The event loop goes on, so that it sees which idle connections the server closes meanwhile."""
    with socket.socket(fileno=descriptor) as end:
        end.setblocking(False)
        end.send(READY)
        if not await asyncio.get_running_loop().sock_recv(end, 1):
            sys.exit(
                "bench_client.py: run_clients.py ended while this process waited for the others; nothing was measured"
            )


def hold(module, descriptor):
    """Make the module's client wait at its last step; where it has none that we know, say so."""
    name = last_step(module)
    if name is None:
        give_up(descriptor)
        return
    original = getattr(module, name)

    async def held(*args, **kwargs):
        setattr(module, name, original)
        answer = await original(*args, **kwargs)
        await wait(descriptor)
        return answer

    setattr(module, name, held)


def shared(arguments):
    """Share of each prompt that all have in common, as the command line asks for it: a prefix beside the input's own length."""
    lengths = dict.fromkeys(("--random-prefix-len", "--random-input-len"), 0)
    for option, value in itertools.pairwise(arguments):
        if option.replace("_", "-") in lengths and value.isdigit():
            lengths[option.replace("_", "-")] = int(value)
    prefix, own = lengths.values()
    return prefix / (prefix + own) if prefix else 0.0


def another(prompt, number, kept=0.0):
    """A prompt of the same text, begun elsewhere in it: no block of it is in a prefix cache for the first. ``number``: from 1.

    ``kept``: share of the prompt, from its beginning, that stays, as what all measured prompts begin with.
    """
    if not isinstance(prompt, str):
        return prompt
    head = int(len(prompt) * kept)
    first, rest = prompt[:head], prompt[head:]
    if len(rest) < 2:
        return prompt
    turn = number * STRIDE % (len(rest) - 1) + 1
    turned = rest[turn:] + rest[:turn]
    return first + (turned[:-SPARE] if len(turned) > 4 * SPARE else turned)


def vary_warmups(module, tokens):
    """Give each request that the module's client sends before its last step a prompt of its own and an answer of so many tokens."""
    name, functions = last_step(module), getattr(module, "ASYNC_REQUEST_FUNCS", None)
    if name is None or not isinstance(functions, dict):
        say_unknown(ITS_OWN)
        return
    numbers, step, kept = itertools.count(1), getattr(module, name), shared(sys.argv)
    warming = True

    def varied(send):
        async def warm(request_func_input, *args, **kwargs):
            if warming:
                request_func_input = dataclasses.replace(
                    request_func_input,
                    prompt=another(request_func_input.prompt, next(numbers), kept),
                    output_len=min(tokens, request_func_input.output_len),
                )
            return await send(request_func_input, *args, **kwargs)

        return warm

    async def warmed(*args, **kwargs):
        nonlocal warming
        warming = False
        return await step(*args, **kwargs)

    module.ASYNC_REQUEST_FUNCS = {backend: varied(send) for backend, send in functions.items()}
    setattr(module, name, warmed)


def give_up(descriptor):
    """Let run_clients.py know, by the end of the descriptor, that it need not wait for us."""
    os.close(descriptor)
    say_unknown("this client process begins as soon as it is ready")


def say_unknown(so):
    """Say that this vLLM has no last step that we know, and what follows."""
    what = f"this vLLM's {MODULE} has no function that we know between warm-ups and measurement"
    print(f"bench_client.py: {what}: {so}", file=sys.stderr, flush=True)


def when_imported(name, make):
    """Have a module executed by ``make(spec)`` once vLLM itself imports it; whether there is such a module.

    An earlier import would change the order of vLLM's imports, which it cares for.
    """
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.loader is None:
        return False
    spec.loader.exec_module = make(spec)

    class Finder:
        @staticmethod
        def find_spec(asked, path=None, target=None):
            return spec if asked == name else None

    sys.meta_path.insert(0, Finder)
    return True


def prepare_when_imported(tokens, descriptor):
    """Vary the client's warm-ups, and hold it, each where it is asked for (not None); where it has no module that we know, say so."""

    def prepared(spec):
        execute = spec.loader.exec_module

        def execute_and_prepare(module):
            execute(module)
            if tokens is not None:
                vary_warmups(module, tokens)
            if descriptor is not None:
                hold(module, descriptor)

        return execute_and_prepare

    if when_imported(MODULE, prepared):
        return
    if tokens is not None:
        say_unknown(ITS_OWN)
    if descriptor is not None:
        give_up(descriptor)


def unstripped(spec):
    """Execute a module without the lines that strip what arrives; as it is where it has none, or no source."""
    source = getattr(spec.loader, "get_source", lambda name: None)(spec.name)
    if source and STRIPPED in source:
        mended = compile(source.replace(STRIPPED, "pass"), spec.origin, "exec")
        spec.loader.get_code = lambda name: mended
    return spec.loader.exec_module


def main():
    # `python -m` has the working directory in front, not the folder of this script, whose modules have names like `versions`.
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd()
    when_imported(REQUESTS, unstripped)
    tokens, descriptor = (int(given) if (given := os.environ.pop(name, None)) else None for name in (WARMUP, VARIABLE))
    if descriptor is not None:
        os.set_inheritable(descriptor, False)  # the client may become or start another program
    if tokens is not None or descriptor is not None:
        prepare_when_imported(tokens, descriptor)
    runpy.run_module(CLI, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
