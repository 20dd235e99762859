"""Read from an archive what a run of the same experiment needs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from servemark import verification
from servemark.archive.seal import MANIFEST
from servemark.errors import ServemarkError
from servemark.report import gather
from servemark.report.gather import RunRecords
from servemark.verification import sealed
from servemark.verification.unpack import unpacked

_KEPT = ("config.json", "hardware.json")
_KEPT_FOLDERS = ("envs", "environments", "models")
_DATASET = re.compile(r"datasets/[^/]+/(dataset\.json|prompts\.jsonl)")


class CannotReproduce(ServemarkError):
    """The archive or the folder cannot be used; nothing was written."""

    exit_code = 2
    default_reason = "cannot_reproduce"


@dataclass(frozen=True)
class Archived:
    """The records of a verified archive.

    ``files``: the content of configuration, lock files, manifests and shared prompts, by name in the archive.
    """

    records: RunRecords
    identity: str
    files: Mapping[str, bytes]


def read(path: Path) -> Archived:
    """Verify an archive as ``servemark verify`` does, and return what a run of the same experiment needs.

    Raises:
        CannotReproduce: the file is not an archive, is unsafe to unpack, or does not verify.
    """
    try:
        verified = verification.verify(path)
        if verified.wrong:
            raise verification.refused(path, verified.wrong)
        with unpacked(path, _needed) as archive:
            # Another process may have replaced the file since it was verified.
            if (wrong := sealed.check_manifest(archive)) or archive.digests.get(MANIFEST) != verified.identity:
                raise verification.refused(path, wrong or ["The file was replaced while servemark read it."])
            records = gather.read(archive.folder)
            if records.wrong:
                raise records.wrong[0]
            files = {name: (archive.folder / name).read_bytes() for name in sorted(archive.digests) if _is_kept(name)}
    except ServemarkError as error:
        raise CannotReproduce(error.what, look=error.look, do=error.do, reason=error.reason) from None
    return Archived(records, verified.identity, files)


def _needed(name: str) -> bool:
    """Return whether a file is read. Measurements and timelines decide nothing here."""
    return "/points/" not in name and "/timelines/" not in name


def _is_kept(name: str) -> bool:
    top, _, rest = name.partition("/")
    return name in _KEPT or (top in _KEPT_FOLDERS and bool(rest)) or _DATASET.fullmatch(name) is not None
