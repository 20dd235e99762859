"""Whether an archive is as it was sealed: digest, manifest and crate against its files, and who sealed it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from servemark import __version__
from servemark.archive.crate import CRATE, FORMAT, SERVEMARK
from servemark.archive.seal import MANIFEST
from servemark.verification.unpack import Unpacked

_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
NOT_CHECKED = {1: ("report.html (it holds no block of data)", "run.json (it repeats other records)")}
"""What an older format of archives holds that cannot be checked any more."""


class SealedBy(NamedTuple):
    """The version of servemark that sealed an archive, and the archive's format. By default our own."""

    servemark: str = __version__
    format: int = FORMAT

    @property
    def older(self) -> bool:
        """Return whether the archive may lack what today's servemark states: columns of the table, for example."""
        return self != SealedBy()


def check_digest(path: Path) -> list[str]:
    """Return what is wrong with ``FILE.sha256`` next to the archive; nothing where there is none."""
    beside = path.with_name(path.name + ".sha256")
    if not beside.is_file():
        return []
    match = _LINE.match(beside.read_text(encoding="utf-8", errors="replace"))
    if match is None:
        return [f"{beside.name} beside the archive holds no sha256."]
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found == match[1]:
        return []
    return [f"{path.name} is not the file that {beside.name} names: its sha256 is {found}, and {match[1]} was stated."]


def check_manifest(archive: Unpacked) -> list[str]:
    """Return every file that is changed, missing or more than the manifest names, and every tar header that is changed."""
    if MANIFEST not in archive.digests:
        return [f"{MANIFEST} is missing: nothing says which files belong to the archive."]
    stated: dict[str, str] = {}
    wrong = list(archive.headers)
    for number, line in enumerate((archive.folder / MANIFEST).read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None or match[2] in stated:
            what = "names no file" if match is None else f"names {match[2]} again"
            wrong.append(f"{MANIFEST}, line {number}: {what}.")
            continue
        stated[match[2]] = match[1]
    for name in sorted({*stated, *archive.digests} - {MANIFEST}):
        if name not in archive.digests:
            wrong.append(f"{name}: missing; the manifest names it.")
        elif name not in stated:
            wrong.append(f"{name}: extra; the manifest does not name it.")
        elif stated[name] != archive.digests[name]:
            wrong.append(f"{name}: changed; its sha256 is {archive.digests[name]}, and the manifest states {stated[name]}.")
    return wrong


def check_crate(archive: Unpacked) -> tuple[SealedBy, list[str]]:
    """Return who sealed the archive, and every statement of its crate that is not so, one sentence each."""
    if CRATE not in archive.digests:
        return SealedBy(), [f"{CRATE} is missing."]
    try:
        entities = {entity["@id"]: entity for entity in json.loads((archive.folder / CRATE).read_bytes())["@graph"]}
        sealed = SealedBy(str(entities[SERVEMARK]["softwareVersion"]), int(entities["./"].get("schemaVersion", 1)))
        wrong = list(_listed(archive, entities))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return SealedBy(), [f"{CRATE} cannot be read: {type(error).__name__}: {str(error)[:200]}"]
    if sealed.format > FORMAT:
        wrong.append(
            f"The archive has format {sealed.format}, and servemark {__version__} reads formats up to {FORMAT}: check it with "
            f"servemark {sealed.servemark}, which sealed it."
        )
    return sealed, wrong


def _listed(archive: Unpacked, entities: Mapping[str, Any]) -> Iterator[str]:
    files = {unquote(name): entity for name, entity in entities.items() if entity.get("@type") == "File"}
    parts = {unquote(part["@id"]) for part in entities["./"]["hasPart"]}
    for name in sorted(set(archive.digests) - {CRATE} - (set(files) & parts)):
        yield f"{CRATE} does not list {name}."
    for name in sorted((set(files) | parts) - set(archive.digests)):
        yield f"{CRATE} lists {name}, which is not in the archive."
    for name, entity in files.items():
        stated = entity.get("contentSize")
        if name in archive.digests and stated != str(size := (archive.folder / name).stat().st_size):
            yield f"{CRATE}: {name} has {size} bytes, and {stated!r} are stated."
