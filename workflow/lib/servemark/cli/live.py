"""List active deployments of a checkout: measured deployments, served endpoints, and jobs in the queue.

The records lie on the shared disk, so this works on every machine that sees it. They are compared with this host's processes, with
Slurm's jobs, or, for another host without a job, with the age of the newest file.
"""

import contextlib
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
from servemark.deployment.how_to_use import STATUS
from servemark.errors import ServemarkError
from servemark.processes.identity import Identity
from servemark.records import Cluster, EndpointStatus
from servemark.run.serve import FOLDER as SERVING
from servemark.supervisor import SupervisorState
from snakemake_executor_plugin_slurm_guarded import journal, queries, reasons
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed
from snakemake_executor_plugin_slurm_guarded.queries import Job
from snakemake_executor_plugin_slurm_guarded.states import Meaning

# Stages write progress every few seconds, endpoints a heartbeat every five; clocks of two hosts may differ a little.
FRESH_S = 60.0
# Bytes that are read from the end of a run's progress.
TAIL_BYTES = 1 << 18
# Words for the user.
PURPOSES = {"measured": "measuring", "held": "serving", "queued": "-"}


@dataclass(frozen=True)
class Living:
    """One deployment that is active, or may be.

    Args:
        purpose: queued: its job waits, or has just begun.
        sure: False for one on another host, without a job and with old files.
        since: seconds since 1970.
        left_s: until the allocation's time is over.
        finished: requests that a served endpoint has completed.
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


@dataclass
class Jobs:
    """Slurm's jobs. Looks each job up once, and no other one after a failure (``trouble``)."""

    ask: Callable[[str], Job | None] = queries.scontrol_job
    trouble: str | None = None
    _known: dict[str, Job | None] = field(default_factory=dict)

    def lives(self, job_id: str) -> bool | None:
        """Return whether Slurm has this job and it is not over; None when Slurm does not respond."""
        found = self.find(job_id)
        if self.trouble and job_id not in self._known:
            return None
        return found is not None and not found.state.ended

    def find(self, job_id: str) -> Job | None:
        """Return the job, if Slurm has it."""
        if job_id not in self._known and self.trouble is None:
            try:
                self._known[job_id] = self.ask(job_id)
            except CommandFailed as error:
                self.trouble = str(error)
        return self._known.get(job_id)


def living(results: Path, jobs: Jobs | None = None, now: float | None = None) -> list[Living]:
    """Return all active deployments below ``results/``, by run and deployment."""
    jobs, now = jobs or Jobs(), time.time() if now is None else now
    found: list[Living] = []
    for run_folder in sorted(path.parent for path in results.glob("*/config.json")):
        last = _last_progress(run_folder / "progress.jsonl")
        folders = [folder for part in ("deployments", SERVING) for folder in sorted((run_folder / part).glob("*"))]
        mine = [one for folder in folders if (one := _one(folder, last.get(folder.name), jobs, now))]
        found += mine + _queued(run_folder, {one.job_id for one in mine}, jobs)
    return found


def _one(folder: Path, last: dict[str, Any] | None, jobs: Jobs, now: float) -> Living | None:
    """Return a deployment by its latest attempt; None if it is not active."""
    attempt = attempts.latest(folder)
    if attempt is None:
        return None
    try:
        state, spec = supervisor.read_state(attempt), supervisor.read_spec(attempt)
    except (OSError, ValueError):
        return None
    if state is None or state.state == "ended" or supervisor.copied(attempt):
        return None
    status = _status(folder, attempt)
    job_id = job_of(state.owner or spec.owner)
    heard = max(float(last["time"]) if last else 0.0, _seconds(status.at) if status else 0.0)
    alive = _alive(state, job_id, jobs, now - heard < FRESH_S)
    if alive is False:
        return None
    return Living(
        run=folder.parents[1].name,
        deployment=folder.name,
        purpose="held" if folder.parent.name == SERVING else "measured",
        state=_state(state, status, last),
        sure=alive is True,
        attempt=attempt,
        nodes=_nodes(folder, state),
        job_id=job_id,
        since=_seconds(status.since) if status else _begin(attempt),
        left_s=max(0.0, spec.ends_at - spec.end_margin_s - now) if spec.ends_at else None,
        finished=status.finished if status else None,
        running=status.running if status else None,
        url=status.url if status else None,
    )


def _begin(attempt: Path) -> float | None:
    with contextlib.suppress(OSError):
        return supervisor.own_file(attempt, supervisor.SPEC).stat().st_mtime
    return None


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def _alive(state: SupervisorState, job_id: str | None, jobs: Jobs, fresh: bool) -> bool | None:
    """Return whether the supervisor is alive; None if that cannot be found out from here."""
    job = jobs.lives(job_id) if job_id else None
    identity = Identity.parse(state.identity)
    if job is False or identity.here:
        return job is not False and identity.alive
    return True if job or fresh else None


def job_of(owner: str | None) -> str | None:
    """Return the job's id in an owner's name (see supervisor/ownership.py)."""
    found = re.match(r"job (\d+)", owner or "")
    return found[1] if found else None


def _state(state: SupervisorState, status: EndpointStatus | None, last: dict[str, Any] | None) -> str:
    if state.state == "waiting":
        return f"waiting for the machine, in use by {(state.waiting_for or 'another').split(' (')[0]}"
    if state.state == "ending":
        return f"ending: {state.why}"
    if status:
        return "ready" if status.state == "held" else "does not respond on /metrics"
    return f"{last['stage']}: {last['text']}" if last else "starting"


def _status(folder: Path, attempt: Path) -> EndpointStatus | None:
    """Return the heartbeat of this very attempt, while it serves."""
    try:
        status = EndpointStatus.read(folder / STATUS)
    except ServemarkError:
        return None
    return status if status.state != "ended" and Path(status.attempt or "").name == attempt.name else None


def _nodes(folder: Path, state: SupervisorState) -> tuple[str, ...]:
    try:
        return tuple(node.name for node in Cluster.read(attempts.live_records(folder)[0]).nodes)
    except ServemarkError:
        return (Identity.parse(state.identity).host,)


def _last_progress(path: Path) -> dict[str, dict[str, Any]]:
    """Return the last line of progress of each deployment."""
    found: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(OSError), open(path, "rb") as stream:
        stream.seek(max(0, path.stat().st_size - TAIL_BYTES))
        for line in stream:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                last = json.loads(line)
                if last.get("ended"):
                    continue
                found[last["subject"]] = {"time": float(last["time"]), "stage": last["stage"], "text": last["text"]}
    return found


def _queued(run_folder: Path, known: set[str | None], jobs: Jobs) -> list[Living]:
    """Return deployments without a server whose job was submitted: it waits, or has just begun."""
    file = run_folder / "slurm" / "jobs.jsonl"
    noted = {run: journal.checkout_of(entry) for run, entry in journal.open_runs(file).items()}
    runs = {run for run, checkout in noted.items() if checkout is None or checkout.is_at(run_folder.parents[1])}
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
        # Another cluster's job, or a later one, can have the same number by chance: then its name differs.
        if job is None or job.name not in ("", entry["run"]) or job.state.meaning not in (Meaning.WAITING, Meaning.RUNNING):
            continue
        why = f": {reasons.in_words(job.reason)}" if job.reason else ""
        state = f"in the queue, {job.state.word}{why}"
        if job.state.meaning is Meaning.RUNNING:
            state = f"its job is {job.state.word}, and it has no running server"
        found.append(Living(run_folder.name, str(deployment), "queued", state, job_id=job_id, since=float(entry["time"])))
    return found
