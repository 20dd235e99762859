"""Log lines in vLLM's format, and the stand-in's texts."""

import os
import sys
import time

BANNER = "servemark stand-in server, not vLLM"

ENGINE_FAILED = """\
EngineCore failed to start.
Traceback (most recent call last):
  File "standin/vllm/v1/engine/core.py", line 1, in run_engine_core
    engine_core = EngineCoreProc(*args, **kwargs)
ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the \
engine. (stand-in fault exit_at_start)"""

SERVER_FAILED = """\
Traceback (most recent call last):
  File "standin/vllm/entrypoints/cli/main.py", line 1, in main
    args.dispatch_function(args)
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"""

ENGINE_DEAD = """\
AsyncLLM output_handler failed.
Traceback (most recent call last):
  File "standin/vllm/v1/engine/async_llm.py", line 1, in output_handler
    outputs = await engine_core.get_output_async()
vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the \
root cause."""


def say(text, *, who="APIServer", pid=None, level="INFO", where="standin.py:1"):
    """Print a log record line by line, each with process, level, time and source as in vLLM's logger."""
    stamp = time.strftime("%m-%d %H:%M:%S")
    for line in text.splitlines():
        sys.stdout.write(f"({who} pid={pid or os.getpid()}) {level} {stamp} [{where}] {line}\n")
    sys.stdout.flush()


def plain(text):
    """Print text without a prefix, like uvicorn and uncaught exceptions."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
