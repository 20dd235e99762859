"""Attempts: each start of a deployment has a numbered folder with the supervisor's state, secrets, logs and, at its end, the reason."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import time
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
from servemark.nodes.survey import Answer
from servemark.processes import identity
from servemark.processes.identity import owner_process
from servemark.records import DaemonState, Failure, write_atomically
from servemark.security.secret_scan import KEY_PREFIX
from servemark.supervisor import SupervisorSpec, ownership, salvage
from snakemake_executor_plugin_slurm_guarded.records import Checkout

FOLDER = "attempts"
# Time for the records of the last stages after the servers have ended: seconds, more on a slow shared disk.
END_MARGIN_S = 30.0


def new(deployment_folder: Path) -> Path:
    """Create the next attempt's folder; another process cannot get the same number."""
    parent = deployment_folder / FOLDER
    parent.mkdir(parents=True, exist_ok=True)
    while True:
        last = latest(deployment_folder)
        attempt = parent / f"{int(last.name) + 1 if last else 1:03d}"
        with contextlib.suppress(FileExistsError):
            attempt.mkdir(mode=0o700)
            return attempt


def live_records(deployment_folder: Path) -> list[Path]:
    """Return the live records of a deployment; a run that ends, or begins, removes them."""
    return [deployment_folder / f"{name}.json" for name in ("cluster", "endpoint", "ready")]


def every(deployment_folder: Path) -> list[Path]:
    """Return all attempts, oldest first."""
    return sorted((p for p in (deployment_folder / FOLDER).glob("*") if p.name.isdigit()), key=lambda p: int(p.name))


def newest(deployment: Path, name: str) -> Path | None:
    """Return the file of this name of the newest attempt that has one."""
    return next((a / name for a in reversed(every(deployment)) if (a / name).exists()), None)


def latest(deployment_folder: Path) -> Path | None:
    """Return the newest attempt."""
    return next(reversed(every(deployment_folder)), None)


def secret(attempt: Path, name: str) -> Path:
    """Make a random secret in a file that only we can read; its beginning marks it for the archive's scan."""
    path = attempt / name
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w") as stream:
        stream.write(KEY_PREFIX + secrets.token_hex(32))
    return path


def open_attempt(deployment: str, folder: Path, scratch: Path, alloc: Allocation, *, stop_grace_s: float) -> Path:
    """Start an attempt: its folder, its scratch folder here, and its supervisor. Returns its folder."""
    attempt = new(folder)
    git_state.hand_over(folder.parents[1], attempt)
    private(scratch.parent)
    scratch.mkdir(mode=0o700)
    spec = SupervisorSpec(
        deployment=deployment,
        lifeline=str(owner_process()),
        # A scheduler has given us our nodes; without one, deployments take turns.
        machine_lock=str(runtime_root() / "machine.lock") if alloc.job_id is None else None,
        tokens=tuple(str(record.absolute()) for record in live_records(folder)),
        scratch=str(scratch),
        stop_grace_s=stop_grace_s,
        ends_at=alloc.ends_at,
        end_margin_s=stop_grace_s + END_MARGIN_S,
        owner=ownership.mine(),
        checkout=Checkout.of(Path.cwd()),
    )
    supervisor.launch(attempt, spec)
    return attempt


def fail(attempt: Path, failure: Failure, stop_timeout_s: float) -> Failure:
    """End the attempt because of ``failure``: note it for the later stages, stop everything, wait for the end.

    What ended the attempt from outside is the reason, whatever a stage saw of it. Returns what was noted.
    """
    path = attempt / "failure.json"
    if not path.exists():
        failure = ended_from_outside(attempt, failure.stage) or failure
        write_atomically(path, failure.model_dump_json(indent=2) + "\n")
    with contextlib.suppress(TimeoutError):
        supervisor.stop(attempt, stop_timeout_s + 15)
    return failure


def ended_from_outside(attempt: Path, stage: str) -> Failure | None:
    """Return why the supervisor ended the attempt, when that was neither a fault of the deployment nor asked for by a stage."""
    state = supervisor.read_state(attempt)
    found = reasons.TABLE.get(state.why or "") if state else None
    if found is None or not (found.outside and found.remedy):
        return None
    return Failure(stage=stage, reason=found.code, detail=found.meaning, log=str(attempt / "keeper.json"), remedy=found.remedy)


def noted_failure(attempt: Path | None) -> Failure | None:
    """Return why this attempt failed, if it did."""
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
    """Return the failure of a server whose end, or another daemon's before it, ended the attempt; ``what`` leads to how it ended."""
    first = first_to_end(attempt, server)
    daemon = await_end(attempt, first.name) if first else None
    how = how_it_ended(daemon) if daemon and daemon.ended_at else "its supervisor ended"
    return explain_end(stage, attempt, daemon, f"{what} {how}", reason)


