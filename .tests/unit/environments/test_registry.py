"""The digest of a tag, from a stand-in of a registry: an HTTP server on loopback with the two responses that matter."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from builders.standin_running import free_port
from servemark.environments import registry
from servemark.environments.registry import Reference
from servemark.errors import EnvironmentRefused

DIGEST = "sha256:" + "ab" * 32


class StandinRegistry(BaseHTTPRequestHandler):
    """Requires a token, which anyone gets, for ``private`` repositories; knows the tag ``v1`` only."""

    def do_HEAD(self):
        self.server.seen.append((self.path, self.headers.get("Accept", "")))
        if "locked" in self.path and self.headers.get("Authorization") != "Bearer t-1":
            address = f"http://{self.headers['Host']}/token"
            self.reply(401, {"WWW-Authenticate": f'Bearer realm="{address}",service="standin",scope="repository:locked:pull"'})
        elif self.path.endswith("/v1"):
            self.reply(200, {"Docker-Content-Digest": DIGEST})
        else:
            self.reply(404, {})

    def do_GET(self):
        self.server.seen.append((self.path, ""))
        self.reply(200, {"Content-Type": "application/json"}, b'{"token": "t-1"}')

    def reply(self, code, headers, body=b""):
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def standin():
    with ThreadingHTTPServer(("127.0.0.1", 0), StandinRegistry) as server:
        server.seen = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def name(server, rest):
    return f"docker://127.0.0.1:{server.server_port}/{rest}"


def test_tag_becomes_a_digest(standin):
    reference = Reference.parse(name(standin, "org/vllm:v1"))
    assert registry.resolve("k", reference) == DIGEST
    path, accepted = standin.seen[0]
    assert path == "/v2/org/vllm/manifests/v1" and "image.index.v1+json" in accepted and "manifest.list.v2+json" in accepted
    assert reference.pinned(DIGEST) == f"127.0.0.1:{standin.server_port}/org/vllm@{DIGEST}"
    assert reference.enroot(DIGEST) == f"docker://127.0.0.1:{standin.server_port}#org/vllm:{DIGEST}"
    assert Reference.parse("docker://vllm/vllm-openai:v1").enroot(DIGEST) == f"docker://registry-1.docker.io#vllm/vllm-openai:{DIGEST}"


def test_registry_that_wants_a_token_gets_one(standin):
    assert registry.resolve("k", Reference.parse(name(standin, "locked/vllm:v1"))) == DIGEST
    assert [path.partition("?")[0] for path, _ in standin.seen] == [
        "/v2/locked/vllm/manifests/v1",
        "/token",
        "/v2/locked/vllm/manifests/v1",
    ]
    assert "service=standin" in standin.seen[1][0] and "scope=repository" in standin.seen[1][0]


def test_unknown_tag_is_refused(standin):
    with pytest.raises(EnvironmentRefused) as refused:
        registry.resolve("environments.x.container.image", Reference.parse(name(standin, "org/vllm")))
    assert refused.value.reason == "image_unresolved" and "environments.x.container.image" in refused.value.what
    assert "404" in refused.value.what and "@sha256:" in refused.value.do


def test_registry_that_does_not_respond_is_refused():
    with pytest.raises(EnvironmentRefused) as refused:
        registry.resolve("k", Reference.parse(f"docker://127.0.0.1:{free_port()}/org/vllm:v1"))
    assert refused.value.reason == "image_unresolved"


def test_image_with_a_digest_needs_no_registry():
    assert registry.resolve("k", Reference.parse(f"docker://127.0.0.1:{free_port()}/org/vllm@{DIGEST}")) == DIGEST


@pytest.mark.parametrize(
    ("text", "host", "repository", "tag"),
    [
        ("docker://debian", "docker.io", "library/debian", "latest"),
        ("docker://vllm/vllm-openai:v0.32.0", "docker.io", "vllm/vllm-openai", "v0.32.0"),
        ("docker://docker.io/vllm/vllm-openai:v1", "docker.io", "vllm/vllm-openai", "v1"),
        ("docker://localhost/a:b", "localhost", "a", "b"),
        ("docker://quay.example:8443/a/b/c:d", "quay.example:8443", "a/b/c", "d"),
    ],
)
def test_names(text, host, repository, tag):
    assert Reference.parse(text) == Reference(host, repository, tag, None)


@pytest.mark.parametrize(
    ("host", "loopback"), [("localhost:5000", True), ("127.0.0.1:5000", True), ("docker.io", False), ("10.0.0.1", False)]
)
def test_loopback(host, loopback):
    assert Reference(host, "a", "b", None).on_loopback is loopback
