"""Errors a user can act on: each says what happened, where to look and what to do next."""

from __future__ import annotations


class ServemarkError(Exception):
    """A condition the user can understand and change; shown without a traceback.

    Args:
        what: what happened, one or more sentences.
        look: the file or log to look at, if there is one.
        do: what to do next.
        reason: a stable snake_case code for records and tests, e.g. ``port_taken``.
    """

    exit_code = 1
    default_reason = "error"

    def __init__(self, what: str, *, look: str | None = None, do: str | None = None, reason: str | None = None):
        self.what = what
        self.look = look
        self.do = do
        self.reason = reason or self.default_reason
        super().__init__(self.message())

    def message(self) -> str:
        """The full text: what happened, then where to look, then what to do."""
        lines = [self.what]
        if self.look:
            lines.append(f"  look at: {self.look}")
        if self.do:
            lines.append(f"  what to do: {self.do}")
        return "\n".join(lines)


class ConfigError(ServemarkError):
    """The configuration cannot be used; nothing was started."""

    exit_code = 2
    default_reason = "bad_config"


class RunLocked(ServemarkError):
    """Another run of this checkout is alive."""

    exit_code = 2
    default_reason = "run_locked"


class EnvironmentRefused(ServemarkError):
    """No environment can be built or used as asked."""

    default_reason = "environment_refused"


class WeightsRefused(ServemarkError):
    """A model's files are missing, changed, truncated or of a refused kind."""

    default_reason = "weights_refused"


class PlanRefused(ServemarkError):
    """The topology cannot serve this model on this hardware."""

    default_reason = "plan_refused"


class StageFailed(ServemarkError):
    """A stage of a deployment failed; recorded as a gap, the rest of the run goes on.

    Args:
        quote: the log lines that state the cause, verbatim.
    """

    default_reason = "stage_failed"

    def __init__(self, what: str, *, quote: tuple[str, ...] = (), **rest):
        self.quote = tuple(quote)
        super().__init__(what, **rest)
