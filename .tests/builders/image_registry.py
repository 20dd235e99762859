"""A registry of images on 127.0.0.1: Debian's docker-registry. ch-image speaks only https, so it has a self-signed certificate."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import platform
import shutil
import ssl
import subprocess
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2

from builders.standin_running import free_port

PROGRAMS = {"docker-registry": "docker-registry", "openssl": "openssl", "ch-run": "charliecloud", "ch-image": "charliecloud"}
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_START_S = 120.0


def why_unavailable() -> str | None:
    """Return which programs of these tests are missing and what to do, in one line; None if there are all."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    packages = " ".join(sorted({PROGRAMS[program] for program in missing}))
    return f"{', '.join(missing)} missing. Install with: apt-get install {packages}" if missing else None


@dataclass(frozen=True)
class Registry:
    """A running registry; ``address`` is HOST:PORT."""

    address: str
    certificate: Path
    scheme: str = "https"

    def push(self, folder: Path, name: str, tag: str) -> str:
        """Store the files of a folder as an image of one layer under ``name:tag``; return the digest of its manifest."""
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w") as tar:
            tar.add(folder, arcname=".")
        layer = gzip.compress(plain.getvalue(), compresslevel=1, mtime=0)
        config = {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()],
            "os": "linux",
            "config": {"Env": ["PATH=/usr/bin:/bin"]},
            "history": [{"created_by": "servemark's tests"}],
            "rootfs": {"type": "layers", "diff_ids": [_digest(plain.getvalue())]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": self._blob(name, json.dumps(config).encode(), _CONFIG),
            "layers": [self._blob(name, layer, _LAYER)],
        }
        body = json.dumps(manifest).encode()
        with self._client() as client:
            client.put(f"/v2/{name}/manifests/{tag}", content=body, headers={"Content-Type": _MANIFEST}).raise_for_status()
        return _digest(body)

    def _blob(self, name: str, content: bytes, kind: str) -> dict[str, str | int]:
        digest = _digest(content)
        with self._client() as client:
            begun = client.post(f"/v2/{name}/blobs/uploads/")
            begun.raise_for_status()
            where = httpx2.URL(begun.headers["Location"]).copy_merge_params({"digest": digest})
            client.put(where, content=content, headers={"Content-Type": "application/octet-stream"}).raise_for_status()
        return {"mediaType": kind, "size": len(content), "digest": digest}

    def _client(self) -> httpx2.Client:
        return httpx2.Client(base_url=f"{self.scheme}://{self.address}", verify=_unverified(), trust_env=False, timeout=60)

    def responds(self) -> bool:
        """Return whether the registry has started."""
        with self._client() as client:
            try:
                return client.get("/v2/").status_code == 200
            except httpx2.HTTPError:
                return False


@contextlib.contextmanager
def running(folder: Path, *, tls: bool = True) -> Iterator[Registry]:
    """Start a registry on a free port with its files in a folder; end it afterwards. ``tls``: it speaks https, otherwise http."""
    folder.mkdir(parents=True)
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    own = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *own, "-keyout", key, "-out", certificate]
    subprocess.run(made, check=True, capture_output=True)
    address = f"127.0.0.1:{free_port()}"
    configuration = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "store")}},
        "http": {"addr": address, **({"tls": {"certificate": str(certificate), "key": str(key)}} if tls else {})},
    }
    (folder / "config.yml").write_text(json.dumps(configuration))
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", str(folder / "config.yml")], stdout=log, stderr=log)
    registry = Registry(address, certificate, "https" if tls else "http")
    try:
        deadline = time.monotonic() + _START_S
        while not registry.responds():
            assert process.poll() is None and time.monotonic() < deadline, (folder / "registry.log").read_text()
            time.sleep(0.1)
        yield registry
    finally:
        process.terminate()
        process.wait(60)


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
