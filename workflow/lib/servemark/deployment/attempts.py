"""Attempts: each start of a deployment has a numbered folder with the supervisor's state, secrets, logs and, if it failed, why."""

import contextlib
import json
import os
import secrets
import signal
import time
import uuid
from datetime import datetime
from pathlib import Path

import psutil

from servemark import supervisor
from servemark.diagnosis import Diagnosis, diagnose, first_errors, root_error, row, states_error
from servemark.diagnosis.lost import in_words, lost
from servemark.diagnosis.text import window
from servemark.errors import ServemarkError, StageFailed
from servemark.files.private import private, runtime_root
from servemark.machine import git_state
from servemark.measurement import reasons
from servemark.nodes.allocation import Allocation
from servemark.nodes.survey import NodeResult
from servemark.processes import identity
from servemark.processes.identity import owner_process
from servemark.records import DaemonState, Failure, Ready, write_atomically
from servemark.security.secret_scan import KEY_PREFIX
from servemark.supervisor import SupervisorSpec, ownership, salvage
from snakemake_executor_plugin_slurm_guarded.records import Checkout

FOLDER = "attempts"
# Time for the records of the last stages after the servers have ended.
END_MARGIN_S = 30.0


def new(deployment_folder: Path) -> Path:
    """Create the next attempt's folder. Two processes never get the same number."""
    parent = deployment_folder / FOLDER
    parent.mkdir(parents=True, exist_ok=True)
    while True:
        last = latest(deployment_folder)
        attempt = parent / f"{int(last.name) + 1 if last else 1:03d}"
        with contextlib.suppress(FileExistsError):
            attempt.mkdir(mode=0o700)
            return attempt


def live_records(deployment_folder: Path) -> list[Path]:
    """Return the paths of a deployment's live records."""
    return [deployment_folder / f"{name}.json" for name in ("cluster", "endpoint", "ready")]


def every(deployment_folder: Path) -> list[Path]:
    """Return all attempts, oldest first."""
    return sorted((p for p in (deployment_folder / FOLDER).glob("*") if p.name.isdigit()), key=lambda p: int(p.name))


def newest(deployment: Path, name: str) -> Path | None:
    """Return the newest attempt's file of this name; None if no attempt has one."""
    return next((a / name for a in reversed(every(deployment)) if (a / name).exists()), None)


def latest(deployment_folder: Path) -> Path | None:
    """Return the newest attempt."""
    return next(reversed(every(deployment_folder)), None)


def secret(attempt: Path, name: str) -> Path:
    """Make a random secret in a 0600 file. Its prefix lets the archive's scan find it."""
    path = attempt / name
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w") as stream:
        stream.write(KEY_PREFIX + secrets.token_hex(32))
    return path


def open_attempt(deployment: str, folder: Path, scratch: Path, alloc: Allocation, *, stop_grace_s: float) -> Path:
    """Start an attempt: make its folder and its scratch folder here, and start its supervisor. Return its folder."""
    attempt = new(folder)
    git_state.hand_over(folder.parents[1], attempt)
    private(scratch.parent)
    scratch.mkdir(mode=0o700)
    spec = SupervisorSpec(
        deployment=deployment,
        lifeline=str(owner_process()),
        # Without a scheduler deployments take turns.
        machine_lock=str(runtime_root() / "machine.lock") if alloc.job_id is None else None,
        tokens=tuple(str(record.absolute()) for record in live_records(folder)),
        scratch=str(scratch),
        stop_grace_s=stop_grace_s,
        ends_at=alloc.ends_at,
        end_margin_s=stop_grace_s + END_MARGIN_S,
        owner=ownership.mine(),
        checkout=Checkout.of(Path.cwd()),
        attempt_id=uuid.uuid4().hex,
    )
    supervisor.launch(attempt, spec)
    return attempt


