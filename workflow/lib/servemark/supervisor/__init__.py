"""Start, read and stop a deployment's supervisor (``__main__``)."""

import os
import signal
import sys
import time
from pathlib import Path

import psutil

from servemark.errors import ServemarkError
from servemark.processes import children
from servemark.processes.identity import Identity
from servemark.records import DaemonState, Strict, write_atomically
from servemark.supervisor import process_request
from snakemake_executor_plugin_slurm_guarded.records import Checkout

# Names of the files with keys in an attempt's folder.
SECRETS = ("api-key", "ray-token")
# Files of a supervisor in its attempt's folder: its state, its settings, its log.
STATE, SPEC, LOG = "supervisor.json", "supervisor-spec.json", "supervisor.log"
# Their names in attempts of earlier versions, in checkouts and archives.
EARLIER_NAMES = {STATE: "keeper.json", SPEC: "keeper-spec.json", LOG: "keeper.log"}


class SupervisorStuck(ServemarkError, TimeoutError):
    """A supervisor did not end when asked."""

    default_reason = "cannot_stop"


class SupervisorSpec(Strict):
    """The settings of a supervisor, in :data:`SPEC`."""

    deployment: str
    # The owner process.
    lifeline: str
    # None: a scheduler assigned the nodes.
    machine_lock: str | None
    # Paths of the live records.
    tokens: tuple[str, ...]
    scratch: str
    stop_grace_s: float = 10.0
    # 15 s after the end of the owner process, no process may be left.
    orphan_grace_s: float = 4.0
    # The end of the allocation, seconds since 1970, and how long before it the supervisor ends everything.
    ends_at: float | None = None
    end_margin_s: float = 30.0
    # See ownership.py.
    owner: str | None = None
    # None: written by an older version.
    checkout: Checkout | None = None
    # Unique, because another machine numbers its attempts in the same way. None: written by an older version.
    attempt_id: str | None = None


class SupervisorState(Strict):
    """The state of a supervisor, in :data:`STATE`."""

    state: str  # waiting | running | ending | ended
    identity: str
    deployment: str
    owner: str | None = None
    attempt_id: str | None = None
    why: str | None = None
    ended_at: str | None = None
    leftovers: tuple[str, ...] = ()
    waiting_for: str | None = None


def own_file(attempt: Path, name: str) -> Path:
    """Return the path of a supervisor's file :data:`STATE`, :data:`SPEC` or :data:`LOG`; its earlier name if only that exists."""
    path, earlier = attempt / name, attempt / EARLIER_NAMES[name]
    return earlier if not path.exists() and earlier.exists() else path


def worker_file(deployment: Path) -> Path:
    """Return the file in which a stage's script records its process."""
    return deployment / "stage"


def launcher_log(attempt: Path, name: str) -> Path:
    """Return the log of a daemon's launcher. It shows a lost node, or a step that Slurm did not start."""
    return attempt / f"{name}.launcher.log"


def remove_secrets(attempt: Path) -> None:
    """Remove the attempt's keys."""
    for name in SECRETS:
        (attempt / name).unlink(missing_ok=True)


def read_state(attempt: Path) -> SupervisorState | None:
    """Return the supervisor's state; None before it has written one."""
    try:
        return SupervisorState.model_validate_json(own_file(attempt, STATE).read_bytes())
    except FileNotFoundError:
        return None


def read_spec(attempt: Path) -> SupervisorSpec:
    """Return the settings of the attempt's supervisor."""
    return SupervisorSpec.model_validate_json(own_file(attempt, SPEC).read_text())


def attempt_id(attempt: Path) -> str | None:
    """Return the attempt's unique id; None if an older version started it, or its settings cannot be read."""
    try:
        return read_spec(attempt).attempt_id
    except (OSError, ValueError):
        return None


def copied(attempt: Path) -> bool:
    """Return whether the attempt belongs to another checkout and was copied here. Its processes and scratch folder are the other's."""
    try:
        checkout = read_spec(attempt).checkout
    except (OSError, ValueError):
        return False
    return checkout is not None and not checkout.is_at(Path.cwd())


def read_daemons(attempt: Path) -> tuple[DaemonState, ...]:
    """Return every daemon that the supervisor started, first started first."""
    found = [DaemonState.model_validate_json(p.read_bytes()) for p in (attempt / "daemons").glob("*.json")]
    return tuple(sorted(found, key=lambda d: (d.started_at or "", d.name)))


def is_alive(attempt: Path) -> bool:
    """Return whether the attempt's supervisor runs and has not begun to end; False for one copied from another checkout."""
    state = read_state(attempt)
    lives = state and state.state in ("waiting", "running") and Identity.parse(state.identity).alive
    return bool(lives) and not copied(attempt)


def launch(attempt: Path, spec: SupervisorSpec) -> None:
    """Start a supervisor in its own session; it outlives the caller and ends with the owner process."""
    attempt.mkdir(parents=True, exist_ok=True)
    for folder in ("requests", "daemons"):
        (attempt / folder).mkdir(exist_ok=True)
    write_atomically(attempt / SPEC, spec.model_dump_json(indent=2) + "\n")
    with open(attempt / LOG, "ab") as log, open(os.devnull, "rb") as nothing:
        psutil.Popen(
            [sys.executable, "-m", "servemark.supervisor", str(attempt)],
            stdin=nothing,
            stdout=log,
            stderr=log,
            env=dict(os.environ) | children.python_path(),
            start_new_session=True,
        )


def request(attempt: Path, asked: process_request.DaemonRequest, timeout_s: float = 20.0) -> DaemonState:
    """Have the supervisor start a daemon, and wait until it did.

    Raises:
        TimeoutError: the supervisor has ended or is stuck.
    """
    write_atomically(attempt / "requests" / f"{asked.name}.json", asked.model_dump_json(indent=2) + "\n", mode=0o600)
    path = attempt / "daemons" / f"{asked.name}.json"
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        # A supervisor that ends at once may have written the record since the first `path.exists()`.
        if (time.monotonic() > deadline or not is_alive(attempt)) and not path.exists():
            raise TimeoutError(f"The supervisor did not start {asked.name}; see {own_file(attempt, LOG)}")
        time.sleep(0.02)
    return DaemonState.model_validate_json(path.read_text())


def ask_to_end(attempt: Path) -> None:
    """Write the stop file; send a signal if the disk is full. Do nothing to attempts of other checkouts.

    Raises:
        OSError: neither is possible.
    """
    if copied(attempt):
        return
    try:
        (attempt / "stop").touch()
    except OSError:
        state = read_state(attempt)
        if state is None or not Identity.parse(state.identity).here:
            raise
        Identity.parse(state.identity).signal(signal.SIGTERM)


def stop(attempt: Path, timeout_s: float) -> SupervisorState | None:
    """Ask the supervisor to end everything and wait for it. Do nothing to attempts of other checkouts.

    Raises:
        SupervisorStuck: it has not ended after ``timeout_s``.
    """
    if copied(attempt):
        return read_state(attempt)
    ask_to_end(attempt)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        state = read_state(attempt)
        if state is None or not Identity.parse(state.identity).alive:
            return read_state(attempt)  # the last state, which may be newer than the one just read
        time.sleep(0.05)
    raise SupervisorStuck(
        f"The processes of {attempt} did not end within {timeout_s:.0f} s.",
        look=str(own_file(attempt, LOG)),
        do="List them with ps. A process in state D waits for a device or a file system.",
    )
