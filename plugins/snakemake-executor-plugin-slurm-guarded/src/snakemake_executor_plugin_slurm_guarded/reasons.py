"""Why a job waits, and how it ended: Slurm's words, and messages for the user. Pure functions.

The codes come from squeue(1), "JOB REASON CODES", from Slurm's page job_reason_codes, and from the names in its library, up to Slurm 26.05.
"""

import re
import signal
from dataclasses import dataclass
from typing import NamedTuple

from snakemake_executor_plugin_slurm_guarded.errors import TERMS, GuardedError
from snakemake_executor_plugin_slurm_guarded.queries import Job

LOST = "LOST"
STUCK = "STUCK"
_RERUN = "Run the same command again. Finished work is kept."
_SUPPORT = "Tell the cluster's support"
_SIGNALS = {one.value: f" ({one.name})" for one in signal.Signals}


class Reason(NamedTuple):
    """One row of the table."""

    pattern: str  # regular expression for the beginning of Slurm's text; the first matching row counts
    meaning: str  # why the job does not start
    do: str = ""  # what to do, with keys of TERMS; empty if the user can only wait
    never: bool = False  # whether the job cannot start with this request and these limits


_ASK = "Ask the cluster's administrators."
_STOP = "Interrupt this run (Ctrl-C), change "
_AGAIN = " in {place}, and run the same command again. Finished work is kept."
_NODES_BACK = "See `sinfo -R`. If its nodes are down, Slurm starts the job when they are back. Otherwise: " + _STOP
_LIMITS = "See `sacctmgr show assoc user=$USER` and `sacctmgr show qos`."

