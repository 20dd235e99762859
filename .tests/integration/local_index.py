"""A package index on loopback with one wheel (stand-ins of vllm, torch and ray) and a lock file for it; the index can hang."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import standin

NAME, VERSION = "servemark-standin", "0.0.0"
WHEEL = "servemark_standin-0.0.0-py3-none-any.whl"

# In place of the project's patch for the CPU build: with its own build backend, so that pip downloads nothing to build it.
SHIM = """
import zipfile

def build_wheel(folder, *_):
    name = "vllm-0.0.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("vllm-0.0.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: vllm\\nVersion: 0.0.0\\n")
        wheel.writestr("vllm-0.0.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("vllm-0.0.0.dist-info/RECORD", "")
    return name
"""
SHIM_PROJECT = """
[build-system]
requires = []
build-backend = "servemark_cpu_ray"
backend-path = ["."]
[project]
name = "vllm"
version = "0.0.0"
"""


def make_wheel(path: Path) -> str:
    """Write the wheel and return its sha256."""
    site = Path(standin.__file__).with_name("site")
    info = f"servemark_standin-{VERSION}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in sorted(site.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                wheel.write(file, file.relative_to(site))
        wheel.write(standin.OPTIONS, "vllm/standin_options.json")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def lock(checkout: Path, sha256: str) -> None:
    """Replace the checkout's lock file ``cpu`` and the patch next to it."""
    (checkout / "envs/cpu.lock").write_text(f"{NAME}=={VERSION} \\\n    --hash=sha256:{sha256}\n")
    (checkout / "envs/cpu-shim/pyproject.toml").write_text(SHIM_PROJECT)
    (checkout / "envs/cpu-shim/servemark_cpu_ray.py").write_text(SHIM)


class Index:
    """``url`` for pip; while ``hanging`` is set, requests get no response. The first request sets ``asked``."""

    def __init__(self, url: str):
        self.url, self.hanging, self.asked = url, threading.Event(), threading.Event()


@contextmanager
def serve(wheel: Path) -> Iterator[Index]:
    """Serve the wheel as a simple index on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.asked.set()
            while index.hanging.is_set() and not ended.wait(0.1):
                pass
            page = f'<!DOCTYPE html><html><body><a href="/{WHEEL}">{WHEEL}</a></body></html>'
            is_wheel = self.path.endswith(".whl")
            data = wheel.read_bytes() if is_wheel else page.encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream" if is_wheel else "text/html")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:
                self.close_connection = True

    ended = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    index = Index(f"http://127.0.0.1:{server.server_port}/simple")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield index
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
