"""The reference page of all reasons, written from the table and from the catalogue of causes that logs show."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from servemark import diagnosis
from servemark.measurement import reasons

PAGE = "docs/reference/reasons.md"


def write(root: Path) -> None:
    """Write the page below ``root``, the top folder of a checkout."""
    path = root / PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(), encoding="utf-8")


def text() -> str:
    """Return the page as Markdown."""
    rows = reasons.TABLE.values()
    verdicts = ((row.code, " or ".join(row.severities), row.meaning, row.remedy or "") for row in rows if row.severities)
    outside = ((row.code, row.meaning, row.remedy or "The message states it.") for row in rows if row.outside)
    failures = ((row.code, row.meaning) for row in rows if not row.severities and not row.outside)
    logs = ((row.reason, row.cause, row.remedy) for row in diagnosis.catalogue())
    return f"""# Reasons

<!-- Written by `make generate` from measurement/reasons.yaml and diagnosis/catalogue.yaml. -->

Records, tables, reports and messages name these codes.

Some codes, such as `port_taken`, stand in two tables: servemark finds the problem itself, or a log of vLLM, Ray or Slurm shows it.

## Verdicts on a load point

{_table(("code", "verdict", "meaning", "what to do"), verdicts)}

## From outside

These reasons do not depend on the load point. servemark always measures the point again.

{_table(("code", "meaning", "what to do"), outside)}

## Failures that a log explains

{_table(("code", "cause", "what to do"), logs)}

## Other failures and refusals

The message states what to do.

{_table(("code", "meaning"), failures)}
"""


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *(line((f"`{code}`", *cells)) for code, *cells in rows)])
