"""Read the records of an archive whose files and facts agree, without recomputing its results."""

import re
from pathlib import Path

from servemark.archive.seal import MANIFEST
from servemark.report import gather
from servemark.report.gather import RunRecords
from servemark.verification import sealed
from servemark.verification.unpack import unpacked
from servemark.verification.whole_archive import contradictions, printable, refused

_TIMELINE = re.compile(r"deployments/[^/]+/attempts/[^/]+/timelines/")


def opened(path: Path) -> tuple[RunRecords, str]:
    """Return the records of an archive and its identity, the sha256 of its manifest.

    Digests, manifest and crate are checked, and every fact that the archive states twice, as by ``verification.verify``. Its results stay
    as recorded, the latencies in the trials of a search included: recomputing them takes longer than all other checks together. The files
    of the archive are deleted on return.

    Raises:
        NoSuchFile: ``path`` is not a regular file.
        Unsafe: the file is not an archive, is damaged, or is unsafe to unpack.
        ServemarkError: the archive contradicts itself.
    """
    with unpacked(path, _needed) as archive:
        sealed_by, wrong = sealed.check_crate(archive)
        wrong = [*sealed.check_digest(path), *sealed.check_manifest(archive), *wrong]
        found = gather.read(archive.folder)
        wrong += [error.what.replace(f"{archive.folder}/", "") for error in found.wrong]
        wrong += [finding for finding in contradictions(found, sealed_by, {}) if isinstance(finding, str)]
        wrong += [f"{name}: planned, but the archive contains no record of it." for name in found.missing]
        if wrong:
            raise refused(path, printable(*wrong))
        return found, archive.digests[MANIFEST]


def _needed(name: str) -> bool:
    """Return whether a file is read: per-request results and timelines are most files of a large archive, and decide nothing here."""
    return not name.endswith(".requests.json") and not _TIMELINE.match(name)
