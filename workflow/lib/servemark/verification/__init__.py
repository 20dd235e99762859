"""The archive as something to hand over: whether it is as it was sealed, and whether its figures are those of its raw results.

Works offline, from the archive alone. What is proved: that no file was lost or changed since the archive was sealed, that
run record and crate describe these very files, and that the table and the page state what the per-request results give.
Who sealed it is not: its identity, the sha256 of its manifest, has to be compared with what the sender says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servemark.archive.seal import MANIFEST
from servemark.errors import ServemarkError
from servemark.report import formatting, table
from servemark.verification import contents, described, differences, page, sealed, tables
from servemark.verification.recount import RECORD, recount
from servemark.verification.unpack import Unpacked, unpacked


class NoSuchFile(ServemarkError):
    """There is nothing to look at under the given name."""

    exit_code = 2
    default_reason = "no_such_file"


@dataclass(frozen=True)
class Verification:
    """What was looked at, and every thing that is wrong with it, one sentence each."""

    run: str
    identity: str
    files: int
    measurements: int
    figures: int
    wrong: tuple[str, ...]

    def summary(self) -> str:
        """What was looked at, in two lines."""
        return (
            f"  files    {self.files} against {MANIFEST}, whose sha256 is the archive's identity: {self.identity}\n"
            f"  figures  {self.figures} of {formatting.plural(self.measurements, 'measurement').replace(chr(0xA0), ' ')} of run "
            f"{formatting.printable(self.run)}, recomputed from per-request results"
        )


def absent(path: Path) -> str:
    """Return why ``path`` is no file that can be read: a folder, a pipe or device, or nothing."""
    if os.path.isdir(path):
        return "is a folder, not an archive"
    return "is a pipe or a device, not an archive" if os.path.lexists(path) else "does not exist"


def verify(path: Path) -> Verification:
    """Check an archive against its own manifest, and its figures against its own per-request results.

    Raises:
        NoSuchFile: there is no such file.
        Unsafe: it is no archive, damaged, or unsafe to unpack; nothing of it was looked at.
    """
    if not os.path.isfile(path):
        raise NoSuchFile(f"{path} {absent(path)}.", do="Give the .tar.zst file, e.g. results/RUN/archive/RUN.tar.zst.")
    with unpacked(path) as archive:
        identity = archive.digests.get(MANIFEST, "(no manifest)")
        wrong = [*sealed.check_digest(path), *sealed.check_manifest(archive), *described.check_description(archive)]
        run, measurements, figures, stated_wrong = _figures(archive)
        return Verification(run, identity, len(archive.digests), measurements, figures, (*wrong, *stated_wrong))


def _figures(archive: Unpacked) -> tuple[str, int, int, list[str]]:
    """The run's name, how many measurements and figures were recomputed, and what is wrong with what is stated."""
    found = contents.read(archive.folder)
    rows: list[dict[str, Any]] = []
    differ: list[differences.Difference] = []
    try:
        for more, wrong, recomputed in _compared(found, archive.scratch):
            differ += more
            found.wrong += wrong
            rows = recomputed
    # Records that fit their types may still hold what no table or page can be made of.
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        found.wrong.append(f"The figures cannot all be recomputed: {type(error).__name__}: {str(error)[:200]}")
    found.wrong += [f"{name}: planned, and no record of it is in the archive." for name in found.missing]
    figures = sum(value is not None for row in rows for name, value in row.items() if name in _COUNTED)
    told = [formatting.printable(" ".join(text.split())) for text in found.wrong]
    return found.run, len(rows), figures, [*told, *differences.lines(differ)]


def _compared(found: contents.Contents, scratch: Path) -> Iterator[_Compared]:
    """Records, table files and page, each: what differs, what is wrong with it, and the recomputed rows of the table."""
    recomputed, differ = recount(found)
    accounts = list(found.accounts.values())
    expected = table.tidy(recomputed, accounts)
    rows = table.rows(expected)
    yield differ, [], rows
    if recomputed:
        yield differences.compare_rows(RECORD, table.rows(table.tidy(found.records, accounts)), rows), [], rows
    yield *tables.compare_csv(found.folder, expected, scratch), rows
    yield *tables.compare_parquet(found.folder, expected), rows
    yield *page.compare_page(found, recomputed), rows


_Compared = tuple[list[differences.Difference], list[str], list[dict[str, Any]]]
_COUNTED = frozenset(
    {
        *table.FIGURES,
        *(f"{metric}_count" for metric in formatting.METRICS),
        *("duration_s", "total_input_tokens", "total_output_tokens", "requests_completed", "requests_failed"),
    }
)
