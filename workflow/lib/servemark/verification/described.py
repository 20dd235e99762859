"""Whether an archive is what its run record and its crate's metadata say of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from servemark import __version__
from servemark.archive.description import CRATE, RUN_RECORD, compile_run
from servemark.archive.seal import MANIFEST, Digest
from servemark.errors import ServemarkError
from servemark.records import Run
from servemark.report import formatting
from servemark.verification.unpack import Unpacked

MOST = 10
"""Differences of the run record that are told; one changed file may cause many."""


def check_description(archive: Unpacked) -> list[str]:
    """Every statement of run.json and ro-crate-metadata.json that is not so, one sentence each."""
    digests = {name: Digest(sha256, (archive.folder / name).stat().st_size) for name, sha256 in archive.digests.items()}
    wrong = [*_crate(archive.folder, digests), *_run_record(archive.folder, digests)]
    return [formatting.printable(" ".join(text.split())) for text in wrong]


def _crate(folder: Path, digests: Mapping[str, Digest]) -> Iterator[str]:
    if CRATE not in digests:
        yield f"{CRATE} is missing."
        return
    try:
        graph = json.loads((folder / CRATE).read_bytes())["@graph"]
        entities = {entity["@id"]: entity for entity in graph}
        files = {unquote(name): entity for name, entity in entities.items() if entity.get("@type") == "File"}
        parts = {unquote(part["@id"]) for part in entities["./"]["hasPart"]}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        yield f"{CRATE} cannot be read: {type(error).__name__}: {str(error)[:200]}"
        return
    for name in sorted(set(digests) - {CRATE} - (set(files) & parts)):
        yield f"{CRATE} does not list {name}."
    for name in sorted((set(files) | parts) - set(digests)):
        yield f"{CRATE} lists {name}, which is not in the archive."
    for name, entity in files.items():
        stated = entity.get("contentSize")
        if name in digests and stated != str(digests[name].size):
            yield f"{CRATE}: {name} has {digests[name].size} bytes, and {stated!r} are stated."


def _run_record(folder: Path, digests: Mapping[str, Digest]) -> Iterator[str]:
    if RUN_RECORD not in digests:
        yield f"{RUN_RECORD} is missing."
        return
    described = {name: digest for name, digest in digests.items() if name not in (RUN_RECORD, CRATE, MANIFEST)}
    try:
        stated = Run.read(folder / RUN_RECORD)
        recomputed = compile_run(folder, described)
    except (ServemarkError, ValueError, TypeError, OverflowError, RecursionError) as error:
        told = error.what if isinstance(error, ServemarkError) else f"{type(error).__name__}: {error}"
        yield f"{RUN_RECORD} was not checked: {told.replace(f'{folder}/', '')[:300]}"
        return
    found = list(
        _differences("", stated.model_dump(exclude={"servemark"}), recomputed.model_dump(exclude={"servemark"}))
    )
    yield from (f"{RUN_RECORD}: {text}" for text in found[:MOST])
    if len(found) > MOST:
        yield f"{RUN_RECORD}: {len(found) - MOST} more differences."
    if found and stated.servemark != __version__:
        yield (
            f"{RUN_RECORD} was written by servemark {stated.servemark}, and this is {__version__}: what differs in it alone may be "
            "due to that."
        )


def _differences(place: str, stated: Any, recomputed: Any) -> Iterator[str]:
    """Where two values differ, as a path of keys and positions."""
    if isinstance(stated, dict) and isinstance(recomputed, dict):
        for key in [*recomputed, *(key for key in stated if key not in recomputed)]:
            yield from _differences(f"{place}.{key}" if place else str(key), stated.get(key), recomputed.get(key))
    elif isinstance(stated, (list, tuple)) and isinstance(recomputed, (list, tuple)) and len(stated) == len(recomputed):
        for number, (mine, other) in enumerate(zip(stated, recomputed, strict=True)):
            yield from _differences(f"{place}[{number}]", mine, other)
    elif stated != recomputed:
        yield f"{place}: stated {_short(stated)}, the records give {_short(recomputed)}"


def _short(value: Any) -> str:
    if isinstance(value, (list, tuple)) and any(isinstance(item, dict) for item in value):
        return f"{len(value)} entries"
    return str(value)[:100]
