"""Accounts of jobs, from the output of sacct and scontrol and from the executor's journal. Pure functions.

sacct and scontrol print local time without a zone. Run both with :data:`ENVIRONMENT`, so that the times are UTC.
"""

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
    """Read the output of :func:`queries.sacct_argv`: the starts of each job, oldest first (Slurm 22.05 does not number them).

    The components ``ID+0``, ``ID+1`` of a heterogeneous job become one start with the nodes, CPUs and GPUs of all.
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
    texts = {name: getattr(job, name) or None for name in ("reason", "partition", "account", "qos")}
    times = {f"{name}_at": _utc(getattr(job, name)) for name in ("submitted", "started", "ended")}
    return JobAccount(
        job_id=job.id,
        source=source,
        state=job.state.word,
        exit_code=job.exit or None,
        nodes=nodes,
        gpus=_gpus(job.tres) if nodes else 0,
        cpus=job.cpus if nodes else 0,
        queue_wait_s=job.queue_wait_s,
        elapsed_s=job.elapsed_s,
        limit_s=None if job.limit_min is None else 60 * job.limit_min,
        restarts=job.restarts,
        **texts,
        **times,
    )


def _together(first: JobAccount, other: JobAccount) -> JobAccount:
    """Return the account of a heterogeneous job's first component, with the nodes, CPUs and GPUs of another one added."""
    sums = {"gpus": (first.gpus or 0) + (other.gpus or 0), "cpus": (first.cpus or 0) + (other.cpus or 0)}
    return first.model_copy(update={"nodes": first.nodes + other.nodes, **sums})


def from_journal(entries: Iterable[Mapping[str, Any]], job: str) -> JobAccount:
    """Return the account of a job by the executor's journal. Its source is ``none`` if the journal has no state of the job.

    It has no GPUs and no starts before the last. The end is the time when the executor noticed it, seconds late. An interrupted run does
    not wait for the ends of its jobs: a job that it cancelled counts as CANCELLED if Slurm accepted that, or if the run has no job left.
    """
    every = list(entries)
    mine = [entry for entry in every if str(entry.get("job")) == job]
    last: dict[str, Any] = {}
    for entry in mine:
        # The reason why a job waited does not explain its end.
        last |= {name: value for name, value in entry.items() if value not in (None, "")} | {"reason": entry.get("reason")}
    times = {entry.get("event"): float(entry["time"]) for entry in mine if entry.get("event") in ("submitted", "ended")}
    submitted, ended = times.get("submitted"), times.get("ended")
    if mine and ended is None:
        run = [entry for entry in every if entry.get("run") == last.get("run")]
        asked = [entry for entry in run if entry.get("event") == "cancelled" and job in map(str, entry.get("jobs") or ())]
        if any(entry.get("taken") for entry in asked) or any(entry.get("event") == "run_ended" for entry in run):
            last |= {"reason": None, "state": "CANCELLED" if asked else "UNKNOWN"}
            ended = float(asked[0]["time"]) if asked else None
    wait, code, number = last.get("queue_wait_s"), last.get("exit_code"), last.get("signal")
    return JobAccount(
        job_id=job,
        source="journal" if last.get("state") else "none",
        state=str(last.get("state") or "UNKNOWN"),
        exit_code=None if code is None and number is None else f"{code or 0}:{number or 0}",
        reason=queries.stated(str(last.get("reason") or "")) or None,
        nodes=node_names(str(last.get("nodes") or "")),
        gpus=None,
        submitted_at=_stamp(submitted),
        started_at=_stamp(None if submitted is None or wait is None else submitted + wait),
        ended_at=_stamp(ended),
        queue_wait_s=wait,
        elapsed_s=last.get("elapsed_s"),
    )


def when_forgotten(starts: Sequence[JobAccount], journal: JobAccount, *, forgotten: bool) -> list[JobAccount]:
    """Return the starts of a job that Slurm does not list any more, the last one with its final state.

    Args:
        starts: as Slurm listed them earlier.
        journal: the account by the executor's journal.
        forgotten: the controller has no such job, so it has ended.
    """
    end: dict[str, Any] = {"state": "UNKNOWN"} if forgotten else {}
    if final([journal]):
        end = {"state": journal.state, "exit_code": journal.exit_code, "ended_at": journal.ended_at}
    if not starts or final(starts):
        return list(starts)
    return [*starts[:-1], starts[-1].model_copy(update=end)]


def final(starts: Sequence[JobAccount]) -> bool:
    """Return whether the job has ended for good (REQUEUED ends a start, not a job)."""
    return bool(starts) and State.parse(starts[-1].state).ended


def merge(accounted: Sequence[JobAccount], controller: JobAccount | None) -> list[JobAccount]:
    """Return the starts of a job in accounting, completed from the controller.

    Args:
        accounted: from accounting.
        controller: the last start, from the controller. It adds a start or an end that accounting does not have yet, and GPUs on a site
            that does not account for them.
    """
    starts = list(accounted)
    if controller is None:
        return starts
    if not starts or controller.restarts > starts[-1].restarts:
        starts.append(controller)
    elif not final(starts):
        starts[-1] = controller
    gpus = {"gpus": controller.gpus}
    return [start.model_copy(update=gpus) if controller.gpus and start.nodes and not start.gpus else start for start in starts]


def _gpus(tres: str) -> int:
    """Return the GPUs of ``gres/gpu=8`` or ``gres/gpu:h200=4,gres/gpu:l4=2``; if it has the sum and the types, the sum counts."""
    kinds: dict[str, int] = {}
    for name, _, count in (part.rpartition("=") for part in tres.split(",")):
        kind = name.removeprefix("gres/").replace("=", ":")
        if count.isdigit() and kind.split(":")[0] == "gpu":
            kinds[kind] = kinds.get(kind, 0) + int(count)
    return kinds.get("gpu") or sum(kinds.values())


def node_names(text: str) -> tuple[str, ...]:
    """Return the names in a node list: ``node[08-10],login`` is node08, node09, node10, login."""
    return tuple(name for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", queries.stated(text)) for name in _expand(part))


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