TABLE = tuple(
    Reason(*row)
    for row in (
        # The nodes.
        (r"Resources\b", "the nodes are in use; it starts when enough of them are free"),
        (r"Priority\b", "other jobs have a higher priority"),
        (r"ReqNodeNotAvail,? *Reserved for maintenance|ReservedForMaint",
         "its nodes are reserved, for maintenance or for other users; it starts when the reservation ends",
         "See `scontrol show reservation`. A shorter time limit may fit before the reservation."),
        (r"ReqNodeNotAvail|Nodes required for job|NodeDown\b|FrontEndDown\b", "the nodes that it needs are down, drained or reserved",
         "See `sinfo -R` for the cause. Slurm starts the job when the nodes are back."),
        # The partition.
        (r"PartitionDown\b|PartitionInactive\b", "its partition starts no jobs now",
         "See `scontrol show partition`. Slurm starts the job when the partition is UP."),
        (r"PartitionTimeLimit\b", "its time limit is longer than its partition allows", _STOP + "{time} or {partition}" + _AGAIN, True),
        # squeue(1): "Can also indicate that required nodes are DOWN or DRAINED."
        (r"PartitionNodeLimit\b", "it needs more nodes than its partition allows, or its nodes are down",
         _NODES_BACK + "{nodes} or {partition}" + _AGAIN),
        (r"PartitionConfig\b", "it needs more nodes, or more of a node, than its partition allows",
         _STOP + "{nodes} or {partition}" + _AGAIN, True),
        # Held jobs.
        (r"JobHeldUser\b", "it is held by its owner or by an account coordinator", "Release it: `scontrol release {job}`."),
        (r"JobHeldAdmin\b|JobHoldMaxRequeue\b|launch failed|job requeued in held state",
         "an administrator holds it, or Slurm does after failed starts; only an administrator can release it", _ASK),
        # Conditions in the job's own request.
        (r"BeginTime\b", "its earliest start time (--begin, or the pause after a requeue) is not reached"),
        (r"DependencyNeverSatisfied\b", "it depends on a job whose end does not allow it to start",
         _STOP + "--dependency of {extra}" + _AGAIN, True),
        (r"Dependency\b", "it depends on a job that has not ended"),
        (r"DeadLine\b", "it cannot end before its deadline", _STOP + "--deadline of {extra}" + _AGAIN, True),
        (r"Licenses\b", "all licenses that it requests are in use", "See `scontrol show licenses`."),
        (r"ReservationDeleted\b|ReservationInvalid\b", "its reservation is deleted or not valid", _STOP + "{reservation}" + _AGAIN, True),
        (r"Reservation\b", "its reservation has not begun, or has no free node", "See `scontrol show reservation`."),
        (r"BurstBuffer", "it waits for the burst buffer"),
        (r"JobArrayTaskLimit\b", "its job array has reached its limit of running tasks"),
        # Request and account.
        (r"InvalidAccount\b|AccountNotAllowed\b", "its account is not valid for this partition",
         _STOP + "{account} or {partition}" + _AGAIN, True),
        (r"InvalidQOS\b|QOSNotAllowed\b", "its QOS is not valid for this account or partition", _STOP + "{qos}" + _AGAIN, True),
        (r"BadConstraints\b|Constraints\b", "no node of the cluster fits its request, or its nodes are down",
         _NODES_BACK + "{constraint}, {gres} or {partition}" + _AGAIN),
        (r"MaxMemPerLimit\b", "it requests more memory for each CPU or node than Slurm allows", _STOP + "{memory}" + _AGAIN, True),
        # Limits of the QOS and of the association (user and account). Waiting does not help if one job exceeds a limit by itself.
        (r"(QOSMax|AssocMax)\w*(PerJob|PerNode)|QOSMin\w+|(QOS|Association)TimeLimit\b", "this job alone exceeds a limit of its {limit}",
         f"{_LIMITS} " + _STOP + "{nodes}, {time}, {qos} or {account}" + _AGAIN, True),
        (r"(QOSGrp|AssocGrp)\w*Minutes", "the compute budget of its {limit} is used up or claimed by running jobs",
         f"{_LIMITS} {_ASK}"),
        (r"QOSGrp|QOSMax|QOSJobLimit\b|QOSResourceLimit\b|QOSUsageThreshold\b|AssocGrp|AssocMax|Association(Job|Resource)Limit\b"
         r"|Max\w+PerAccount|Max\w+RunMinsPerUser\b|AccountingPolicy\b",
         "other jobs have reached a limit of its {limit}; it starts when they have ended, unless it exceeds the limit alone",
         f"{_LIMITS} If it exceeds the limit alone: {_STOP}" "{nodes}, {gres}, {time}, {qos} or {account}" + _AGAIN),
        # The system.
        (r"Cleaning\b|Prolog\b|FedJobLock\b|SchedDefer\b|PowerNotAvail\b|PowerReserved\b", "Slurm is preparing or deferring it"),
        (r"JobLaunchFailure\b|SystemFailure\b", "Slurm could not start it", _ASK),
    )
)  # fmt: skip


def code(said: str) -> str:
    """Return Slurm's reason without its variable parts, such as node names and counts; empty without a reason."""
    found = re.split(r"[:(]", said, maxsplit=1)[0].strip()
    return "" if found in ("None", "WaitingForScheduling") else found


def find(said: str) -> Reason | None:
    """Return the row for a reason in Slurm's words; None if the table has none."""
    return next((row for row in TABLE if re.match(row.pattern, said.strip(), re.IGNORECASE)), None)


def in_words(said: str) -> str:
    """Return the meaning of a reason, followed by Slurm's own text."""
    row = find(said)
    if row is None:
        return f"Slurm's reason is {said}"
    limit = "QOS" if "QOS" in said or said.startswith("Max") else "account"
    return f"{row.meaning.format(limit=limit)} (Slurm's reason: {said})"


