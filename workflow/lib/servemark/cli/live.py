"""What lives in a checkout's results: deployments that are measured, endpoints that are held, and jobs that wait in the queue.

Read from files on the shared disk, so that it works on every machine that sees them. What they say is checked against the machine
(processes of this host), against Slurm (jobs), or, for another host without a job, against how fresh the files are.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from servemark import supervisor
from servemark.deployment import attempts
from servemark.deployment.hold import STATUS
from servemark.errors import ServemarkError
from servemark.processes.identity import Identity
from servemark.records import Cluster
from servemark.records.endpoint import EndpointStatus
from servemark.run.serve import FOLDER as SERVING
from servemark.supervisor import KeeperState
from snakemake_executor_plugin_slurm_guarded import journal, queries, reasons
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed
from snakemake_executor_plugin_slurm_guarded.queries import Job
from snakemake_executor_plugin_slurm_guarded.states import Meaning

MEASURED = "deployments"
# Stages tell their progress every few seconds and a held endpoint beats every five; clocks of two hosts may differ a little.
FRESH_S = 60.0
# Of a long run's progress, the end is enough.
TAIL_BYTES = 1 << 18
Lookup = Callable[[str], Job | None]


@dataclass(frozen=True)
class Living:
    """One deployment that lives, or may live.

    Args:
        purpose: measured; held for people; or queued: its job waits, and what for is not known yet.
        sure: False when nothing can be said from here: its host is another one, it has no job, and its files are old.
        attempt: its folder; None while it waits in the queue.
        since: seconds since 1970.
        left_s: until it is ended because the allocation's time is over; None: no end is set.
        finished: requests that a held endpoint has answered.
    """

    run: str
    deployment: str
    purpose: Literal["measured", "held", "queued"]
    state: str
    sure: bool = True
    attempt: Path | None = None
    nodes: tuple[str, ...] = ()
    job_id: str | None = None
    since: float | None = None
    left_s: float | None = None
    finished: int | None = None
    running: int | None = None
    url: str | None = None

    @property
    def kind(self) -> str:
        """Words for messages."""
        return {"measured": "deployment", "held": "endpoint", "queued": "job of deployment"}[self.purpose]


@dataclass
class Jobs:
    """What Slurm says of jobs; each is asked for once, and after one failure nothing more is asked."""

    ask: Lookup = queries.scontrol_job
    trouble: str | None = None
    _known: dict[str, Job | None] = field(default_factory=dict)

    def lives(self, job_id: str) -> bool | None:
        """Return whether Slurm has this job and it is not over; None when Slurm gives no answer."""
        found = self.find(job_id)
        if self.trouble and job_id not in self._known:
            return None
        return found is not None and not found.state.ended

    def find(self, job_id: str) -> Job | None:
        """Return the job, if Slurm knows it."""
        if job_id not in self._known and self.trouble is None:
            try:
                self._known[job_id] = self.ask(job_id)
            except CommandFailed as error:
                self.trouble = str(error)
        return self._known.get(job_id)


def living(results: Path, jobs: Jobs | None = None, now: float | None = None) -> list[Living]:
    """Return everything that lives below ``results/``, by run and deployment."""
    jobs, now = jobs or Jobs(), time.time() if now is None else now
    found: list[Living] = []
    for run_folder in sorted(path.parent for path in results.glob("*/config.json")):
        told = _last_words(run_folder / "progress.jsonl")
        mine = [
            one
            for part in (MEASURED, SERVING)
            for folder in sorted((run_folder / part).glob("*"))
            if (one := _one(run_folder, folder, part == SERVING, told.get(folder.name), jobs, now))
        ]
        found += mine + _queued(run_folder, {one.job_id for one in mine}, jobs)
    return found


def _one(run_folder: Path, folder: Path, is_held: bool, told: dict[str, Any] | None, jobs: Jobs, now: float) -> Living | None:
    """Return a deployment by its latest attempt; None when nothing of it lives."""
    attempt = attempts.latest(folder)
    if attempt is None:
        return None
    try:
        state, spec = supervisor.read_state(attempt), attempts.spec(attempt)
    except (OSError, ValueError):
        return None
    if state is None or state.state == "ended" or supervisor.copied(attempt):
        return None
    status = _status(folder, attempt)
    job_id = job_of(state.owner or spec.owner)
    heard = [float(told["time"])] if told else []
    heard += [datetime.fromisoformat(status.at).timestamp()] if status else []
    alive = _alive(state, job_id, jobs, max(heard, default=0.0), now)
    if alive is False:
        return None
    return Living(
        run=run_folder.name,
        deployment=folder.name,
        purpose="held" if is_held else "measured",
        state=_state(state, status, told),
        sure=alive is True,
        attempt=attempt,
        nodes=_nodes(folder, state),
        job_id=job_id,
        since=datetime.fromisoformat(status.since).timestamp() if status else _begin(attempt),
        left_s=max(0.0, spec.ends_at - spec.end_margin_s - now) if spec.ends_at else None,
        finished=status.finished if status else None,
        running=status.running if status else None,
        url=status.url if status else None,
    )


def _alive(state: KeeperState, job_id: str | None, jobs: Jobs, heard: float, now: float) -> bool | None:
    """Return whether the keeper lives. A job that Slurm does not know any more is gone, whatever the files say.

    Without Slurm's word: a process of this host is looked at; of another host's nothing can be seen but how fresh its files are.
    """
    if job_id and jobs.lives(job_id) is False:
        return False
    identity = Identity.parse(state.identity)
    if identity.here:
        return identity.alive
    if job_id and jobs.lives(job_id):
        return True
    return True if now - heard < FRESH_S else None


def job_of(owner: str | None) -> str | None:
    """Return the job's id in the name of who works on a deployment (see fence.py)."""
    found = re.match(r"job (\d+)", owner or "")
    return found[1] if found else None


