"""A vllm_router for the stand-in environment: requests go to the replicas in turn; a replica checks the key."""

from __future__ import annotations

from builders.places import site_packages
from servemark.records import Environment

_ROUTER = '''
"""Stand-in of vllm_router. STANDIN_ROUTER: open (asks for no key), broken (serves no replica), ends."""

import argparse, http.client, itertools, os, sys, urllib.error, urllib.parse, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def parse_router_args(argv):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--worker-urls", nargs="+")
    return parser.parse_known_args(argv)[0]


def launch_router(arguments):
    fault = os.environ.get("STANDIN_ROUTER", "")
    if fault == "ends":
        sys.exit("RuntimeError: stand-in fault of the router")
    turns = itertools.cycle(arguments.worker_urls)

    def knows(key):
        ask = urllib.request.Request(arguments.api_key_validation_urls[0], headers={"Authorization": key or ""})
        try:
            return urllib.request.urlopen(ask, timeout=60).status == 200
        except urllib.error.HTTPError:
            return False

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def log_message(self, *_):
            pass

        def do_GET(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if fault != "open" and not knows(self.headers.get("Authorization")):
                self.send_response(401)
            elif self.path == "/liveness":
                self.send_response(200)
            elif fault == "broken":
                self.send_response(503)
            else:
                self.forward(next(turns), body)
                return
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET

        def forward(self, url, body):
            connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc)
            headers = {name: self.headers[name] for name in ("Authorization", "Content-Type") if self.headers[name]}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers.get("Content-Type", "text/plain"))
            self.end_headers()
            while data := answer.read1(65536):
                self.wfile.write(data)
                self.wfile.flush()

    ThreadingHTTPServer((arguments.host, arguments.port), Handler).serve_forever()
'''


def put_router(environment: Environment) -> None:
    """Add a router to the stand-in environment."""
    package = site_packages(environment) / "vllm_router"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_router.py").write_text(_ROUTER.lstrip())
