"""The error that a user can act on."""

from __future__ import annotations


class GuardedError(Exception):
    """Say what happened, where to look and what to do next.

    Args:
        what: what happened, one or more sentences.
        look: the file or log to look at, if there is one.
        do: what to do next.
        reason: a stable snake_case code for records and tests, e.g. ``slurm_refused``.
    """

    default_reason = "slurm_error"

    def __init__(self, what: str, *, look: str | None = None, do: str | None = None, reason: str | None = None):
        self.what = what
        self.look = look
        self.do = do
        self.reason = reason or self.default_reason
        super().__init__(self.message())

    def message(self) -> str:
        """Return the full text: what happened, then where to look, then what to do."""
        lines = [self.what]
        if self.look:
            lines.append(f"  look at: {self.look}")
        if self.do:
            lines.append(f"  what to do: {self.do}")
        return "\n".join(lines)
