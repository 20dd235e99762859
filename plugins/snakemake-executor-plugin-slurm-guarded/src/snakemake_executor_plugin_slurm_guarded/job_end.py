"""The message for a job that did not succeed: what happened and what to do. Pure functions."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from snakemake_executor_plugin_slurm_guarded.errors import GuardedError
from snakemake_executor_plugin_slurm_guarded.terms import TERMS

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


_AGAIN = "Run the same command again to go on; finished work is kept."


def explain(end: End) -> GuardedError:
    """Return the error for a job that did not succeed."""
    what, do = _explain(end)
    return GuardedError(f"{end.label} (job {end.job}): {what}.", look=end.log or None, do=do, reason=f"slurm_{end.state.lower()}")


def _explain(end: End) -> tuple[str, str]:
    after = f" after {clock(end.elapsed_s)}" if end.elapsed_s else " before it had started"
    on = f" on {end.nodes}" if end.nodes else ""
    match end.state:
        case "CANCELLED":
            by = f" by user {end.by}" if end.by else ""
            ask = f"If that was not meant, ask {end.by or 'whoever did it'}. {_AGAIN}"
            return f"cancelled{by}{after}{_because(end)}", ask
        case "TIMEOUT":
            limit = f" of {minutes(end.limit_min)}" if end.limit_min else ""
            return f"ran into its time limit{limit}{on}", f"Ask for more time, or just go on. {_AGAIN}"
        case "DEADLINE":
            return "could not have ended before its deadline", f"Remove --deadline from {TERMS['extra']}."
        case "PREEMPTED":
            what = f"preempted{after}{on}: a job of higher priority took its place"
            return what, f"Ask for a partition or QOS that is not preempted. {_AGAIN}"
        case "NODE_FAIL":
            several = any(mark in end.nodes for mark in "[,")
            failed = f"{'one of the nodes' if several else 'node'} {end.nodes} failed" if end.nodes else "a node failed"
            return f"{failed}{after}", f"Tell the cluster's support if it happens again. {_AGAIN}"
        case "BOOT_FAIL" | "LAUNCH_FAILED" | "RECONFIG_FAIL":
            what = f"Slurm could not start it{on} ({end.state}{_because(end, '; ')})"
            return what, f"Tell the cluster's support. {_AGAIN}"
        case "OUT_OF_MEMORY":
            do = f"Ask for more memory ({TERMS['memory']}), or for whole nodes."
            return f"ran out of the node's memory that it was given{after}{on}", do
        case "REVOKED":
            return "taken away by Slurm's federation: another cluster has started it", "Submit to one cluster only."
        case "FAILED":
            code = "unknown" if end.exit_code is None else end.exit_code
            how = f"ended by {_signal(end.signal)}" if end.signal else f"failed with exit code {code}"
            return f"{how}{after}{on}{_because(end)}", "Read the cause in the log."
        case "LOST":
            what = "Slurm does not know it any more, and its outputs are not all there"
            return what, f"See the log for how far it came. {_AGAIN}"
        case "STUCK":
            what = f"ended, but Slurm does not get it off the node{on}"
            return what, f"Tell the cluster's support: the job hangs in COMPLETING. {_AGAIN}"
    return f"ended in state {end.state}{after}{on}{_because(end)}", _AGAIN


def _because(end: End, before: str = ": ") -> str:
    # A reason that only repeats the state is none.
    repeats = end.reason in ("", "None", "NonZeroExitCode", "TimeLimit")
    return "" if repeats else f"{before}Slurm gives the reason {end.reason}"


def _signal(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def clock(seconds: float | None) -> str:
    """Return seconds as ``0:42``, ``12:05``, ``3:12:05``."""
    hours, rest = divmod(int(seconds or 0), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def minutes(value: float) -> str:
    """Return minutes as ``2 min``, ``1 h 30 min``."""
    hours, rest = divmod(round(value), 60)
    return " ".join([f"{hours} h"] * bool(hours) + [f"{rest} min"] * bool(rest or not hours))
