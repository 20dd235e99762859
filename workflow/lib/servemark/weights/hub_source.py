"""``hf:ORG/NAME@REVISION``: a model of the hub as the configuration names it, and the files of its repository that a server needs."""

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from servemark.weights import hub_refusals
from servemark.weights.files_read import READ, TOKENIZER_FILES, is_weights, loaded

PREFIX = "hf:"
DEFAULT_REVISION = "main"
# Names on the hub have no dashes or dots at their ends, nor two in a row (huggingface_hub/utils/_validators.py).
_PART = r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_REPOSITORY = re.compile(rf"{_PART}/{_PART}")
_REVISION = re.compile(r"(?!.*(?:\.\.|//))[A-Za-z0-9_](?:[A-Za-z0-9._/+-]{0,198}[A-Za-z0-9_+-])?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
SINGLE = "model.safetensors"
LICENCE = re.compile(r"(LICEN[CS]E|NOTICE|USE_POLICY)[^/]*")


@dataclass(frozen=True)
class HubSource:
    """A repository and one of its revisions: a branch, a tag or a commit. ``kind``: as the hub names it."""

    repository: str
    revision: str = DEFAULT_REVISION
    kind: Literal["model", "dataset"] = "model"

    @property
    def commit(self) -> str | None:
        """The revision if it is a whole commit; None for a branch, a tag or a shortened commit."""
        return self.revision if is_commit(self.revision) else None

    @property
    def folder(self) -> str:
        """The repository as one part of a path. No name of the hub has two dashes in a row."""
        return self.repository.replace("/", "--")

    def stated(self, commit: str) -> str:
        """Return the source for a manifest: the configured revision and its commit."""
        asked = f"{PREFIX}{self.repository}@{self.revision}"
        return asked if self.revision == commit else f"{asked} (commit {commit})"


def is_commit(text: str) -> bool:
    """Return whether ``text`` is a whole commit: 40 hexadecimal digits."""
    return _COMMIT.fullmatch(text) is not None


def parse(source: str) -> HubSource | None:
    """Read ``hf:ORG/NAME`` or ``hf:ORG/NAME@REVISION``; return None for other text. The default revision is ``main``."""
    if not source.startswith(PREFIX):
        return None
    repository, at, revision = source.removeprefix(PREFIX).partition("@")
    if not _REPOSITORY.fullmatch(repository) or (at and not _REVISION.fullmatch(revision)):
        return None
    return HubSource(repository, revision or DEFAULT_REVISION)


@dataclass(frozen=True)
class RemoteFile:
    """A file as the hub lists it: path, size in bytes, and digest (sha256 of a file in large-file storage, else git's sha1)."""

    path: str
    size: int
    digest: str

    def matches(self, path: Path, sha256: str) -> bool:
        """Return whether the file ``path`` with this sha256 has the listed digest."""
        if len(self.digest) == 64:
            return sha256 == self.digest
        content = path.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() == self.digest


def choose(source: HubSource, listed: Collection[str], shards: Collection[str] | None, *, dummy: bool = False) -> list[str]:
    """Return the sorted paths that a server needs, the licence and, without ``dummy``, one form of the safetensors weights.

    The weights are the shards of the index, else ``model.safetensors``, else the result of :func:`loaded`.

    Args:
        shards: the paths that the index names; None without an index.

    Raises:
        WeightsRefused: config.json, tokenizer, safetensors or a shard is missing, or a path leaves the folder.
    """
    weights = [] if dummy else loaded(listed, [SINGLE] if SINGLE in listed and shards is None else shards)
    wanted = (path for path in listed if READ.fullmatch(path) or LICENCE.fullmatch(path))
    others = [path for path in wanted if not (dummy and is_weights(path))]
    chosen = sorted({*weights, *others})
    for reason, missing in {
        "config_missing": [] if "config.json" in listed else ["config.json"],
        "tokenizer_missing": [] if set(listed) & set(TOKENIZER_FILES) else TOKENIZER_FILES,
        "weights_missing": [] if dummy or weights else ["*.safetensors"],
        "shard_missing": sorted(set(weights) - set(listed)),
    }.items():
        if missing:
            raise hub_refusals.refused(source, reason, f"missing: {', '.join(missing[:6])}")
    # Manifests leave hidden files out, so servemark would not hash these.
    if unsafe := [path for path in chosen if "\\" in path or any(part[:1] in ("", ".") for part in path.split("/"))]:
        raise hub_refusals.refused(source, "link_leaves_directory", unsafe[0])
    return chosen
