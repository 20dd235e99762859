"""Why a job waits: the meaning of Slurm's reasons, and the message for one job. Pure functions.

The codes are those of squeue(1), "JOB REASON CODES", and of Slurm's page job_reason_codes, up to Slurm 25.05.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from snakemake_executor_plugin_slurm_guarded.terms import TERMS


class Reason(NamedTuple):
    """One row of the table; ``do`` and ``meaning`` are filled from :data:`TERMS`.

    Attributes:
        pattern: regular expression for the beginning of Slurm's text; the first row that fits counts.
        meaning: why the job does not start.
        do: what to do; empty where waiting is all.
        never: whether the job cannot start with this request and these limits.
    """

    pattern: str
    meaning: str
    do: str = ""
    never: bool = False


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
        # Somebody holds it.
        (r"JobHeldUser\b", "it is held by its owner or by an account coordinator", "Release it: `scontrol release {job}`."),
        (r"JobHeldAdmin\b|JobHoldMaxRequeue\b|launch failed|job requeued in held state",
         "it is held, by an administrator or after starts that failed; only they can release it", _ASK),
        # What it waits for by its own request.
        (r"BeginTime\b", "its earliest start time (--begin, or the pause after a requeue) is not reached"),
        (r"DependencyNeverSatisfied\b", "it depends on a job whose end does not allow it to start",
         _STOP + "--dependency of {extra}" + _AGAIN, True),
        (r"Dependency\b", "it depends on a job that has not ended"),
        (r"DeadLine\b", "it cannot end before its deadline", _STOP + "--deadline of {extra}" + _AGAIN, True),
        (r"Licenses\b", "all licenses that it asks for are in use", "See `scontrol show licenses`."),
        (r"ReservationDeleted\b|ReservationInvalid\b", "its reservation does not exist any more", _STOP + "{reservation}" + _AGAIN, True),
        (r"Reservation\b", "its reservation has not begun, or has no free node", "See `scontrol show reservation`."),
        (r"BurstBuffer", "it waits for the burst buffer"),
        (r"JobArrayTaskLimit\b", "its job array has reached its limit of running tasks"),
        # Request and account.
        (r"InvalidAccount\b|AccountNotAllowed\b", "its account is not valid for this partition",
         _STOP + "{account} or {partition}" + _AGAIN, True),
        (r"InvalidQOS\b|QOSNotAllowed\b", "its QOS is not valid for this account or partition", _STOP + "{qos}" + _AGAIN, True),
        (r"BadConstraints\b|Constraints\b", "no node of the cluster fits its request, or its nodes are down",
         _NODES_BACK + "{constraint}, {gres} or {partition}" + _AGAIN),
        (r"MaxMemPerLimit\b", "it asks for more memory for each CPU or node than Slurm allows", _STOP + "{memory}" + _AGAIN, True),
        # Limits of the QOS and of the association (user and account). What one job exceeds by itself stays exceeded.
        (r"(QOSMax|AssocMax)\w*(PerJob|PerNode)|QOSMin\w+|(QOS|Association)TimeLimit\b", "this one job is beyond a limit of its {limit}",
         f"{_LIMITS} " + _STOP + "{nodes}, {time}, {qos} or {account}" + _AGAIN, True),
        (r"(QOSGrp|AssocGrp)\w*Minutes", "the compute budget of its {limit} is used up, or running jobs have claimed the rest",
         f"{_LIMITS} {_ASK}"),
        (r"QOSGrp|QOSMax|QOSJobLimit\b|QOSResourceLimit\b|QOSUsageThreshold\b|AssocGrp|AssocMax|Association(Job|Resource)Limit\b"
         r"|Max\w+PerAccount|AccountingPolicy\b",
         "a limit of its {limit} is reached by other jobs; it starts when they have ended, unless the request alone is beyond the limit",
         _LIMITS),
        # The system.
        (r"Cleaning\b|Prolog\b|FedJobLock\b|SchedDefer\b|PowerNotAvail\b|PowerReserved\b", "Slurm prepares or defers it"),
        (r"JobLaunchFailure\b|SystemFailure\b", "Slurm could not start it", _ASK),
    )
)  # fmt: skip


def code(said: str) -> str:
    """Return Slurm's reason without its changing parts, such as node names and counts. Empty while there is none."""
    found = re.split(r"[:(]", said, maxsplit=1)[0].strip()
    return "" if found in ("None", "WaitingForScheduling") else found


def find(said: str) -> Reason | None:
    """Return the row for a reason in Slurm's words; None for one that the table lacks."""
    return next((row for row in TABLE if re.match(row.pattern, said.strip(), re.IGNORECASE)), None)


def in_words(said: str) -> str:
    """Return the meaning of a reason, followed by Slurm's own text."""
    row = find(said)
    if row is None:
        return f"Slurm's reason is {said}"
    limit = "QOS" if "QOS" in said or said.startswith("Max") else "account"
    return f"{row.meaning.format(limit=limit)} (Slurm's reason: {said})"


def sentence(label: str, job: str, said: str) -> str:
    """Return the message for the waiting job ``label`` with the id ``job``: why, whether that can clear, what to do."""
    row = find(said)
    message = f"{label} (job {job}) waits in the queue: {in_words(said)}."
    if row is None:
        return f"{message} See JOB REASON CODES in `man squeue`."
    if row.never:
        message += " With this request and these limits the job cannot start."
    return message + (f"\n  what to do: {row.do.format(job=job, **TERMS)}" if row.do else "")