def fail(attempt: Path, failure: Failure, stop_timeout_s: float) -> Failure:
    """End the attempt because of ``failure``: record it for later stages, stop all processes, and wait for their end.

    Returns:
        ``failure``; if the attempt was ended from outside (time limit, superseded), the failure that states this. An earlier failure of
        the attempt stays the recorded one.
    """
    path = attempt / "failure.json"
    if not path.exists():
        failure = ended_from_outside(attempt, failure.stage) or failure
        write_atomically(path, failure.model_dump_json(indent=2) + "\n")
    with contextlib.suppress(TimeoutError):
        supervisor.stop(attempt, stop_timeout_s + 15)
    return failure


def ended_from_outside(attempt: Path, stage: str) -> Failure | None:
    """Return why the attempt was ended from outside; None if the deployment failed by itself or a stage stopped it."""
    state = supervisor.read_state(attempt)
    found = reasons.TABLE.get(state.why or "") if state else None
    if found is None or not (found.outside and found.remedy):
        return None
    return Failure(
        stage=stage, reason=found.code, detail=found.meaning, log=str(supervisor.own_file(attempt, supervisor.STATE)), remedy=found.remedy
    )


def noted_failure(attempt: Path | None) -> Failure | None:
    """Return the attempt's recorded failure."""
    if attempt is None or not (attempt / "failure.json").exists():
        return None
    return Failure.model_validate_json((attempt / "failure.json").read_bytes())


def from_error(stage: str, error: ServemarkError) -> Failure:
    """Return the failure record of an error."""
    quote = error.quote if isinstance(error, StageFailed) else ()
    return Failure(stage=stage, reason=error.reason, detail=error.what, log=error.look, quote=quote, remedy=error.do)


def as_error(failure: Failure) -> StageFailed:
    """Return the error of a failure record."""
    return StageFailed(failure.detail, look=failure.log, do=failure.remedy, reason=failure.reason, quote=failure.quote)


def end_of(stage: str, attempt: Path, server: str, what: str, reason: str) -> Failure:
    """Return the failure of an attempt that ended with ``server``, or with another daemon before it. ``what``: the start of the message."""
    first = first_to_end(attempt, server)
    daemon = await_end(attempt, first.name) if first else None
    how = how_it_ended(daemon) if daemon and daemon.ended_at else "its supervisor ended"
    return explain_end(stage, attempt, daemon, f"{what} {how}", reason)


def explain_end(stage: str, attempt: Path, daemon: DaemonState | None, what: str, reason: str, stalled: bool = False) -> Failure:
    """Return the failure for a daemon's end: exit state, quoted error, lost rank or node, and the remedy of a known cause.

    If the log has no error of its own, or only a consequence, the files that were kept of the daemon are searched.
    """
    if daemon is None:
        return Failure(stage=stage, reason=reason, detail=what, log=str(supervisor.own_file(attempt, supervisor.LOG)))
    log = window(Path(daemon.log))
    diagnosis = diagnose(log, stalled=stalled)
    quote = diagnosis.quote if diagnosis else root_error(log) or _launcher_errors(attempt, daemon.name)
    if _is_vague(diagnosis) and (diagnosis or not states_error(log)):
        files = salvage.files(salvage.folder(daemon.log, daemon.name))
        named = ((path, found) for path in files if (found := diagnose(path)) and not _is_vague(found))
        path, better = next(named, (None, None))
        diagnosis = better or diagnosis
        quote += tuple(f"{path.name}: {line}" for line in better.quote) if path and better else first_errors(files)
    who = in_words(lost(log), _node_names(attempt), _node(daemon))
    cause = " ".join(filter(None, (diagnosis.cause if diagnosis else "", who)))
    return Failure(
        stage=stage,
        reason=diagnosis.reason if diagnosis else reason,
        detail=f"{what}{': ' + cause if cause else ''}",
        log=daemon.log,
        quote=quote,
        remedy=diagnosis.remedy if diagnosis else "Read the quoted lines and the log, fix the cause, and rerun.",
    )