def explain_end(stage: str, attempt: Path, daemon: DaemonState | None, what: str, reason: str, stalled: bool = False) -> Failure:
    """Turn a daemon's end into a failure: its exit state, the log's own error quoted, the remedy where the cause is known.

    Where the log states which rank or node died, that is named. Where it has no error of its own, or only a consequence, the files that
    were kept of the daemon are searched.
    """
    if daemon is None:
        return Failure(stage=stage, reason=reason, detail=what, log=str(attempt / "keeper.log"))
    said = window(Path(daemon.log))
    diagnosis = diagnose(said, stalled=stalled)
    quote = diagnosis.quote if diagnosis else root_error(said) or _launcher_words(attempt, daemon.name)
    if _is_vague(diagnosis) and (diagnosis or not states_error(said)):
        files = salvage.files(salvage.folder(daemon.log, daemon.name))
        named = ((path, found) for path in files if (found := diagnose(path)) and not _is_vague(found))
        path, better = next(named, (None, None))
        diagnosis = better or diagnosis
        quote += tuple(f"{path.name}: {line}" for line in better.quote) if path and better else first_errors(files)
    who = in_words(lost(said), _names(attempt), _node(daemon))
    told = " ".join(filter(None, (diagnosis.cause if diagnosis else "", who)))
    return Failure(
        stage=stage,
        reason=diagnosis.reason if diagnosis else reason,
        detail=f"{what}{': ' + told if told else ''}",
        log=daemon.log,
        quote=quote,
        remedy=diagnosis.remedy if diagnosis else "Read the quoted lines and the log; mend the cause; run again.",
    )


def _is_vague(diagnosis: Diagnosis | None) -> bool:
    """Return whether nothing is known, or no more than that something failed."""
    return diagnosis is None or row(diagnosis.reason).generic


def _names(attempt: Path) -> dict[str, str]:
    """Return the nodes of a job, as surveyed before the attempt began: name by address."""
    names = {}
    for path in (attempt / "survey" / "look").glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            if node := Answer.model_validate_json(path.read_text()).node:
                names[node.address] = node.name
    return names


def _launcher_words(attempt: Path, name: str) -> tuple[str, ...]:
    """Return the last errors of a daemon's launcher: a lost node, or a step that Slurm did not start."""
    log = supervisor.launcher_log(attempt, name)
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return tuple(line for line in lines if "error" in line.lower())[-3:]


def how_it_ended(daemon: DaemonState) -> str:
    """Return words for a daemon's end: its node, if it was on one of a job, its own pid there and not the launcher's, its exit."""
    node = _node(daemon)
    name = f"{daemon.name} on {node}" if node else daemon.name
    if daemon.ended_at is None:
        return f"{name} still runs"
    pid = daemon.pid
    # Written by the far end; missing without a launcher, or when the process never came to its node.
    with contextlib.suppress(OSError, ValueError, LookupError):
        pid = json.loads((Path(daemon.log).parent / "requests" / f"{daemon.name}.place.json").read_text())["pid"]
    if daemon.signal is None:
        return f"{name} (pid {pid}) exited with code {daemon.exit_code}"
    known = daemon.signal in list(signal.Signals)
    return f"{name} (pid {pid}) was ended by signal {daemon.signal}{f' ({signal.Signals(daemon.signal).name})' if known else ''}"


def _node(daemon: DaemonState) -> str | None:
    """Return the node of a job that a daemon was on; None on a machine without a scheduler, where there is no choice."""
    launched = supervisor.launcher_log(Path(daemon.log).parent, daemon.name).exists()
    return daemon.node if launched or daemon.node != identity.host() else None


def scratch_folder(attempt: Path) -> Path:
    """Return the attempt's short-lived files on this machine: Ray's sockets and logs."""
    return Path(spec(attempt).scratch)


def spec(attempt: Path) -> SupervisorSpec:
    """Return what the attempt's supervisor was started with."""
    return SupervisorSpec.model_validate_json((attempt / "keeper-spec.json").read_text())


def left_over(*attempts: Path) -> list[psutil.Process]:
    """Return processes of these attempts that live on this machine, their supervisors included."""
    folders = [scratch_folder(one) for one in attempts if (one / "keeper-spec.json").exists() and not supervisor.copied(one)]
    return identity.marked(*attempts, *folders)


def find_daemon(attempt: Path, name: str) -> DaemonState | None:
    """Return the state of one daemon."""
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
    """Return the daemon whose end took the others along: with a Ray cluster that may be a raylet and not the server."""
    state = supervisor.read_state(attempt)
    first = state.why.split(":")[1] if state and state.why and state.why.startswith("daemon_ended:") else server
    return find_daemon(attempt, first) or find_daemon(attempt, server)
