"""Slurm's reasons for a job that waits, in words: a table, and the sentence for one job. Pure functions.

The codes are those of squeue(1), "JOB REASON CODES", and of Slurm's page job_reason_codes, up to Slurm 25.05.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Clears(Enum):
    """What ends the wait."""

    BY_ITSELF = "by itself"
    BY_YOU = "when you act"
    BY_OTHERS = "when an administrator acts"
    NEVER = "never"


@dataclass(frozen=True)
class Reason:
    """One row of the table.

    Attributes:
        pattern: regular expression for the beginning of Slurm's text; the first row that fits counts.
        clears: what ends the wait.
        meaning: why the job does not start.
        do: what the user can do; empty where waiting is all.
    """

    pattern: str
    clears: Clears
    meaning: str
    do: str = ""


_ASK = "Ask the cluster's administrators."
_CHANGE = "Interrupt this run (Ctrl-C), change {}, and run the same command again. Finished measurements are kept."
_NODES_BACK = "See `sinfo -R`. If its nodes are down, Slurm starts the job when they are back. Otherwise:"
_LIMITS = "See `sacctmgr show assoc user=$USER` and `sacctmgr show qos`."

TABLE = (
    # The nodes.
    Reason(r"Resources\b", Clears.BY_ITSELF, "the nodes are in use; it starts when enough of them are free"),
    Reason(r"Priority\b", Clears.BY_ITSELF, "other jobs have a higher priority"),
    Reason(
        r"ReqNodeNotAvail,? *Reserved for maintenance|ReservedForMaint",
        Clears.BY_ITSELF,
        "its nodes are reserved, for maintenance or for other users; it starts when the reservation ends",
        "See `scontrol show reservation`. A shorter time limit may fit before the reservation.",
    ),
    Reason(
        r"ReqNodeNotAvail|Nodes required for job|NodeDown\b|FrontEndDown\b",
        Clears.BY_OTHERS,
        "the nodes that it needs are down, drained or reserved",
        "See `sinfo -R` for the cause. Slurm starts the job when the nodes are back.",
    ),
    # The partition.
    Reason(
        r"PartitionDown\b|PartitionInactive\b",
        Clears.BY_OTHERS,
        "its partition starts no jobs now",
        "See `scontrol show partition`. Slurm starts the job when the partition is UP.",
    ),
    Reason(
        r"PartitionTimeLimit\b",
        Clears.NEVER,
        "its time limit is longer than its partition allows",
        _CHANGE.format("max_minutes or partition in the cluster file"),
    ),
    # squeue(1): "Can also indicate that required nodes are DOWN or DRAINED."
    Reason(
        r"PartitionNodeLimit\b",
        Clears.BY_OTHERS,
        "it needs more nodes than its partition allows, or its nodes are down",
        f"{_NODES_BACK} " + _CHANGE.format("topology.nodes, or partition in the cluster file"),
    ),
    Reason(
        r"PartitionConfig\b",
        Clears.NEVER,
        "it needs more nodes, or more of a node, than its partition allows",
        _CHANGE.format("topology.nodes, or partition in the cluster file"),
    ),
    # Somebody holds it.
    Reason(
        r"JobHeldUser\b",
        Clears.BY_YOU,
        "it is held by its owner or by an account coordinator",
        "Release it: `scontrol release {job}`.",
    ),
    Reason(
        r"JobHeldAdmin\b|JobHoldMaxRequeue\b|launch failed|job requeued in held state",
        Clears.BY_OTHERS,
        "it is held, by an administrator or after starts that failed; only they can release it",
        _ASK,
    ),
    # What it waits for by its own request.
    Reason(
        r"BeginTime\b",
        Clears.BY_ITSELF,
        "its earliest start time (--begin, or the pause after a requeue) is not reached",
    ),
    Reason(
        r"DependencyNeverSatisfied\b",
        Clears.NEVER,
        "it depends on a job whose end does not allow it to start",
        _CHANGE.format("extra in the cluster file (--dependency)"),
    ),
    Reason(r"Dependency\b", Clears.BY_ITSELF, "it depends on a job that has not ended"),
    Reason(
        r"DeadLine\b",
        Clears.NEVER,
        "it cannot end before its deadline",
        _CHANGE.format("extra in the cluster file (--deadline)"),
    ),
    Reason(
        r"Licenses\b", Clears.BY_ITSELF, "all licenses that it asks for are in use", "See `scontrol show licenses`."
    ),
    Reason(
        r"ReservationDeleted\b|ReservationInvalid\b",
        Clears.NEVER,
        "its reservation does not exist any more",
        _CHANGE.format("reservation in the cluster file"),
    ),
    Reason(
        r"Reservation\b",
        Clears.BY_ITSELF,
        "its reservation has not begun, or has no free node",
        "See `scontrol show reservation`.",
    ),
    Reason(r"BurstBuffer", Clears.BY_ITSELF, "it waits for the burst buffer"),
    Reason(r"JobArrayTaskLimit\b", Clears.BY_ITSELF, "its job array has reached its limit of running tasks"),
    # Request and account.
    Reason(
        r"InvalidAccount\b|AccountNotAllowed\b",
        Clears.NEVER,
        "its account is not valid for this partition",
        _CHANGE.format("account or partition in the cluster file"),
    ),
    Reason(
        r"InvalidQOS\b|QOSNotAllowed\b",
        Clears.NEVER,
        "its QOS is not valid for this account or partition",
        _CHANGE.format("qos in the cluster file"),
    ),
    Reason(
        r"BadConstraints\b|Constraints\b",
        Clears.BY_OTHERS,
        "no node of the cluster fits its request, or its nodes are down",
        f"{_NODES_BACK} " + _CHANGE.format("constraint, gpu_type, gpus_per_node or partition in the cluster file"),
    ),
    Reason(
        r"MaxMemPerLimit\b",
        Clears.NEVER,
        "it asks for more memory for each CPU or node than Slurm allows",
        _CHANGE.format("the memory in the cluster file"),
    ),
    # Limits of the QOS and of the association (user and account). What one job exceeds by itself stays exceeded.
    Reason(
        r"(QOSMax|AssocMax)\w*(PerJob|PerNode)|QOSMin\w+|(QOS|Association)TimeLimit\b",
        Clears.NEVER,
        "this one job is beyond a limit of its {limit}",
        f"{_LIMITS} " + _CHANGE.format("topology.nodes, max_minutes, qos or account"),
    ),
    Reason(
        r"(QOSGrp|AssocGrp)\w*Minutes",
        Clears.BY_OTHERS,
        "the compute budget of its {limit} is used up, or running jobs have claimed the rest",
        f"{_LIMITS} {_ASK}",
    ),
    Reason(
        r"QOSGrp|QOSMax|QOSJobLimit\b|QOSResourceLimit\b|QOSUsageThreshold\b|AssocGrp|AssocMax|Association(Job|Resource)Limit\b"
        r"|Max\w+PerAccount|AccountingPolicy\b",
        Clears.BY_ITSELF,
        "a limit of its {limit} is reached by other jobs; it starts when they have ended, unless the request alone is beyond the limit",
        _LIMITS,
    ),
    # The system.
    Reason(
        r"Cleaning\b|Prolog\b|FedJobLock\b|SchedDefer\b|PowerNotAvail\b|PowerReserved\b",
        Clears.BY_ITSELF,
        "Slurm prepares or defers it",
    ),
    Reason(r"JobLaunchFailure\b|SystemFailure\b", Clears.BY_OTHERS, "Slurm could not start it", _ASK),
)
# Slurm has not looked at the job yet.
_UNDECIDED = ("", "None", "WaitingForScheduling", "(null)")


def code(said: str) -> str:
    """Slurm's reason without what changes from look to look: node names, counts. Empty while there is none."""
    said = said.strip()
    return "" if said in _UNDECIDED else re.split(r"[:(]", said, maxsplit=1)[0].strip()


def find(said: str) -> Reason | None:
    """The row for a reason in Slurm's words; None for one that the table lacks."""
    return next((row for row in TABLE if re.match(row.pattern, said.strip(), re.IGNORECASE)), None)


def in_words(said: str) -> str:
    """Return the meaning of a reason with Slurm's own text behind it."""
    row = find(said)
    if row is None:
        return f"Slurm's reason is {said}"
    limit = "QOS" if "QOS" in said or said.startswith("Max") else "account"
    return f"{row.meaning.format(limit=limit)} (Slurm's reason: {said})"


def sentence(label: str, job: str, said: str) -> str:
    """The message for a job that waits: why, whether that can clear, what to do.

    Args:
        label: of the job, for messages.
        said: Slurm's reason.
    """
    row = find(said)
    lines = [f"{label} (job {job}) waits in the queue: {in_words(said)}."]
    if row is None:
        return f"{lines[0]} See JOB REASON CODES in `man squeue`."
    if row.clears is Clears.NEVER:
        lines[0] += " With this request and these limits the job cannot start."
    if row.do:
        lines.append(f"  what to do: {row.do.format(job=job)}")
    return "\n".join(lines)