def _is_vague(diagnosis: Diagnosis | None) -> bool:
    """Return whether there is no cause, or only one that states that something failed."""
    return diagnosis is None or row(diagnosis.reason).generic


def _node_names(attempt: Path) -> dict[str, str]:
    """Return address -> name of the job's nodes, as surveyed at the attempt's start."""
    names = {}
    for path in (attempt / "survey" / "look").glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            if node := NodeResult.model_validate_json(path.read_text()).node:
                names[node.address] = node.name
    return names


def _launcher_errors(attempt: Path, name: str) -> tuple[str, ...]:
    """Return the last errors of a daemon's launcher."""
    log = supervisor.launcher_log(attempt, name)
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return tuple(line for line in lines if "error" in line.lower())[-3:]


def how_it_ended(daemon: DaemonState) -> str:
    """Return words for a daemon's end: its name, its node if it ran in a job, its pid on that node, and its exit code or signal."""
    node = _node(daemon)
    name = f"{daemon.name} on {node}" if node else daemon.name
    if daemon.ended_at is None:
        return f"{name} still runs"
    pid = daemon.pid
    # The remote agent writes this file. It is missing without a launcher, and if the process never started on its node.
    with contextlib.suppress(OSError, ValueError, LookupError):
        pid = json.loads((Path(daemon.log).parent / "requests" / f"{daemon.name}.place.json").read_text())["pid"]
    if daemon.signal is None:
        return f"{name} (pid {pid}) exited with code {daemon.exit_code}"
    known = daemon.signal in list(signal.Signals)
    return f"{name} (pid {pid}) was ended by signal {daemon.signal}{f' ({signal.Signals(daemon.signal).name})' if known else ''}"


def _node(daemon: DaemonState) -> str | None:
    """Return the node of a job that a daemon ran on; None without a scheduler."""
    launched = supervisor.launcher_log(Path(daemon.log).parent, daemon.name).exists()
    return daemon.node if launched or daemon.node != identity.host() else None


def scratch_folder(attempt: Path) -> Path:
    """Return the attempt's folder for short-lived files on each node."""
    return Path(supervisor.read_spec(attempt).scratch)


def planned_end(ready: Ready) -> float | None:
    """Return when the supervisor ends a live deployment because of its time limit, seconds since 1970; None without a limit."""
    if ready.ends_at is None or ready.attempt is None:
        return None
    return datetime.fromisoformat(ready.ends_at).timestamp() - supervisor.read_spec(Path(ready.attempt)).end_margin_s


def left_over(*attempts: Path) -> list[psutil.Process]:
    """Return living processes of these attempts on this machine, supervisors included."""
    folders = [scratch_folder(one) for one in attempts if supervisor.own_file(one, supervisor.SPEC).exists() and not supervisor.copied(one)]
    return identity.marked(*attempts, *folders)


def find_daemon(attempt: Path, name: str) -> DaemonState | None:
    """Return the state of one daemon; None if the supervisor has not started it."""
    return next((d for d in supervisor.read_daemons(attempt) if d.name == name), None)


def await_end(attempt: Path, name: str, seconds: float = 2.0) -> DaemonState | None:
    """Return the state of a daemon that has ended. Wait up to ``seconds`` for the supervisor to record how it ended."""
    deadline = time.monotonic() + seconds
    while True:
        daemon = find_daemon(attempt, name)
        if daemon is None or daemon.ended_at or time.monotonic() > deadline:
            return daemon
        time.sleep(0.05)


def first_to_end(attempt: Path, server: str) -> DaemonState | None:
    """Return the daemon whose end made the supervisor end the others. With Ray this may be a raylet and not the server."""
    state = supervisor.read_state(attempt)
    first = state.why.split(":")[1] if state and state.why and state.why.startswith("daemon_ended:") else server
    return find_daemon(attempt, first) or find_daemon(attempt, server)
