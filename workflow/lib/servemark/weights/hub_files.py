"""Which files of a repository of the hub are the model, and whether one that was fetched is what the hub states."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from servemark.errors import WeightsRefused
from servemark.weights.manifest import INDEX, TOKENIZER_FILES, is_weights, loaded

BESIDE = (
    "*.json",
    "*.txt",
    "*.model",
    "*.model.v[0-9]*",
    "*.tiktoken",
    "*.jinja",
    "*.py",
    "LICEN[CS]E*",
    "NOTICE*",
    "USE_POLICY*",
    "additional_chat_templates/*.jinja",
)
"""What is fetched beside the weights, by its path in the repository; a star does not reach into a folder."""

SINGLE = "model.safetensors"


@dataclass(frozen=True)
class RemoteFile:
    """A file as the hub states it.

    Attributes:
        size: bytes.
        sha256: of the content, stated for files in large-file storage (weights); None for the rest.
        blob: git's sha1 of the content, stated for the rest.
    """

    path: str
    size: int
    sha256: str | None = None
    blob: str | None = None


@dataclass(frozen=True)
class Listing:
    """A repository at one commit."""

    commit: str
    files: tuple[RemoteFile, ...]


def choose(
    repository: str, files: Iterable[RemoteFile], shards: Collection[str] | None, *, dummy: bool = False
) -> tuple[RemoteFile, ...]:
    """The files that a server needs, sorted by path: the weights once, in safetensors form, and what stands beside them.

    The weights are, by the first that holds:

    1. where there is a ``model.safetensors.index.json``: the shards that it names, and no other;
    2. ``model.safetensors`` alone;
    3. every safetensors file at the top, without ``consolidated*`` where there are others: the same weights once more,
       in Mistral's own layout.

    So other formats of the same weights (pickles, GGUF, ONNX, TensorFlow, Flax), folders such as ``original/`` and the indexes of
    other formats are left out. Beside the weights stands what :data:`BESIDE` names: config, tokenizer, chat templates,
    licence, and Python code, which runs only with ``trust_remote_code``.

    Args:
        shards: the paths that the index names; None without an index.
        dummy: without the weights, and whether there are any or not.

    Raises:
        WeightsRefused: there is no config.json, no tokenizer or no safetensors, a shard of the index is missing, or a path leaves
            the folder.
    """
    there = {file.path: file for file in files}
    _demand("config.json" in there, repository, "config.json", "config_missing")
    tokenizer = any(name in there for name in TOKENIZER_FILES)
    _demand(tokenizer, repository, f"tokenizer ({', '.join(TOKENIZER_FILES)})", "tokenizer_missing")
    # Of several forms, the one file is fetched alone.
    single = [SINGLE] if SINGLE in there and shards is None else shards
    weights = [] if dummy else loaded(set(there), single)
    _demand(dummy or bool(weights), repository, "weights in safetensors form", "weights_missing")
    if missing := sorted(set(weights) - there.keys()):
        _demand(False, repository, f"shard that its {INDEX} names: {', '.join(missing[:5])}", "shard_missing")
    beside = [path for path in there if _stands_beside(path) and not (dummy and is_weights(path))]
    chosen = sorted({*weights, *beside})
    if unsafe := [path for path in chosen if not _stays_inside(path)]:
        raise WeightsRefused(
            f"The repository {repository} names a file that would lie outside of its folder: {unsafe[0]!r}.",
            do="Use another endpoint: no repository of the Hugging Face hub can hold such a name.",
            reason="link_leaves_directory",
        )
    return tuple(there[path] for path in chosen)


def differs(file: RemoteFile, path: Path) -> str | None:
    """What is wrong with the fetched file ``path``: its size or its digest against the one that the hub states; None if nothing is."""
    size = path.stat().st_size
    if size != file.size:
        return f"it has {size} bytes, the hub states {file.size}"
    if file.sha256 is not None:
        kind, stated, digest = "sha256", file.sha256, hashlib.sha256()
    elif file.blob is not None:
        # Git's digest of a file begins with a line of its own.
        kind, stated, digest = "git sha1", file.blob, hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    else:
        return None
    with path.open("rb") as stream:
        while block := stream.read(2**22):
            digest.update(block)
    found = digest.hexdigest()
    return None if found == stated else f"its {kind} is {found}, the hub states {stated}"


def _stands_beside(path: str) -> bool:
    if path.startswith(".") or (path.endswith(".index.json") and path != INDEX):
        return False
    depth = path.count("/")
    return any(pattern.count("/") == depth and fnmatchcase(path, pattern) for pattern in BESIDE)


def _stays_inside(path: str) -> bool:
    # A hidden file would be served and never hashed: manifests leave hidden names out.
    parts = PurePosixPath(path).parts
    return bool(parts) and "\\" not in path and not any(part == "/" or part.startswith(".") for part in parts)


def _demand(fulfilled: bool, repository: str, what: str, reason: str) -> None:
    if not fulfilled:
        raise WeightsRefused(
            f"The repository {repository} has no {what}; nothing was fetched of it.",
            look="the list of its files on the model's page",
            do="Use a complete checkpoint in safetensors form, or make a folder that is complete and give it as `source: DIR`.",
            reason=reason,
        )
