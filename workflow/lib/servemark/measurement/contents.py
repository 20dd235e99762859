"""Files and folders that options and variables name: the ledger key holds the digest of their content in place of their path.

A draft model, a chat template, a folder of tuned kernels or a preloaded library decides results by its content. So its path may change
without a new key, and a change of its content gives a new one. A path that does not exist where the plan is made, or that this user may not
read, stays in the key as text.

Not by content: places (``PLACE_OPTIONS``, ``variables/table.py``), and folders that servers write (:data:`WRITTEN`): their content changes
with each run.
"""

import fnmatch
import functools
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from servemark.errors import StageFailed
from servemark.files import content
from servemark.files.content import Hashes
from servemark.measurement.key import PLACE_OPTIONS
from servemark.variables import table
from servemark.weights.files_read import is_document

WRITTEN = (
    "*[-_]dir", "*[-_]cache", "*cache[-_]path*", "*cache[-_]root*", "*storage*", "*disk*", "*offload*", "*dump*", "*profil*", "*trace*",
    "*output*", "log-*", "*[-_]log*", "allowed-local-media-path",
)  # fmt: skip
"""Names of options, their parts and variables whose folder servers write, or requests read: patterns as of fnmatch(3), lower case."""
# Several paths in one value: LD_PRELOAD, PYTHONPATH, `name=path` of LoRA modules.
_SEPARATORS = re.compile(r"([:;,=\s]+)")
# "bfloat16" is no path, even if such a file exists here. vLLM takes a name with a slash from the disk before it asks the hub.
_LIKE_A_PATH = re.compile(r"/|\.[A-Za-z]\w*$")

_LARGE = 2**30
"""Bytes that take a second or more."""


def digests(options: Mapping[str, Any], variables: Mapping[str, str], cache: Path, *, keep: bool) -> dict[str, str]:
    """Return the digest of the content of each existing path in options and variables that counts by its content.

    Args:
        variables: the deployment's, the cluster's and inherited ones.
        cache: the cache folder of the configuration, which remembers the digests of files.
        keep: write there.

    Raises:
        OSError: a file cannot be read, for another reason than its permissions.
    """
    found = {path: _digest(path, cache, keep=keep) for path in dict.fromkeys(_paths(options, variables))}
    return {path: digest for path, digest in found.items() if digest}


def verify(planned: Mapping[str, str], cache: Path) -> None:
    """Compare files and folders with the contents of the plan.

    Raises:
        StageFailed: one was changed or is missing, so results would get a wrong ledger key.
    """
    changed = [path for path, digest in planned.items() if _digest(path, cache, keep=True) != digest]
    if changed:
        raise StageFailed(
            f"Changed or missing since the plan was made: {', '.join(changed)}. Options or variables of the deployment name it.",
            look=changed[0],
            do="Rerun the same command: servemark plans for the new content. If the path does not exist on this node, use a shared disk.",
            reason="content_changed",
        )


@functools.cache
def _hashes(cache: Path, path: str) -> Hashes:
    """Return one memory for each path: Snakemake asks for a rule's parameters several times."""
    return Hashes(cache, path)


def _digest(path: str, cache: Path, *, keep: bool) -> str | None:
    hashes = _hashes(cache.absolute(), path)
    # A README in a draft model's folder is as little read as one in the model's.
    wanted = _is_no_document if os.path.isfile(os.path.join(path, "config.json")) else None
    said: list[str] = []

    def tell(read: int) -> None:
        if read > _LARGE and not said:
            said.append(path)
            print(f"servemark: hashing {path}, which an option or a variable names", file=sys.stderr)

    found = content.of_path(path, hashes, wanted, tell)
    if keep:
        hashes.save()
    return found


def _is_no_document(name: str) -> bool:
    return not is_document(name)


def by_content(values: Mapping[str, Any], contents: Mapping[str, str]) -> dict[str, Any]:
    """Return options or variables for the ledger key, each path in ``contents`` replaced by ``sha256:`` and its digest."""
    return {name: _replaced(value, contents) if _counts(name) else value for name, value in values.items()}


def _paths(options: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[str]:
    for name, value in (*options.items(), *variables.items()):
        if _counts(name):
            yield from filter(_is_path, _texts(value))


def _counts(name: str) -> bool:
    """Return whether the content behind an option's or a variable's value decides results."""
    if name == name.upper():
        row = table.row(name)
        return row.key and row.content and not _is_written(name)
    kebab = name.lstrip("-").replace("_", "-")
    return kebab not in PLACE_OPTIONS and not _is_written(kebab)


def _is_written(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in WRITTEN)


def _is_path(text: str) -> bool:
    return bool(_LIKE_A_PATH.search(text)) and text != "/" and os.path.exists(text)


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a value that may be paths: whole ones, and absolute paths in lists."""
    value = _parsed(value)
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not _is_written(str(name)):
                yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value
        yield from (part for part in _SEPARATORS.split(value) if part.startswith("/") and part != value)


def _replaced(value: Any, contents: Mapping[str, str]) -> Any:
    parsed = _parsed(value)
    if isinstance(parsed, Mapping):
        new: Any = {name: inner if _is_written(str(name)) else _replaced(inner, contents) for name, inner in parsed.items()}
        return value if new == parsed else new
    if isinstance(parsed, list | tuple):
        new = [_replaced(inner, contents) for inner in parsed]
        return value if new == list(parsed) else new
    if not isinstance(value, str):
        return value
    if value in contents:
        return f"sha256:{contents[value]}"
    parts = _SEPARATORS.split(value)
    return "".join(f"sha256:{contents[part]}" if part.startswith("/") and part in contents else part for part in parts)


def _parsed(value: Any) -> Any:
    """Return the object or list in an option's JSON text; any other value as it is."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value
