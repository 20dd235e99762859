"""Read ``reasons.yaml``: why a load point is SUSPECT or INVALID, why a stage failed, why servemark refused something."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from servemark.files.yaml_data import read_yaml
from servemark.records import Reason

Severity = Literal["SUSPECT", "INVALID"]

DEFAULT_REMEDY = "Read the logs of this attempt, fix the cause and rerun the same command."
AGAIN = "To measure the point again, run `servemark remeasure RUN DEPLOYMENT/POINT`, then rerun the command of the run."
_SEVERITIES: dict[str, tuple[Severity, ...]] = {
    "invalid": ("INVALID",),
    "invalid_or_suspect": ("INVALID", "SUSPECT"),
    "suspect": ("SUSPECT",),
}


@dataclass(frozen=True)
class Row:
    """One reason.

    Attributes:
        code: name in records, tables and reports.
        severities: severities that a verdict can give it, the usual one first. Empty for failures and refusals.
        meaning: what happened, in one sentence.
        remedy: what to do; None if each message with this code states it.
        outside: the cause lies outside the load point, so servemark always measures the point again.
        since: archive format that introduced the reason. Older archives are judged without it.
    """

    code: str
    severities: tuple[Severity, ...]
    meaning: str
    remedy: str | None = None
    outside: bool = False
    since: int = 1


def _read() -> dict[str, Row]:
    return {
        code: Row(
            code, _SEVERITIES.get(group, ()), outside=group == "outside", **(given if isinstance(given, dict) else {"meaning": given})
        )
        for group, rows in read_yaml(Path(__file__).with_suffix(".yaml")).items()
        for code, given in rows.items()
    }


TABLE = _read()
OUTSIDE = frozenset(row.code for row in TABLE.values() if row.outside)


def remedy(code: str) -> str:
    """Return what to do about a reason; a general sentence if the table has none."""
    row = TABLE.get(code)
    return (row and row.remedy) or DEFAULT_REMEDY


MORE_TIME = remedy("out_of_time")


def reason(code: str, detail: str, severity: Severity | None = None) -> Reason:
    """Return a reason for a verdict, with its usual severity or another one that the table allows.

    Raises:
        ValueError: the table does not allow this severity.
    """
    allowed = TABLE[code].severities
    if (severity or allowed[0]) not in allowed:
        raise ValueError(f"{code} is never {severity}")
    return Reason(code=code, severity=severity or allowed[0], detail=detail)
