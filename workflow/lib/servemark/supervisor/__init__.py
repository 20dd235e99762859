"""The keeper, seen from outside: how it is started and asked, and what it says of itself.

One small process per deployment owns everything long-lived in it; ``__main__`` is its life.
"""

from __future__ import annotations

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


class KeeperStuck(ServemarkError, TimeoutError):
    """A keeper did not end when it was asked to."""

    default_reason = "cannot_stop"


class KeeperSpec(Strict):
    """What a keeper is started with."""

    deployment: str
    lifeline: str
    # None: a scheduler has given us our nodes.
    machine_lock: str | None
    tokens: tuple[str, ...]
    scratch: str
    stop_grace_s: float = 10.0
    # After the lifeline has ended nobody waits for a graceful end, and nothing may be left 15 s later.
    orphan_grace_s: float = 4.0
    # When the time of the allocation is over, seconds since 1970, and how long before that everything is ended.
    ends_at: float | None = None
    end_margin_s: float = 30.0
    # Who works on this deployment; see fence.py.
    owner: str | None = None
    # Where it works; None: written by an older version.
    checkout: Checkout | None = None


class KeeperState(Strict):
    """What a keeper says of itself."""

    state: str  # waiting | running | ending | ended
    identity: str
    deployment: str
    owner: str | None = None
    why: str | None = None
    ended_at: str | None = None
    leftovers: tuple[str, ...] = ()
    waiting_for: str | None = None


def worker_file(deployment: Path) -> Path:
    """Return where the script that works on a deployment says which process it is, while it does."""
    return deployment / "stage"


def launcher_log(attempt: Path, name: str) -> Path:
    """Return what the launcher of a daemon says: that its node was lost, or that a step could not be started."""
    return attempt / f"{name}.launcher.log"


def remove_secrets(attempt: Path) -> None:
    """Remove the attempt's keys, if they are there still."""
    for name in SECRETS:
        (attempt / name).unlink(missing_ok=True)


def read_state(attempt: Path) -> KeeperState | None:
    """Return the keeper's own word, or None before its first."""
    try:
        return KeeperState.model_validate_json((attempt / "keeper.json").read_bytes())
    except FileNotFoundError:
        return None


def copied(attempt: Path) -> bool:
    """Return whether an attempt was made in another checkout and copied here: its processes and scratch folder are that one's.

    An attempt without a readable ``keeper-spec.json`` counts as made here.
    """
    try:
        checkout = KeeperSpec.model_validate_json((attempt / "keeper-spec.json").read_text()).checkout
    except (OSError, ValueError):
        return False
    return checkout is not None and not checkout.is_at(Path.cwd())


def read_daemons(attempt: Path) -> tuple[DaemonState, ...]:
    """Every daemon the keeper has started, in the order of their start."""
    found = [DaemonState.model_validate_json(p.read_bytes()) for p in (attempt / "daemons").glob("*.json")]
    return tuple(sorted(found, key=lambda d: (d.started_at or "", d.name)))


def is_alive(attempt: Path) -> bool:
    """Return whether the keeper of this attempt runs and has not begun to end; False for one copied from another checkout."""
    state = read_state(attempt)
    lives = state and state.state in ("waiting", "running") and Identity.parse(state.identity).alive
    return bool(lives) and not copied(attempt)


def launch(attempt: Path, spec: KeeperSpec) -> None:
    """Start a keeper in a session of its own; it outlives the caller and ends with the lifeline."""
    attempt.mkdir(parents=True, exist_ok=True)
    for folder in ("requests", "daemons"):
        (attempt / folder).mkdir(exist_ok=True)
    write_atomically(attempt / "keeper-spec.json", spec.model_dump_json(indent=2) + "\n")
    env = dict(os.environ) | children.python_path()
    with open(attempt / "keeper.log", "ab") as log, open(os.devnull, "rb") as nothing:
        psutil.Popen(
            [sys.executable, "-m", "servemark.supervisor", str(attempt)],
            stdin=nothing,
            stdout=log,
            stderr=log,
            env=env,
            start_new_session=True,
        )


def request(attempt: Path, asked: process_request.DaemonRequest, timeout_s: float = 20.0) -> DaemonState:
    """Ask the keeper for a daemon and wait until it has started it.

    Raises:
        TimeoutError: the keeper did not take it up; it has ended or is stuck.
    """
    write_atomically(attempt / "requests" / f"{asked.name}.json", asked.model_dump_json(indent=2) + "\n", mode=0o600)
    path = attempt / "daemons" / f"{asked.name}.json"
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        if time.monotonic() > deadline or not is_alive(attempt):
            raise TimeoutError(f"the keeper did not start {asked.name}; its own words are in {attempt / 'keeper.log'}")
        time.sleep(0.02)
    return DaemonState.model_validate_json(path.read_text())


def ask_to_end(attempt: Path) -> None:
    """Ask the keeper for its end by the stop file; by a signal where the disk takes no file and the keeper is on this machine.

    An attempt of another checkout is left alone: its keeper works for that one.

    Raises:
        OSError: the stop file cannot be written and the keeper is not on this machine.
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


def stop(attempt: Path, timeout_s: float) -> KeeperState | None:
    """Ask the keeper to end everything and wait for it. Return at once for an attempt of another checkout.

    Raises:
        KeeperStuck: it did not within ``timeout_s``.
    """
    if copied(attempt):
        return read_state(attempt)
    ask_to_end(attempt)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        state = read_state(attempt)
        if state is None or not Identity.parse(state.identity).alive:
            return state
        time.sleep(0.05)
    raise KeeperStuck(
        f"The processes of {attempt} did not end within {timeout_s:.0f} s.",
        look=str(attempt / "keeper.log"),
        do="Look at them with ps; a process in state D waits for a device or a file system.",
    )
