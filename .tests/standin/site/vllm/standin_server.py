"""servemark stand-in server, not vLLM: serves the same routes with made-up tokens at a made-up pace."""

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from vllm import standin_log as log
from vllm.standin_faults import fault, number
from vllm.standin_http import Handler, Server, State

DEATH_S = 2.0  # how long vLLM responds with 503 until it exits after its engine's death


def arguments(argv):
    parser = argparse.ArgumentParser(prog="vllm serve", add_help=False, allow_abbrev=False)
    parser.add_argument("model", nargs="?", default="standin")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--api-key", nargs="+")
    parser.add_argument("--middleware", action="append")
    parser.add_argument("--headless", action="store_true")
    return parser.parse_known_args(argv)[0]


def load(args, engine_pid):
    """Log vLLM's start-up stages, spread over STANDIN_START_S seconds."""
    name, value = fault()
    step = (number("STANDIN_START_S", 1.0) + (value if name == "slow_start" else 0.0)) / 4

    def engine(text):
        log.say(text, who="EngineCore", pid=engine_pid)

    engine(f"Initializing a V1 LLM engine (v0.0.0+standin) with config: model={args.model!r}")
    engine("world_size=1 rank=0 local_rank=0 distributed_init_method=tcp://127.0.0.1:1 backend=standin")
    time.sleep(step)
    engine(f"Starting to load model {args.model}...")
    while fault()[0] == "never_ready":
        time.sleep(0.5)
        log.say("Waiting for 1 local, 0 remote core engine proc(s) to start.", level="DEBUG")
    time.sleep(step)
    engine(f"Loading weights took {step:.2f} seconds")
    engine(f"Model loading took 0.01 GiB memory and {step:.6f} seconds")
    time.sleep(step)
    engine("Available KV cache memory: 1.00 GiB")
    engine("GPU KV cache size: 65,536 tokens, Maximum concurrency for 4,096 tokens per request: 16.00x")
    engine("Graph capturing finished in 0 secs, took 0.00 GiB")
    time.sleep(step)
    engine(f"init engine (profile, create kv cache, warmup model) took {2 * step:.2f} s")


def watch_engine(engine, state, server, stopping):
    """End the server a moment after its engine died: first 503, then a clean exit, like vLLM."""
    engine.wait()
    if stopping.is_set():
        return
    state.dead.set()
    log.say("Engine core proc EngineCore died unexpectedly, shutting down client.", level="ERROR")
    log.say(log.ENGINE_DEAD, level="ERROR")
    time.sleep(DEATH_S)
    server.shutdown()


def main(argv):
    args = arguments(argv)
    log.say(log.BANNER)
    log.say(f"non-default args: {vars(args) | {'api_key': None}}")
    if args.headless:
        # Like vLLM's followers: no port, and no watch on the head.
        log.say("Stand-in follower: waits for the end")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        threading.Event().wait()
    name = fault()[0]
    if name == "bad_option":
        log.plain("usage: vllm serve [model_tag] [options]\nmain.py: error: unrecognized arguments: --standin-bad-option")
        return 2
    if name == "exit_at_start":
        log.say(log.ENGINE_FAILED, who="EngineCore", level="ERROR")
        log.say(log.SERVER_FAILED, level="ERROR")
        return 1

    state = State(args)
    server = Server((args.host, args.port), type("BoundHandler", (Handler,), {"state": state}), bind_and_activate=False)
    server.address_family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    server.server_bind()  # like vLLM: bound before the load, so that a taken port fails at once, but listening only after it
    words = [sys.executable, str(Path(__file__).with_name("standin_engine.py")), "VLLM::EngineCore"]
    engine = subprocess.Popen(words, stdout=subprocess.PIPE)
    stopping = threading.Event()

    def stop(*_):
        log.say("[shutdown] API server: shutdown triggered")
        stopping.set()
        engine.kill()
        threading.Thread(target=server.shutdown).start()

    def stop_before_ready(*_):
        engine.kill()
        os._exit(143)

    ignored = name == "ignore_term"
    signal.signal(signal.SIGTERM, signal.SIG_IGN if ignored else stop_before_ready)
    load(args, engine.pid)
    engine.stdout.readline()  # it prints when it has set its process name
    signal.signal(signal.SIGTERM, signal.SIG_IGN if ignored else stop)
    signal.signal(signal.SIGINT, stop)
    log.say(f"Starting vLLM server on http://{args.host}:{args.port}")
    log.plain(f"INFO:     Started server process [{os.getpid()}]\nINFO:     Waiting for application startup.")
    server.server_activate()
    threading.Thread(target=watch_engine, args=(engine, state, server, stopping), daemon=True).start()
    log.plain("INFO:     Application startup complete.")
    server.serve_forever(poll_interval=0.05)
    log.plain("INFO:     Application shutdown complete.")
    return 0
