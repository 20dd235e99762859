"""A stand-in of the Hugging Face hub on loopback: the routes of snapshot_download, and faults that a test sets. Datasets have
``/api/datasets`` and ``/datasets`` in their routes.

Written after the hub's responses: /api/models/ORG/NAME/revision/REVISION?blobs=true, /api/models/ORG/NAME/tree/COMMIT?recursive=true,
HEAD and GET of /ORG/NAME/resolve/COMMIT/PATH (large files: a redirect to another host, here a second port), Range, X-Error-Code,
X-Error-Message, Retry-After.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

REPOSITORY = "org/small-model"
FIRST, SECOND = "1" * 40, "2" * 40
"""Commits of the repository; its branch main is at the first."""


@dataclass
class Fault:
    """A fault in place of a response.

    Attributes:
        on: a part of the affected paths.
        status: of the response; 0 ends the connection within the body, after the byte ``after``, with ``slow`` after a minute.
        times: number of affected requests; later ones succeed.
        unless_token: requests with this token succeed.
    """

    on: str
    status: int = 0
    times: int = 1_000_000
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    after: int = 0
    slow: bool = False
    unless_token: str | None = None


@dataclass
class Asked:
    """A received request."""

    method: str
    path: str
    range: str | None
    authorization: str | None


class StandinHub:
    """One repository with its branches."""

    def __init__(self, repository: str, commits: dict[str, dict[str, bytes]], branches: dict[str, str]):
        self.repository, self.commits, self.branches = repository, commits, branches
        self.kind = "model"
        self.lfs = (".safetensors", ".bin", ".gguf", ".parquet")
        self.sizes: dict[str, int] = {}
        self.digests: dict[str, str] = {}
        self.faults: list[Fault] = []
        self.asked: list[Asked] = []
        self.address = self.store = ""

    def fetched(self) -> list[str]:
        """Return the paths of the files whose content was requested, sorted, with repetitions."""
        got = [asked.path for asked in self.asked if asked.method == "GET" and "/resolve/" in asked.path]
        return sorted(path.split("/resolve/")[1][41:] for path in got)

    def ranges(self, path: str) -> list[str | None]:
        """Return the Range headers of the store's requests for a large file."""
        return [asked.range for asked in self.asked if asked.path.startswith("/store/") and asked.path.endswith(path)]

    def listing(self, commit: str) -> dict[str, object]:
        """Return the response for a revision."""
        siblings = []
        for path in self.commits[commit]:
            size, digest = self.stated(commit, path)
            entry: dict[str, object] = {"rfilename": path, "size": size, "blobId": digest}
            if path.endswith(self.lfs):
                entry |= {"blobId": "0" * 40, "lfs": {"sha256": digest, "size": size, "pointerSize": 134}}
            siblings.append(entry)
        return {"id": self.repository, "modelId": self.repository, "sha": commit, "siblings": siblings}

    def tree(self, commit: str) -> list[dict[str, object]]:
        """Return the response for the tree of a commit."""
        entries = []
        for path in self.commits[commit]:
            size, digest = self.stated(commit, path)
            entry: dict[str, object] = {"type": "file", "path": path, "size": size, "oid": digest}
            if path.endswith(self.lfs):
                entry |= {
                    "oid": "0" * 40,
                    "lfs": {"oid": digest, "size": size, "pointerSize": 134},
                    "xetHash": "f" * 64,
                }
            entries.append(entry)
        return entries

    def stated(self, commit: str, path: str) -> tuple[int, str]:
        """Return the size and digest of a file in the hub's responses: sha256 for a large file, else git's sha1."""
        content = self.commits[commit][path]
        digest = hashlib.sha256(content).hexdigest() if path.endswith(self.lfs) else blob(content)
        return self.sizes.get(path, len(content)), self.digests.get(path, digest)

    def fault(self, path: str, authorization: str | None) -> Fault | None:
        """Return the fault for a request, and count it."""
        for fault in self.faults:
            if fault.on in path and fault.times > 0:
                if fault.unless_token and authorization == f"Bearer {fault.unless_token}":
                    continue
                fault.times -= 1
                return fault
        return None


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: StandinHub
    is_store = False

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        token = self.headers.get("Authorization")
        self.hub.asked.append(Asked(self.command, path, self.headers.get("Range"), token))
        fault = self.hub.fault(path, token)
        if fault and fault.status:
            self._send(fault.status, fault.body.encode(), fault.headers)
        elif self.is_store:
            self._send_content(path.removeprefix("/store/"), fault)
        elif path.startswith(api := f"/api/{self.hub.kind}s/") and "/tree/" in path:
            self._send_json(self.hub.tree(path.partition("/tree/")[2]))
        elif path.startswith(api):
            self._send_listing(path.removeprefix(api))
        elif "/resolve/" in path:
            before = "datasets/" if self.hub.kind == "dataset" else ""
            self._send_file(*path.strip("/").removeprefix(before).split("/resolve/"), fault)
        else:
            self._send(404, b"", {"X-Error-Message": "Sorry, we can't find the page you are looking for."})

    do_HEAD = do_GET

    def _send_listing(self, rest: str) -> None:
        repository, _, revision = rest.partition("/revision/")
        commit = self.hub.branches.get(revision, revision)
        if repository != self.hub.repository:
            # As the hub does for requests without a token.
            self._send(401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif commit not in self.hub.commits:
            message = f"Invalid rev id: {revision}"
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": message})
        else:
            assert parse_qs(urlsplit(self.path).query)["blobs"] == ["true"], "the hub sends sizes and digests only on request"
            self._send_json(self.hub.listing(commit))

    def _send_json(self, data: object) -> None:
        self._send(200, json.dumps(data).encode(), {"Content-Type": "application/json"})

    def _send_file(self, repository: str, rest: str, fault: Fault | None) -> None:
        commit, _, path = rest.partition("/")
        content = self.hub.commits.get(commit, {}).get(path) if repository == self.hub.repository else None
        if content is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
            return
        size, digest = self.hub.stated(commit, path)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{digest}"'}
        if path.endswith(self.hub.lfs):
            where = f"{self.hub.store}/store/{commit}/{path}?X-Amz-Signature=signed-for-you"
            # The hub offers Xet; a client that uses it requests a route that does not exist here.
            refresh = f"/api/models/{repository}/xet-read-token/{commit}"
            headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(size), "X-Xet-Refresh-Route": refresh}
            self._send(302, b"", headers | {"Location": where, "X-Xet-Hash": "f" * 64})
        elif self.command == "HEAD":
            self._send(200, b"", headers | {"Content-Length": str(size)})
        else:
            self._send_body(content, fault)

    def _send_content(self, rest: str, fault: Fault | None) -> None:
        commit, _, path = rest.partition("/")
        self._send_body(self.hub.commits[commit][path], fault)

    def _send_body(self, content: bytes, fault: Fault | None) -> None:
        asked = self.headers.get("Range")
        begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if begin >= len(content) > 0:
            self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            return
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content) - begin))
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if fault is None:
            self.wfile.write(content[begin:])
            return
        self.wfile.write(content[begin : fault.after])
        self.wfile.flush()
        if fault.slow:
            time.sleep(60)
        self.close_connection = True

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def tensors(count: int) -> bytes:
    """Return a safetensors file with one tensor of ``count`` bytes."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}).encode()
    return len(header).to_bytes(8, "little") + header + (bytes(range(256)) * (count // 256 + 1))[:count]


def small_model() -> dict[str, bytes]:
    """Return a typical repository: the weights in three formats, and files that no server needs."""
    return {
        ".gitattributes": b"*.safetensors filter=lfs",
        "README.md": b"# A model",
        "LICENSE": b"free",
        "config.json": b'{"model_type": "qwen3"}',
        "tokenizer.json": b"{}",
        "model.safetensors": tensors(1000),
        "pytorch_model.bin": b"pickle",
        "gguf/model.gguf": b"GGUF",
        "original/consolidated.00.pth": b"pickle",
    }


def blob(content: bytes) -> str:
    """Return git's digest of a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def serving(hub: StandinHub) -> Iterator[StandinHub]:
    """Start the stand-in on two free ports: the hub and its store of large files."""
    servers = [
        ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (_Answers,), {"hub": hub, "is_store": store})) for store in (False, True)
    ]
    hub.address, hub.store = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    threads = []
    for server in servers:
        server.daemon_threads = True
        # Do not wait for threads that hang on purpose.
        server.block_on_close = False
        threads.append(threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True))
        threads[-1].start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
