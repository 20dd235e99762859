"""What each kind of file in an archive is: its media type, and a sentence for a reader who has never seen one."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path, PurePosixPath

import yaml


@cache
def _kinds() -> tuple[dict[str, str], list[tuple[re.Pattern[str], str]]]:
    kinds = yaml.safe_load((Path(__file__).parent / "kinds.yaml").read_text(encoding="utf-8"))
    return kinds["media_types"], [(re.compile(pattern), text) for pattern, text in kinds["sentences"].items()]


def media_type(name: str) -> str:
    """Return the file's encodingFormat, by its name."""
    return _kinds()[0].get(PurePosixPath(name).suffix, "text/plain")


def sentence(name: str) -> str:
    """Return what the file is."""
    return next((text for pattern, text in _kinds()[1] if pattern.fullmatch(name)), "File of the run")
