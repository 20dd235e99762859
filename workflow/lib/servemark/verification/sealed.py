"""Whether an archive's files are those that its manifest names, and the archive the one that its digest names."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from servemark.archive.seal import MANIFEST
from servemark.verification.unpack import Unpacked

_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def check_digest(path: Path) -> list[str]:
    """Return what is wrong with ``FILE.sha256`` beside the archive; nothing where there is none."""
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
    text = (archive.folder / MANIFEST).read_text(encoding="utf-8", errors="replace")
    stated: dict[str, str] = {}
    wrong = list(archive.headers)
    for number, line in enumerate(text.splitlines(), 1):
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
