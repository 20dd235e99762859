"""The stand-in of vLLM as processes: its server, and a complete run of its client."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from contextlib import contextmanager

import httpx
import psutil

from servemark.machine import network

CLI = ("-m", "vllm.entrypoints.cli.main")
KEY = "standin-test-key"


def free_port():
    """Return a free port of this machine, which no other search finds for a minute and the kernel gives to no program."""
    (port,) = network.find_ports("127.0.0.1", 1, start=secrets.randbelow(len(network.PORTS)))
    return port


def environment(**extra):
    """Return environment variables for a stand-in that starts and responds quickly."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "STANDIN_START_S": "0.1", "STANDIN_TOKEN_S": "0.001", **extra}


class Running:
    """A running stand-in: its process, address and log."""

    def __init__(self, process, port, log):
        self.process, self.log, self.url = process, log, f"http://127.0.0.1:{port}"

    def get(self, path, **options):
        return httpx.get(self.url + path, timeout=60, **options)

    def complete(self, tokens=4, model="tiny", key=None, **body):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        body = {"model": model, "prompt": "t1 t2 t3", "max_tokens": tokens, **body}
        return httpx.post(self.url + "/v1/completions", json=body, headers=headers, timeout=60)

    def wait_until_ready(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(self.log.read_text())
            try:
                self.get("/health")
                return
            except httpx.TransportError:
                time.sleep(0.02)
        raise AssertionError("the stand-in was not ready in 60 s")


@contextmanager
def server(python, tmp_path, *options, ready=True, **variables):
    """Start a server with these options and variables, by default until it is ready; end it with its children."""
    port, log = free_port(), tmp_path / "server.log"
    argv = [python, *CLI, "serve", "/models/tiny", "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--served-model-name", "tiny", "--dtype", "bfloat16", "--enforce-eager", *options]
    with log.open("w") as stream:
        process = subprocess.Popen(argv, stdout=stream, stderr=subprocess.STDOUT, env=environment(**variables))
    tree = [psutil.Process(process.pid)]
    try:
        running = Running(process, port, log)
        if ready:
            running.wait_until_ready()
            tree += tree[0].children(recursive=True)
        yield running
    finally:
        if process.poll() is None:
            tree += tree[0].children(recursive=True)
        for member in tree:
            if member.is_running():
                member.kill()
        process.wait(60)


def bench(python, folder, url, *options, **variables):
    """Run the client with six requests; it writes ``raw.json`` into the folder."""
    argv = [python, *CLI, "bench", "serve", "--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions"]
    argv += ["--model", "tiny", "--tokenizer", "/models/tiny", "--dataset-name", "random", "--random-input-len", "5"]
    argv += ["--random-output-len", "4", "--num-prompts", "6", "--max-concurrency", "3", "--seed", "1", "--ignore-eos"]
    argv += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,95,99", "--disable-tqdm"]
    argv += ["--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", "raw.json"]
    return subprocess.run([*argv, *options], env=environment(**variables), capture_output=True, text=True, timeout=120)
