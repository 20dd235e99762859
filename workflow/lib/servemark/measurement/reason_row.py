"""A reason: its code, which severity it gives a verdict, what it means, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from servemark.records import Reason

Severity = Literal["SUSPECT", "INVALID"]


@dataclass(frozen=True)
class Row:
    """One reason.

    Attributes:
        code: as in records, tables and reports.
        severities: which a verdict can give it; the first one is the usual one. Empty for failures and refusals.
        meaning: what happened, in one sentence.
        remedy: what to do; None if the message that comes with it states that.
        outside: it comes from outside and has no bearing on the load point, which is measured again however often that happens.
    """

    code: str
    severities: tuple[Severity, ...]
    meaning: str
    remedy: str | None = None
    outside: bool = False

    def found(self, detail: str, severity: Severity | None = None) -> Reason:
        """Return the reason as a verdict holds it, with its usual severity or another one that it may have.

        Raises:
            ValueError: it never has this severity.
        """
        chosen = severity or self.severities[0]
        if chosen not in self.severities:
            raise ValueError(f"{self.code} is never {chosen}")
        return Reason(code=self.code, severity=chosen, detail=detail)


def rows(*severities: Severity, outside: bool = False, **meanings: str | tuple[str, str | None]) -> dict[str, Row]:
    """Return rows by code, from the meaning of each, or meaning and remedy."""
    pairs = {code: (given, None) if isinstance(given, str) else given for code, given in meanings.items()}
    return {code: Row(code, severities, meaning, remedy, outside) for code, (meaning, remedy) in pairs.items()}
