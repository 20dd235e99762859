"""What an archive says of itself in ro-crate-metadata.json: who sealed it, and which files it holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from servemark import __version__
from servemark.archive.crate import CRATE, FORMAT, SERVEMARK
from servemark.verification.unpack import Unpacked

_NOT_CHECKED = {1: ("report.html (it holds no block of data)", "run.json (it repeats other records)")}
"""What an older format of archives holds that cannot be checked any more."""


@dataclass(frozen=True)
class SealedBy:
    """The version of servemark that sealed an archive, and the archive's format. By default our own."""

    servemark: str = __version__
    format: int = FORMAT

    @property
    def older(self) -> bool:
        """Whether the archive may lack what today's servemark states: columns of the table, for example."""
        return (self.servemark, self.format) != (__version__, FORMAT)

    @property
    def not_checked(self) -> tuple[str, ...]:
        """Files of the archive's format that are not checked."""
        return _NOT_CHECKED.get(self.format, ())

    @property
    def has_block(self) -> bool:
        """Whether the page holds a block of data."""
        return self.format >= 2


def check_crate(archive: Unpacked) -> tuple[SealedBy, list[str]]:
    """Return who sealed the archive, and every statement of its crate that is not so, one sentence each."""
    if CRATE not in archive.digests:
        return SealedBy(), [f"{CRATE} is missing."]
    try:
        graph = json.loads((archive.folder / CRATE).read_bytes())["@graph"]
        entities = {entity["@id"]: entity for entity in graph}
        sealed = SealedBy(str(entities[SERVEMARK]["softwareVersion"]), int(entities["./"].get("schemaVersion", 1)))
        wrong = list(_files(archive, entities))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return SealedBy(), [f"{CRATE} cannot be read: {type(error).__name__}: {str(error)[:200]}"]
    if sealed.format > FORMAT:
        wrong.append(
            f"The archive has format {sealed.format}, and servemark {__version__} reads formats up to {FORMAT}: check it with "
            f"servemark {sealed.servemark}, which sealed it."
        )
    return sealed, wrong


def _files(archive: Unpacked, entities: Mapping[str, Any]) -> Iterator[str]:
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
