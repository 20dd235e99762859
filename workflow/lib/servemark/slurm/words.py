"""What became of a job, in words: what happened and what to do. Pure functions."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from servemark.errors import ServemarkError

LOST = "LOST"
STUCK = "STUCK"


@dataclass(frozen=True)
class End:
    """How a job ended.

    Attributes:
        state: Slurm's word, or LOST (nobody knows the job any more) or STUCK (it does not leave COMPLETING).
        success: whether the work was done; for LOST, whether all of its outputs are there.
        by: name of the user who cancelled it, where accounting tells.
        elapsed_s: seconds that it ran; None or 0 when it never started.
    """

    job: str
    label: str
    state: str
    success: bool
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    nodes: str = ""
    by: str | None = None
    elapsed_s: float | None = None
    queue_wait_s: float | None = None
    limit_min: float | None = None
    log: str = ""


_GO_ON = "Run the same command again to go on; finished measurements are kept."


def explain(end: End) -> ServemarkError:
    """The message for a job that did not succeed."""
    what, do = _explain(end)
    return ServemarkError(
        f"{end.label} (job {end.job}): {what}.", look=end.log or None, do=do, reason=f"slurm_{end.state.lower()}"
    )


def _explain(end: End) -> tuple[str, str]:
    after = f" after {clock(end.elapsed_s)}" if end.elapsed_s else " before it had started"
    on = f" on {end.nodes}" if end.nodes else ""
    match end.state:
        case "CANCELLED":
            by = f" by user {end.by}" if end.by else ""
            return (
                f"cancelled{by}{after}{_because(end)}",
                f"If that was not meant, ask {end.by or 'who did it'}. {_GO_ON}",
            )
        case "TIMEOUT":
            limit = f" of {minutes(end.limit_min)}" if end.limit_min else ""
            return f"ran into its time limit{limit}{on}", f"Ask for more time, or just go on. {_GO_ON}"
        case "DEADLINE":
            return "could not have ended before its deadline", "Take --deadline out of the extra options of sbatch."
        case "PREEMPTED":
            return (
                f"preempted{after}{on}: a job of higher priority took its place",
                f"Ask for a partition or QOS that is not preempted. {_GO_ON}",
            )
        case "NODE_FAIL":
            several = any(mark in end.nodes for mark in "[,")
            failed = f"{'one of the nodes' if several else 'node'} {end.nodes} failed" if end.nodes else "a node failed"
            return f"{failed}{after}", f"Tell the cluster's support if it happens again. {_GO_ON}"
        case "BOOT_FAIL" | "LAUNCH_FAILED" | "RECONFIG_FAIL":
            return (
                f"Slurm could not start it{on} ({end.state}{_because(end, '; ')})",
                f"Tell the cluster's support. {_GO_ON}",
            )
        case "OUT_OF_MEMORY":
            return (
                f"ran out of the node's memory that it was given{after}{on}",
                "Ask for more memory, or for whole nodes.",
            )
        case "REVOKED":
            return "taken away by Slurm's federation: another cluster has started it", "Submit to one cluster only."
        case "FAILED":
            how = f"ended by {_signal(end.signal)}" if end.signal else f"failed with exit code {_or(end.exit_code)}"
            return f"{how}{after}{on}{_because(end)}", "The log says what failed in it."
        case "LOST":
            return (
                "Slurm does not know it any more, and its outputs are not all there",
                f"See the log for how far it came. {_GO_ON}",
            )
        case "STUCK":
            return (
                f"ended, but Slurm does not get it off the node{on}",
                f"Tell the cluster's support: the job hangs in COMPLETING. {_GO_ON}",
            )
    return f"ended in state {end.state}{after}{on}{_because(end)}", _GO_ON


def _because(end: End, before: str = ": ") -> str:
    # A reason that only repeats the state is none.
    return (
        ""
        if end.reason in ("", "None", "NonZeroExitCode", "TimeLimit")
        else f"{before}Slurm gives the reason {end.reason}"
    )


def _or(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _signal(number: int | None) -> str:
    try:
        return f"signal {number} ({signal.Signals(number or 0).name})"
    except ValueError:
        return f"signal {number}"


def clock(seconds: float | None) -> str:
    """``0:42``, ``12:05``, ``3:12:05``."""
    whole = int(seconds or 0)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def minutes(value: float) -> str:
    """``2 min``, ``1 h 30 min``."""
    hours, rest = divmod(round(value), 60)
    return " ".join(
        part for part in (f"{hours} h" if hours else "", f"{rest} min" if rest or not hours else "") if part
    )
