"""The end of a job, and the message for one that did not succeed. Pure functions."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from snakemake_executor_plugin_slurm_guarded.errors import GuardedError
from snakemake_executor_plugin_slurm_guarded.queries import Job
from snakemake_executor_plugin_slurm_guarded.terms import TERMS

LOST = "LOST"
STUCK = "STUCK"
_AGAIN = "Run the same command again to go on; finished work is kept."


@dataclass(frozen=True)
class End:
    """How a job ended.

    Attributes:
        state: Slurm's word, or LOST (nobody knows the job any more) or STUCK (it does not leave COMPLETING).
        success: whether the work was done; for LOST, whether all of its outputs are there.
        view: the job as Slurm listed it last.
        by: name of the user who cancelled it, where accounting tells.
    """

    job: str
    label: str
    log: str
    state: str
    success: bool
    view: Job
    by: str | None = None


def explain(end: End) -> GuardedError:
    """Return the error for a job that did not succeed."""
    what, do = _explain(end, end.view)
    return GuardedError(f"{end.label} (job {end.job}): {what}.", look=end.log or None, do=do, reason=f"slurm_{end.state.lower()}")


def _explain(end: End, job: Job) -> tuple[str, str]:
    after = f" after {clock(job.elapsed_s)}" if job.elapsed_s else " before it had started"
    on = f" on {job.nodes}" if job.nodes else ""
    # A reason that only repeats the state is none.
    repeats = job.reason in ("", "None", "NonZeroExitCode", "TimeLimit")
    because = "" if repeats else f": Slurm gives the reason {job.reason}"
    support = f"Tell the cluster's support if it happens again. {_AGAIN}"
    match end.state:
        case "CANCELLED":
            by = f" by user {end.by}" if end.by else ""
            return f"cancelled{by}{after}{because}", f"If that was not meant, ask {end.by or 'whoever did it'}. {_AGAIN}"
        case "TIMEOUT":
            limit = f" of {minutes(job.limit_min)}" if job.limit_min else ""
            return f"ran into its time limit{limit}{on}", f"Ask for more time, or just go on. {_AGAIN}"
        case "DEADLINE":
            return "could not have ended before its deadline", f"Remove --deadline from {TERMS['extra']}."
        case "PREEMPTED":
            what = f"preempted{after}{on}: a job of higher priority took its place"
            return what, f"Ask for a partition or QOS that is not preempted. {_AGAIN}"
        case "NODE_FAIL":
            node = f"one of the nodes {job.nodes}" if any(mark in job.nodes for mark in "[,") else f"node {job.nodes}"
            return f"{node if job.nodes else 'a node'} failed{after}", support
        case "BOOT_FAIL" | "LAUNCH_FAILED" | "RECONFIG_FAIL":
            return f"Slurm could not start it{on} ({end.state}){because}", support
        case "OUT_OF_MEMORY":
            do = f"Ask for more memory ({TERMS['memory']}), or for whole nodes."
            return f"ran out of the node's memory that it was given{after}{on}", do
        case "REVOKED":
            return "taken away by Slurm's federation: another cluster has started it", "Submit to one cluster only."
        case "FAILED":
            how = f"failed with exit code {'unknown' if job.exit_code is None else job.exit_code}"
            return f"{f'ended by {_signal(job.signal)}' if job.signal else how}{after}{on}{because}", "Read the cause in the log."
        case "LOST":
            what = "Slurm does not know it any more, and its outputs are not all there"
            return what, f"See the log for how far it came. {_AGAIN}"
        case "STUCK":
            what = f"ended, but Slurm does not get it off the node{on}"
            return what, f"Tell the cluster's support: the job hangs in COMPLETING. {_AGAIN}"
    return f"ended in state {end.state}{after}{on}{because}", _AGAIN


def _signal(number: int) -> str:
    names = [one.name for one in signal.Signals if one == number]
    return f"signal {number} ({names[0]})" if names else f"signal {number}"


def clock(seconds: float | None) -> str:
    """Return seconds as ``0:42``, ``12:05``, ``3:12:05``."""
    hours, rest = divmod(int(seconds or 0), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def minutes(value: float) -> str:
    """Return minutes as ``2 min``, ``1 h 30 min``."""
    hours, rest = divmod(round(value), 60)
    return " ".join([f"{hours} h"] * bool(hours) + [f"{rest} min"] * bool(rest or not hours))