def _state(state: KeeperState, status: EndpointStatus | None, told: dict[str, Any] | None) -> str:
    if state.state == "waiting":
        return f"waits for the machine, in use by {(state.waiting_for or 'another').split(' (')[0]}"
    if state.state == "ending":
        return f"ending: {state.why}"
    if status:
        return "ready" if status.state == "held" else "does not answer /metrics"
    return f"{told['stage']}: {told['text']}" if told else "starting"


def _status(folder: Path, attempt: Path) -> EndpointStatus | None:
    """Return the heartbeat of this very attempt, while it is held."""
    try:
        status = EndpointStatus.read(folder / STATUS)
    except ServemarkError:
        return None
    return status if status.state != "ended" and Path(status.attempt or "").name == attempt.name else None


def _nodes(folder: Path, state: KeeperState) -> tuple[str, ...]:
    try:
        return tuple(node.name for node in Cluster.read(attempts.tokens(folder)[0]).nodes)
    except ServemarkError:
        return (Identity.parse(state.identity).host,)


def _begin(attempt: Path) -> float | None:
    try:
        return (attempt / "keeper-spec.json").stat().st_mtime
    except OSError:
        return None


def _last_words(path: Path) -> dict[str, dict[str, Any]]:
    """Return the last thing that was told of each deployment."""
    found: dict[str, dict[str, Any]] = {}
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = stream.read().splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            told = json.loads(line)
            found[told["subject"]] = {"time": float(told["time"]), "stage": told["stage"], "text": told["text"]}
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _queued(run_folder: Path, known: set[str | None], jobs: Jobs) -> list[Living]:
    """Return deployments whose job was submitted and of which nothing lives yet: it waits, or has just begun."""
    file = run_folder / "slurm" / "jobs.jsonl"
    here = run_folder.parents[1]
    noted = {run: journal.checkout_of(entry) for run, entry in journal.open_runs(file).items()}
    runs = {run for run, checkout in noted.items() if checkout is None or checkout.is_at(here)}
    waiting: dict[str, dict[str, Any]] = {}
    for entry in journal.read(file):
        if entry.get("event") == "submitted" and entry.get("run") in runs:
            waiting[str(entry.get("job"))] = entry
        elif entry.get("event") == "ended":
            waiting.pop(str(entry.get("job")), None)
    found = []
    for job_id, entry in waiting.items():
        deployment = (entry.get("wildcards") or {}).get("deployment")
        job = jobs.find(job_id) if deployment and job_id not in known else None
        # A job of another name has the number by chance: of another cluster, or given out again.
        job = job if job and job.name in ("", entry["run"]) else None
        if job and job.state.meaning in (Meaning.WAITING, Meaning.RUNNING):
            begun = job.state.meaning is Meaning.RUNNING
            found.append(
                Living(
                    run=run_folder.name,
                    deployment=str(deployment),
                    purpose="queued",
                    state=f"its job is {job.state.word}, and no server of it lives"
                    if begun
                    else f"in the queue, {job.state.word}{f': {reasons.in_words(job.reason)}' if job.reason else ''}",
                    job_id=job_id,
                    since=float(entry["time"]),
                )
            )
    return found
