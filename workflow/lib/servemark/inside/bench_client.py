"""Run by the model environment's interpreter: vLLM's client, with one fault mended, and held where it is one of several processes.

usage: python bench_client.py ARGUMENTS OF vllm

As ``python -m vllm.entrypoints.cli.main``, but for two things.

What it reads from the network is not stripped. vLLM's client (benchmarks/lib/endpoint_request_func.py, 0.25.1, 0.32.0) strips each piece
that arrives, wherever the network has cut the stream: a cut beside the space of ``data: {...}`` makes the event unreadable and the request
failed (seen: 14 of 96 requests through the router, on a busy machine), and one beside a space of an answer loses that. vllm-project/vllm
pull request 51172 takes out the same three lines.

One of several processes, which begin to measure together, is held between its warm-ups and the start of its clock until run_clients.py,
which waits for all, lets it go. vLLM has no option for that. Its ``benchmark()`` (vllm/benchmarks/serve.py) asks for the server's
counters just before it looks at the clock (``fetch_spec_decode_metrics``, in 0.25 and 0.32 then ``fetch_diffusion_metrics``), and again
after the load: the last function that it awaits before is wrapped for its first call. Where there is none that we know, the process
begins as soon as it is ready.
"""

import asyncio
import importlib.util
import inspect
import os
import runpy
import socket
import sys

# Number of the descriptor on which run_clients.py hears that we are ready, and lets us go.
VARIABLE = "SERVEMARK_START_BARRIER"
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


def give_up(descriptor):
    """Let run_clients.py know, by the end of the descriptor, that it need not wait for us."""
    os.close(descriptor)
    print(
        f"bench_client.py: this vLLM's {MODULE} has no function that we know between warm-ups and measurement: "
        "this client process begins as soon as it is ready",
        file=sys.stderr,
        flush=True,
    )


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


def hold_when_imported(descriptor):
    """Hold the client; where it has no module that we know, say so."""

    def held(spec):
        execute = spec.loader.exec_module

        def execute_and_hold(module):
            execute(module)
            hold(module, descriptor)

        return execute_and_hold

    if not when_imported(MODULE, held):
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
    if given := os.environ.pop(VARIABLE, None):
        os.set_inheritable(int(given), False)  # the client may become or start another program
        hold_when_imported(int(given))
    runpy.run_module(CLI, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
