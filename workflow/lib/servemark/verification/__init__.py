"""Check an archive: whether it is as it was sealed, and whether its figures are those of its per-request results.

Works offline, from the archive alone. It proves that no file was lost or changed since the archive was sealed, that the crate lists
these very files, and that records, table and the data of the page state what the per-request results give. It does not prove who
sealed the archive: compare its identity, the sha256 of its manifest, with the one that the sender gives.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servemark import __version__
from servemark.archive.crate import FORMAT
from servemark.archive.seal import MANIFEST
from servemark.errors import ServemarkError
from servemark.report import formatting, gather, table
from servemark.report.gather import RunRecords
from servemark.verification import sealed, stated
from servemark.verification.recount import RECORD, recount
from servemark.verification.sealed import NOT_CHECKED, SealedBy
from servemark.verification.stated import Difference, compare_rows, lines
from servemark.verification.unpack import unpacked

_COUNTED = frozenset(
    {
        *table.FIGURES,
        *(f"{metric}_count" for metric in formatting.METRICS),
        *("duration_s", "total_input_tokens", "total_output_tokens", "requests_completed", "requests_failed"),
    }
)


class NoSuchFile(ServemarkError):
    """No file has the given name."""

    exit_code = 2
    default_reason = "no_such_file"


@dataclass(frozen=True)
class Verification:
    """The result of a check.

    Attributes:
        identity: sha256 of the archive's manifest.
        wrong: everything that should not be so, one sentence each.
        not_checked: what an archive of an older version states less, or otherwise, than today's.
    """

    run: str
    identity: str
    sealed_by: SealedBy
    files: int
    measurements: int
    figures: int
    wrong: tuple[str, ...]
    not_checked: tuple[str, ...]

    def summary(self) -> str:
        """Return what was checked, in two lines; of an older archive in a third what was not."""
        text = (
            f"  files    {self.files} against {MANIFEST}, whose sha256 is the archive's identity: {self.identity}\n"
            f"  figures  {self.figures} of {formatting.plural(self.measurements, 'measurement').replace(chr(0xA0), ' ')} of run "
            f"{formatting.printable(self.run)}, recomputed from per-request results"
        )
        if self.not_checked:
            text += (
                f"\n  sealed   by servemark {formatting.printable(self.sealed_by.servemark)} in archive format {self.sealed_by.format}; "
                f"this is servemark {__version__}, format {FORMAT}. Not checked: {', '.join(self.not_checked)}"
            )
        return text


def absent(path: Path) -> str:
    """Return why ``path`` is no file that can be read: a folder, a pipe or device, or nothing."""
    if os.path.isdir(path):
        return "is a folder, not an archive"
    return "is a pipe or a device, not an archive" if os.path.lexists(path) else "does not exist"


def verify(path: Path) -> Verification:
    """Check an archive against its own manifest, and its figures against its own per-request results.

    Raises:
        NoSuchFile: there is no such file.
        Unsafe: it is no archive, damaged, or unsafe to unpack; nothing of it was checked.
    """
    if not os.path.isfile(path):
        raise NoSuchFile(f"{path} {absent(path)}.", do="Give the .tar.zst file, e.g. results/RUN/archive/RUN.tar.zst.")
    with unpacked(path) as archive:
        sealed_by, wrong = sealed.check_crate(archive)
        wrong = [*sealed.check_digest(path), *sealed.check_manifest(archive), *wrong]
        found = gather.read(archive.folder)
        wrong += [error.what.replace(f"{archive.folder}/", "") for error in found.wrong]
        rows: list[dict[str, Any]] = []
        results: list[Difference | str] = []
        try:
            for result in _compared(found, sealed_by, rows):
                results.append(result)
        except ServemarkError as error:
            results.append(error.what)
        # Records that fit their types may still hold what no table or page can be made of.
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            results.append(f"The figures cannot all be recomputed: {type(error).__name__}: {str(error)[:200]}")
        wrong += [item for item in results if isinstance(item, str)]
        wrong += [f"{name}: planned, and no record of it is in the archive." for name in found.missing]
        # The one place that forgives an older archive: it may state less than today's, but nothing else.
        differ = [item for item in results if isinstance(item, Difference)]
        lacking = [item for item in differ if item.lacking and sealed_by.older]
        older = [f"{item.where} (it states no {item.path[-1]})" for item in lacking]
        wrong += lines([item for item in differ if not (item.lacking and sealed_by.older)])
        return Verification(
            run=found.run,
            identity=archive.digests.get(MANIFEST, "(no manifest)"),
            sealed_by=sealed_by,
            files=len(archive.digests),
            measurements=len(rows),
            figures=sum(value is not None for row in rows for name, value in row.items() if name in _COUNTED),
            wrong=_printable(*wrong),
            not_checked=_printable(*NOT_CHECKED.get(sealed_by.format, ()), *older),
        )


def _printable(*texts: str) -> tuple[str, ...]:
    """Return every text once, as one line that cannot steer a terminal."""
    return tuple(dict.fromkeys(formatting.printable(" ".join(text.split())) for text in texts))


def _compared(found: RunRecords, sealed_by: SealedBy, rows: list[dict[str, Any]]) -> Iterator[Difference | str]:
    """Yield what is wrong with the figures of records, table and page; fill ``rows`` with the recomputed table."""
    recomputed, differences = recount(found)
    yield from differences
    accounts = list(found.accounts.values())
    expected = table.tidy(recomputed, accounts)
    rows += table.rows(expected)
    yield from compare_rows(RECORD, table.rows(table.tidy(found.measurements, accounts)), rows)
    yield from stated.compare_tables(found.folder, expected)
    if sealed_by.format >= 2:
        yield from stated.compare_page(found, recomputed)
