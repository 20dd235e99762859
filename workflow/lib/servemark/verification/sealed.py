"""Compare an archive's files with its digest, its manifest and its crate."""

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from servemark import __version__
from servemark.archive.crate import FORMAT, SERVEMARK
from servemark.archive.seal import MANIFEST
from servemark.report import formatting
from servemark.report.gather import CRATE
from servemark.verification.unpack import Unpacked

_NAMED = 3
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_NEWER_CHECKS = "checks of measurements that format 3 introduced"
_OVERTAKEN = "requests_overtaken (a check that format 5 introduced)"
NOT_CHECKED = {
    1: ("report.html (it holds no block of data)", "run.json (it repeats other records)", _NEWER_CHECKS, _OVERTAKEN),
    2: (_NEWER_CHECKS, _OVERTAKEN),
    3: (_OVERTAKEN,),
    4: (_OVERTAKEN,),
}
"""What this version does not check in an archive of an older format."""


class SealedBy(NamedTuple):
    """The version of servemark that sealed an archive, and the archive's format. The defaults are this version's own."""

    servemark: str = __version__
    format: int = FORMAT

    @property
    def older(self) -> bool:
        """Return whether the archive may lack what this version writes, such as columns of the table."""
        return self != SealedBy()


def check_digest(path: Path) -> list[str]:
    """Return the problem found with ``FILE.sha256`` next to the archive; an empty list if there is no such file."""
    checksum = path.with_name(path.name + ".sha256")
    if not checksum.is_file():
        return []
    match = _LINE.match(checksum.read_text(encoding="utf-8", errors="replace"))
    if match is None:
        return [f"{checksum.name} contains no sha256."]
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found == match[1]:
        return []
    return [f"{path.name} has sha256 {found}, but {checksum.name} states {match[1]}."]


def check_manifest(archive: Unpacked) -> list[str]:
    """Return one sentence for each changed, missing or extra file, and then one for all changed tar headers."""
    if MANIFEST not in archive.digests:
        return [f"{MANIFEST} is missing, so no file can be checked."]
    stated: dict[str, str] = {}
    wrong: list[str] = []
    for number, line in enumerate((archive.folder / MANIFEST).read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None or match[2] in stated:
            what = "no file and sha256" if match is None else f"{match[2]} is named twice"
            wrong.append(f"{MANIFEST}, line {number}: {what}.")
            continue
        stated[match[2]] = match[1]
    for name in sorted({*stated, *archive.digests} - {MANIFEST}):
        if name not in archive.digests:
            wrong.append(f"{name}: missing; the manifest names it.")
        elif name not in stated:
            wrong.append(f"{name}: extra; the manifest does not name it.")
        elif stated[name] != archive.digests[name]:
            wrong.append(f"{name}: changed; its sha256 is {archive.digests[name]}, but the manifest states {stated[name]}.")
    return wrong + _headers(archive.headers)


def _headers(changed: Mapping[str, str]) -> list[str]:
    """Return one sentence with the first changed tar headers. Packing an archive again changes all of them."""
    if not changed:
        return []
    named = [f"{name} ({how})" for name, how in itertools.islice(changed.items(), _NAMED)]
    more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
    return [f"{formatting.plural(len(changed), 'tar header')} changed: {', '.join(named)}{more}."]


def check_crate(archive: Unpacked) -> tuple[SealedBy, list[str]]:
    """Return the version that sealed the archive, and one sentence for each wrong statement of its crate."""
    if CRATE not in archive.digests:
        return SealedBy(), [f"{CRATE} is missing."]
    try:
        entities = {entity["@id"]: entity for entity in json.loads((archive.folder / CRATE).read_bytes())["@graph"]}
        sealed = SealedBy(str(entities[SERVEMARK]["softwareVersion"]), int(entities["./"].get("schemaVersion", 1)))
        wrong = list(_listed(archive, entities))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        return SealedBy(), [f"{CRATE} cannot be read: {type(error).__name__}: {str(error)[:200]}"]
    if sealed.format > FORMAT:
        wrong.append(
            f"The archive has format {sealed.format}, but servemark {__version__} supports formats up to {FORMAT}. Check it with "
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
        if name in archive.digests and stated != str(size := archive.sizes[name]):
            yield f"{CRATE}: {name} has {size} bytes, but {stated!r} is stated."
