"""Write accepted measurements in the formats of other projects, for their tools and databases."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from servemark.exports import inferencex, llmd
from servemark.exports.point import Point
from servemark.records import Measurement
from servemark.report.gather import RunRecords

FORMATS: dict[str, Callable[[RunRecords, list[Point]], Iterator[tuple[str, Any]]]] = {
    "inferencex": inferencex.documents,
    "llmd-br-0.2.1": llmd.documents,
}
"""Name in the configuration -> function that yields file names and JSON documents."""


def files(found: RunRecords, name: str) -> dict[str, str]:
    """Return the files of one format: name -> text. Only accepted measurements are in them.

    Args:
        found: the collected run, in which loads whose repetitions differ are SUSPECT.
        name: the format, a key of ``FORMATS``.
    """
    accepted = [Point.of(found, record) for record in found.measurements if _accepted(record)]
    return {file: json.dumps(document, indent=1, ensure_ascii=False) + "\n" for file, document in FORMATS[name](found, accepted)}


def _accepted(record: Measurement) -> bool:
    return record.verdict != "INVALID" and record.output_throughput is not None
