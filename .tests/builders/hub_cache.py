"""A model as the Hugging Face cache holds it: each file once, under its digest, and a snapshot of links to them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from builders.standin_hub import blob
from servemark.weights import builtin

REPOSITORY, COMMIT = "Org/Tiny-1B", "0123456789abcdef0123456789abcdef01234567"


def make(cache: Path) -> Path:
    """Return the snapshot's folder below ``cache``. As in a cache, a blob's name is a sha256 for weights, else git's sha1."""
    repository = cache / f"models--{REPOSITORY.replace('/', '--')}"
    snapshot, blobs = repository / "snapshots" / COMMIT, repository / "blobs"
    for folder in (snapshot, blobs, repository / "refs"):
        folder.mkdir(parents=True)
    builtin.make("tiny-dense", cache / "made")
    for file in (cache / "made").iterdir():
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest() if file.suffix == ".safetensors" else blob(content)
        file.rename(blobs / digest)
        (snapshot / file.name).symlink_to(f"../../blobs/{digest}")
    (cache / "made").rmdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return snapshot
