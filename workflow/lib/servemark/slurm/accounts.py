"""What Slurm says of jobs that have ended, as records: sacct, the controller, and our own journal. Pure functions.

sacct and scontrol print local time without a zone; both are run with :data:`ENVIRONMENT`, so that what is read here is UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from servemark.records import JobAccount
from servemark.slurm.listings import between_s, duration_s
from servemark.slurm.states import State

ENVIRONMENT = {"TZ": "UTC"}

FIELDS = (
    "JobID", "State", "ExitCode", "Reason", "Partition", "Account", "QOS", "NodeList", "AllocTRES", "AllocCPUS", "Submit", "Start",
    "End", "ElapsedRaw", "TimelimitRaw",
)  # fmt: skip


def sacct_argv(job_ids: Iterable[str], since: datetime) -> list[str]:
    """The question to accounting for every start of these jobs (``--duplicates``), requeues included.

    Args:
        since: nothing of these jobs ended before; a cluster that has begun to count its jobs anew has older ones of the same number.
    """
    return [
        "sacct",
        "--allocations",
        "--duplicates",
        "--noheader",
        "--parsable2",
        f"--format={','.join(FIELDS)}",
        f"--starttime={since.astimezone(UTC):%Y-%m-%dT%H:%M:%S}",
        f"--jobs={','.join(job_ids)}",
    ]


def parse_sacct(text: str) -> dict[str, list[JobAccount]]:
    """Read what :func:`sacct_argv` asks for: the starts of each job, oldest first; lines of another shape are passed over.

    Slurm 22.05 does not say which start a line is of; the lines are counted. The components ``ID+0``, ``ID+1`` of a heterogeneous job are
    one start, with the nodes, CPUs and GPUs of all.
    """
    found: dict[str, list[JobAccount]] = {}
    lines = [
        fields
        for line in text.splitlines()
        if len(fields := line.split("|")) == len(FIELDS) and fields[0].replace("+", "", 1).isdigit()
    ]
    for (
        job,
        state,
        code,
        reason,
        partition,
        account,
        qos,
        nodes,
        tres,
        cpus,
        submit,
        start,
        end,
        elapsed,
        limit,
    ) in sorted(lines, key=lambda fields: (fields[10], fields[0])):
        job, _, component = job.partition("+")
        starts = found.setdefault(job, [])
        one = JobAccount(
            job_id=job,
            source="sacct",
            state=State.parse(state).word,
            exit_code=code or None,
            reason=_said(reason),
            partition=_said(partition),
            account=_said(account),
            qos=_said(qos),
            nodes=_nodes(nodes),
            gpus=_gpus(tres) if _nodes(nodes) else 0,
            cpus=int(cpus) if cpus.isdigit() and _nodes(nodes) else 0,
            submitted_at=_utc(submit),
            started_at=_utc(start),
            ended_at=_utc(end),
            queue_wait_s=between_s(submit, start),
            elapsed_s=float(elapsed) if elapsed.isdigit() else None,
            limit_s=60.0 * int(limit) if limit.isdigit() else None,
            restarts=len(starts),
        )
        if component not in ("", "0") and starts:
            starts[-1] = _together(starts[-1], one)
        else:
            starts.append(one)
    return found


def _together(first: JobAccount, other: JobAccount) -> JobAccount:
    """One start of a heterogeneous job: the first component's, with the nodes, CPUs and GPUs of another."""
    sums = {"gpus": (first.gpus or 0) + (other.gpus or 0), "cpus": (first.cpus or 0) + (other.cpus or 0)}
    return first.model_copy(update={"nodes": first.nodes + other.nodes, **sums})


_FIELD = re.compile(r"(?:^|\s)([A-Z][\w:/]*)=(\S*)")


def parse_scontrol(text: str) -> JobAccount | None:
    """Read ``scontrol show job -d ID`` of one job: its last start; None when the text describes no job.

    Of a heterogeneous job it prints every component, and each but the first one twice.
    """
    components = {one.job_id: one for part in _JOB.split(text) if (one := _parse_scontrol(part))}
    return reduce(_together, components.values()) if components else None


_JOB = re.compile(r"^(?=JobId=)", re.MULTILINE)


def _parse_scontrol(text: str) -> JobAccount | None:
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(text):
        # Free text further on (Comment, Command) may hold NAME=VALUE too.
        fields.setdefault(name, value)
    get = fields.get
    if not get("JobId", "").isdigit() or not get("JobState"):
        return None
    state, nodes = State.parse(fields["JobState"]), _nodes(get("NodeList", ""))
    # A job that never had a node has the time of its cancellation for a start; one that still runs, the end of its limit for an end.
    start, end = get("StartTime", "") if nodes else "", get("EndTime", "") if state.ended else ""
    limit = duration_s(get("TimeLimit", ""))
    tres = get("AllocTRES") or get("TRES", "")
    return JobAccount(
        job_id=fields["JobId"],
        source="scontrol",
        state=state.word,
        exit_code=get("ExitCode") or None,
        reason=_said(get("Reason", "")),
        partition=_said(get("Partition", "")),
        account=_said(get("Account", "")),
        qos=_said(get("QOS", "")),
        nodes=nodes,
        # Where gres/gpu is not among what the site accounts for, only JOB_GRES, over all nodes, has it.
        gpus=(_gpus(tres) or _gpus(get("JOB_GRES", "").replace(":", "="))) if nodes else 0,
        cpus=int(get("NumCPUs", "0").partition("-")[0]) if nodes else 0,
        submitted_at=_utc(get("SubmitTime", "")),
        started_at=_utc(start),
        ended_at=_utc(end),
        queue_wait_s=between_s(get("SubmitTime", ""), start),
        elapsed_s=duration_s(get("RunTime", "")),
        limit_s=limit,
        restarts=int(get("Restarts", "0")),
    )


