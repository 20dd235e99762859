"""Read Slurm's record of jobs that have ended, from sacct, the controller and the executor's own journal. Pure functions.

sacct and scontrol print local time without a zone; run both with :data:`ENVIRONMENT`, so that the times read here are UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from typing import Any, Literal

from snakemake_executor_plugin_slurm_guarded import queries
from snakemake_executor_plugin_slurm_guarded.records import JobAccount
from snakemake_executor_plugin_slurm_guarded.states import State

ENVIRONMENT = {"TZ": "UTC"}


def parse_sacct(text: str) -> dict[str, list[JobAccount]]:
    """Read the output of :func:`queries.sacct_argv`: the starts of each job, oldest first.

    Slurm 22.05 does not print which start a row is of; the rows are counted. The components ``ID+0``, ``ID+1`` of a heterogeneous job are
    one start, with the nodes, CPUs and GPUs of all.
    """
    found: dict[str, list[JobAccount]] = {}
    for one in queries.parse_sacct(text):
        job, _, component = one.id.partition("+")
        starts = found.setdefault(job, [])
        account = _account(replace(one, id=job, restarts=len(starts)), "sacct")
        if component not in ("", "0") and starts:
            starts[-1] = _together(starts[-1], account)
        else:
            starts.append(account)
    return found


def parse_scontrol(text: str) -> JobAccount | None:
    """Read ``scontrol show job -d ID`` of one job: its last start; None when the text describes no job."""
    components = {one.id: _account(one, "scontrol") for one in queries.parse_scontrol(text)}
    return reduce(_together, components.values()) if components else None


def _account(job: queries.Job, source: Literal["sacct", "scontrol"]) -> JobAccount:
    nodes = node_names(job.nodes)
    return JobAccount(
        job_id=job.id,
        source=source,
        state=job.state.word,
        exit_code=job.exit or None,
        reason=job.reason or None,
        partition=job.partition or None,
        account=job.account or None,
        qos=job.qos or None,
        nodes=nodes,
        gpus=_gpus(job.tres) if nodes else 0,
        cpus=job.cpus if nodes else 0,
        submitted_at=_utc(job.submitted),
        started_at=_utc(job.started),
        ended_at=_utc(job.ended),
        queue_wait_s=job.queue_wait_s,
        elapsed_s=job.elapsed_s,
        limit_s=None if job.limit_min is None else 60 * job.limit_min,
        restarts=job.restarts,
    )


def _together(first: JobAccount, other: JobAccount) -> JobAccount:
    """Return one start of a heterogeneous job: the first component's, with the nodes, CPUs and GPUs of another."""
    sums = {"gpus": (first.gpus or 0) + (other.gpus or 0), "cpus": (first.cpus or 0) + (other.cpus or 0)}
    return first.model_copy(update={"nodes": first.nodes + other.nodes, **sums})


def from_journal(entries: Iterable[Mapping[str, Any]], job: str) -> JobAccount:
    """Return a job as the executor saw it. Its source is ``none`` if the journal has no state of it.

    The end is when the executor noticed it, seconds late; it does not see GPUs, nor starts before the last. A run that is interrupted does
    not wait for the ends of its jobs; those that it cancelled are CANCELLED once Slurm has accepted that, or no job of the run is left.
    """
    every = list(entries)
    mine = [entry for entry in every if str(entry.get("job")) == job]
    last: dict[str, Any] = {}
    for entry in mine:
        # Why a job waited is no reason for its end.
        last |= {name: value for name, value in entry.items() if value not in (None, "")} | {"reason": entry.get("reason")}
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
        reason=queries.stated(str(last.get("reason") or "")) or None,
        nodes=node_names(str(last.get("nodes") or "")),
        gpus=None,
        submitted_at=_stamp(submitted),
        started_at=_stamp(submitted + wait if submitted is not None and wait is not None else None),
        ended_at=_stamp(ended),
        queue_wait_s=wait,
        elapsed_s=elapsed,
    )


def _without_end(entries: Iterable[Mapping[str, Any]], job: str, last: Mapping[str, Any]) -> dict[str, Any]:
    """Return state and end of a job whose end the run did not wait for; empty when it may still live."""
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
        starts: as Slurm stated them earlier.
        journal: what the run saw of the job.
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
    """Return whether the job has ended and is not going to start again (REQUEUED ends a start, not a job)."""
    return bool(starts) and State.parse(starts[-1].state).ended


def merge(accounted: Sequence[JobAccount], controller: JobAccount | None) -> list[JobAccount]:
    """Return one list of a job's starts.

    Args:
        accounted: from accounting, which is preferred.
        controller: the last start from the controller. It adds a start, or the end of one, that accounting has not heard of yet, and the
            GPUs on a site that does not account for them.
    """
    starts = list(accounted)
    if controller is None:
        return starts
    if not starts or controller.restarts > starts[-1].restarts:
        starts.append(controller)
    elif not final(starts):
        starts[-1] = controller
    if controller.gpus:
        update = {"gpus": controller.gpus}
        starts = [start if start.gpus or not start.nodes else start.model_copy(update=update) for start in starts]
    return starts


def _gpus(tres: str) -> int:
    """Return the GPUs of ``gres/gpu=8`` or ``gres/gpu:h200=4,gres/gpu:l4=2``; where sum and types are stated, the sum counts."""
    kinds: dict[str, int] = {}
    for name, _, count in (part.rpartition("=") for part in tres.split(",")):
        kind = name.removeprefix("gres/").replace("=", ":")
        if count.isdigit() and kind.split(":")[0] == "gpu":
            kinds[kind] = kinds.get(kind, 0) + int(count)
    return kinds.get("gpu") or sum(kinds.values())


_PARTS = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")


def node_names(text: str) -> tuple[str, ...]:
    """Return the names in Slurm's node list: ``node[08-10],login`` is node08, node09, node10, login."""
    return tuple(name for part in _PARTS.findall(queries.stated(text)) for name in _expand(part))


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


def _utc(text: str) -> str | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).isoformat(timespec="seconds")
    except ValueError:
        return None


def _stamp(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
