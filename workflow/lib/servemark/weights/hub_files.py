"""The files of a hub repository that make up the model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from servemark.weights.hub_refusals import refused
from servemark.weights.hub_source import HubSource
from servemark.weights.manifest import TOKENIZER_FILES, is_weights, loaded

SINGLE = "model.safetensors"
OTHERS = re.compile(
    r"(?!\.|.*\.index\.json$)[^/]*\.(json|txt|model|model\.v[0-9][^/]*|tiktoken|jinja|py)|(LICEN[CS]E|NOTICE|USE_POLICY)[^/]*"
    r"|model\.safetensors\.index\.json|additional_chat_templates/[^/.][^/]*\.jinja"
)
"""Config, tokenizer, chat templates, licence, the index of the weights, and code, which runs only with ``trust_remote_code``."""


@dataclass(frozen=True)
class RemoteFile:
    """A file as the hub lists it: path, size in bytes, and digest: sha256 in large-file storage (weights), else git's sha1."""

    path: str
    size: int
    digest: str

    def matches(self, path: Path, sha256: str) -> bool:
        """Return whether the file ``path``, whose sha256 is known, is this one."""
        if len(self.digest) == 64:
            return sha256 == self.digest
        content = path.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() == self.digest


def choose(source: HubSource, listed: Collection[str], shards: Collection[str] | None, *, dummy: bool = False) -> list[str]:
    """Return the paths that a server needs, sorted: the weights (not with ``dummy``) once, as safetensors, and :data:`OTHERS`.

    The weights are the shards of the index; without an index ``model.safetensors``; else those of :func:`loaded`.

    Args:
        shards: the paths that the index names; None without an index.

    Raises:
        WeightsRefused: config.json, tokenizer, safetensors or a shard is missing, or a path leaves the folder.
    """
    weights = [] if dummy else loaded(listed, [SINGLE] if SINGLE in listed and shards is None else shards)
    others = [path for path in listed if OTHERS.fullmatch(path) and not (dummy and is_weights(path))]
    chosen = sorted({*weights, *others})
    for reason, missing in {
        "config_missing": [] if "config.json" in listed else ["config.json"],
        "tokenizer_missing": [] if set(listed) & set(TOKENIZER_FILES) else TOKENIZER_FILES,
        "weights_missing": [] if dummy or weights else ["*.safetensors"],
        "shard_missing": sorted(set(weights) - set(listed)),
    }.items():
        if missing:
            raise refused(source, reason, f"missing: {', '.join(missing[:6])}")
    # Hidden files would be served without being hashed: manifests leave them out.
    if unsafe := [path for path in chosen if "\\" in path or any(part[:1] in ("", ".") for part in path.split("/"))]:
        raise refused(source, "link_leaves_directory", unsafe[0])
    return chosen