def sentence(label: str, job: str, said: str) -> str:
    """Return the message for the waiting job ``label`` with the id ``job``: why it waits, whether it can start, what to do."""
    row = find(said)
    message = f"{label} (job {job}) waits in the queue: {in_words(said)}."
    if row is None:
        return f"{message} See JOB REASON CODES in `man squeue`."
    if row.never:
        message += " With this request and these limits the job cannot start."
    return message + (f"\n  what to do: {row.do.format(job=job, **TERMS)}" if row.do else "")


@dataclass(frozen=True)
class End:
    """How a job ended."""

    job: str
    label: str
    log: str
    state: str  # Slurm's word, or LOST (Slurm does not list the job any more) or STUCK (it does not leave COMPLETING)
    success: bool  # whether the work was done; for LOST, whether all outputs exist
    view: Job  # the job as Slurm listed it last
    by: str | None = None  # name of the user who cancelled it, if accounting has it


def explain(end: End) -> GuardedError:
    """Return the error for a job that did not succeed."""
    job = end.view
    after = f" after {clock(job.elapsed_s)}" if job.elapsed_s else " before it had started"
    on = f" on {job.nodes}" if job.nodes else ""
    # These reasons only repeat the state.
    because = "" if job.reason in ("", "None", "NonZeroExitCode", "TimeLimit") else f": Slurm gives the reason {job.reason}"
    by = f" by user {end.by}" if end.by else ""
    limit = f" of {minutes(job.limit_min)}" if job.limit_min else ""
    node = f"{'one of the nodes' if '[' in job.nodes or ',' in job.nodes else 'node'} {job.nodes}" if job.nodes else "a node"
    how = f"failed with exit code {'unknown' if job.exit_code is None else job.exit_code}"
    if job.signal:
        how = f"ended by signal {job.signal}{_SIGNALS.get(job.signal, '')}"
    not_started = (f"Slurm could not start it{on} ({end.state}){because}", f"{_SUPPORT} if it happens again. {_RERUN}")
    what, do = {
        "CANCELLED": (f"cancelled{by}{after}{because}", f"If you did not intend this, ask {end.by or 'your administrators'}. {_RERUN}"),
        "TIMEOUT": (f"ran into its time limit{limit}{on}", f"{_RERUN} To finish in one job, request more time ({TERMS['time']})."),
        "DEADLINE": ("could not end before its deadline", f"Remove --deadline from {TERMS['extra']}."),
        "PREEMPTED": (
            f"preempted{after}{on}: a job of higher priority took its place",
            f"Use a partition or QOS without preemption. {_RERUN}",
        ),
        "NODE_FAIL": (f"{node} failed{after}", f"{_SUPPORT} if it happens again. {_RERUN}"),
        **dict.fromkeys(("BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"), not_started),
        "OUT_OF_MEMORY": (f"exceeded its allocated memory{after}{on}", f"Request more memory ({TERMS['memory']}) or whole nodes."),
        "REVOKED": ("revoked by Slurm's federation: another cluster started it", "Submit to one cluster only."),
        "FAILED": (f"{how}{after}{on}{because}", "Read the cause in the log."),
        LOST: ("Slurm does not list it any more, and not all of its outputs exist", f"Read in the log how far it came. {_RERUN}"),
        STUCK: (f"ended, but Slurm cannot remove its processes{on}", f"{_SUPPORT} that the job hangs in COMPLETING. {_RERUN}"),
    }.get(end.state, (f"ended in state {end.state}{after}{on}{because}", _RERUN))
    return GuardedError(f"{end.label} (job {end.job}): {what}.", look=end.log or None, do=do, reason=f"slurm_{end.state.lower()}")


def clock(seconds: float | None) -> str:
    """Return seconds as ``0:42``, ``12:05``, ``3:12:05``."""
    hours, rest = divmod(int(seconds or 0), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def minutes(value: float) -> str:
    """Return minutes as ``2 min``, ``1 h 30 min``."""
    hours, rest = divmod(round(value), 60)
    return " ".join([f"{hours} h"] * bool(hours) + [f"{rest} min"] * bool(rest or not hours))
