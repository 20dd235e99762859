"""A server with responses that a test sets for each path."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Answers(BaseHTTPRequestHandler):
    """Handler with a response for each path: (status, body)."""

    table: dict[str, tuple[int, object]] = {}
    asked: list[tuple[str, str | None]] = []

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.asked.append((self.path, self.headers.get("Authorization")))
        if length := int(self.headers.get("Content-Length", 0)):
            self.asked[-1] += (json.loads(self.rfile.read(length)),)
        status, body = self.table[self.path]
        if status == 0:
            threading.Event().wait(2)
            return
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET


@contextmanager
def server(**paths):
    """Start a server on a free port; return its handler class, whose table a test can change, and its address."""
    table = {"/health": (200, ""), "/v1/models": (200, {"data": [{"id": "tiny"}]})} | {f"/{k}": v for k, v in paths.items()}
    handler = type("Handler", (Answers,), {"table": table, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield handler, f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            listening.shutdown()
            thread.join()