def from_journal(entries: Iterable[Mapping[str, Any]], job: str) -> JobAccount:
    """What our own executor saw of a job; with no word of it there, a job of which nothing is known (source ``none``).

    The end is when it was noticed, seconds late; it does not see GPUs, nor starts before the last. A run that is interrupted does not
    wait for the ends of its jobs; those that it cancelled are CANCELLED once Slurm has accepted that, or nothing of the run is left.
    """
    every = list(entries)
    mine = [entry for entry in every if str(entry.get("job")) == job]
    last: dict[str, Any] = {}
    for entry in mine:
        # Why a job waited is no reason for its end.
        last |= {name: value for name, value in entry.items() if value not in (None, "")} | {
            "reason": entry.get("reason")
        }
    submitted = next((float(entry["time"]) for entry in mine if entry.get("event") == "submitted"), None)
    ended = next((float(entry["time"]) for entry in mine if entry.get("event") == "ended"), None)
    if ended is None and mine:
        last |= _without_end(every, job, last)
        ended = last.get("ended")
    wait, elapsed = last.get("queue_wait_s"), last.get("elapsed_s")
    code, number = last.get("exit_code"), last.get("signal")
    return JobAccount(
        job_id=job,
        source="journal" if last.get("state") else "none",
        state=str(last.get("state") or "UNKNOWN"),
        exit_code=f"{code or 0}:{number or 0}" if code is not None or number is not None else None,
        reason=_said(str(last.get("reason") or "")),
        nodes=_nodes(str(last.get("nodes") or "")),
        gpus=None,
        submitted_at=_stamp(submitted),
        started_at=_stamp(submitted + wait if submitted is not None and wait is not None else None),
        ended_at=_stamp(ended),
        queue_wait_s=wait,
        elapsed_s=elapsed,
    )


def _without_end(entries: Iterable[Mapping[str, Any]], job: str, last: Mapping[str, Any]) -> dict[str, Any]:
    """State and end of a job whose end the run did not wait for; empty when it may still live."""
    run, cancelled, over = last.get("run"), None, False
    for entry in entries:
        if entry.get("run") != run:
            continue
        if entry.get("event") == "cancelled" and job in map(str, entry.get("jobs") or ()):
            cancelled, over = cancelled or float(entry["time"]), over or bool(entry.get("taken"))
        over = over or entry.get("event") == "run_ended"
    if not over:
        return {}
    return {"reason": None, **({"state": "CANCELLED", "ended": cancelled} if cancelled else {"state": "UNKNOWN"})}


def when_forgotten(starts: Sequence[JobAccount], journal: JobAccount, *, forgotten: bool) -> list[JobAccount]:
    """Return the starts of a job, with the final state if Slurm no longer lists it.

    Args:
        journal: what the run saw of it.
        forgotten: the controller does not know the job: it has ended, whatever was written down before.
    """
    if final(starts) or not starts:
        return list(starts)
    if final([journal]):
        end = {"state": journal.state, "exit_code": journal.exit_code, "ended_at": journal.ended_at}
    elif forgotten:
        end = {"state": "UNKNOWN"}
    else:
        return list(starts)
    return [*starts[:-1], starts[-1].model_copy(update=end)]


def final(starts: Sequence[JobAccount]) -> bool:
    """Whether the job has ended and is not going to start again. (REQUEUED ends a start, not a job.)"""
    return bool(starts) and State.parse(starts[-1].state).ended


def merge(accounted: Sequence[JobAccount], controller: JobAccount | None) -> list[JobAccount]:
    """One list of a job's starts from what accounting knows of them and the controller of the last.

    Accounting is preferred. The controller adds a last start, or the end of one, that accounting has not heard of yet, and the GPUs on
    a site that does not account for them.
    """
    starts = list(accounted)
    if controller is None:
        return starts
    last = starts[-1] if starts else None
    if last is None or controller.restarts > last.restarts:
        starts.append(controller)
    elif not final(starts):
        starts[-1] = controller
    if controller.gpus:
        starts = [
            start if start.gpus or not start.nodes else start.model_copy(update={"gpus": controller.gpus})
            for start in starts
        ]
    return starts


def _gpus(tres: str) -> int:
    """GPUs of ``gres/gpu=8`` or, by type, ``gres/gpu:h200=4,gres/gpu:l4=2`` (which stand beside the sum where both are accounted for)."""
    kinds: dict[str, int] = {}
    for name, _, count in (part.rpartition("=") for part in tres.split(",")):
        kind = name.removeprefix("gres/").replace("=", ":")
        if count.isdigit() and kind.split(":")[0] == "gpu":
            kinds[kind] = kinds.get(kind, 0) + int(count)
    return kinds.get("gpu") or sum(kinds.values())


def _nodes(text: str) -> tuple[str, ...]:
    """The names in Slurm's node list: ``node[08-10],login`` is node08, node09, node10, login; none for words that name none."""
    if _said(text) is None or text == "None assigned":
        return ()
    return tuple(name for part in _PARTS.findall(text.strip()) for name in _expand(part))


_PARTS = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")


def _expand(part: str) -> Iterator[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    ranges, _, after = rest.partition("]")
    tails = list(_expand(after))
    for low, _, high in (span.partition("-") for span in ranges.split(",")):
        for number in range(int(low), int(high or low) + 1):
            yield from (f"{before}{number:0{len(low)}d}{tail}" for tail in tails)


def _said(text: str) -> str | None:
    return None if text.strip() in ("", "None", "(null)", "Unknown") else text.strip()


def _utc(text: str) -> str | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).isoformat(timespec="seconds")
    except ValueError:
        return None


def _stamp(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
