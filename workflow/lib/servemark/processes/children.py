"""Children that cannot outlive us: started in sessions of their own, ended with all that they started. Linux only."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import snakemake_executor_plugin_slurm_guarded as plugin
from servemark.processes import identity
from servemark.processes.identity import Identity, die_with_parent


def start_child(argv: Sequence[str], *, log: Path, env: Mapping[str, str], leash: bool = False) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own that dies when this thread dies; output is appended to ``log``.

    Call from a thread that lives as long as the child is wanted: PR_SET_PDEATHSIG follows the creating thread (prctl(2)).

    Args:
        leash: give it a pipe as standard input that nothing is written to; its end tells the child that we are gone or want its end.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab", buffering=0) as stream, open(os.devnull, "rb") as nothing:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if leash else nothing,
            stdout=stream,
            stderr=stream,
            env=dict(env),
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def end_group(child: subprocess.Popen[bytes], grace_s: float = 3.0) -> None:
    """End a child started by :func:`start_child` with all that it started: TERM, grace, KILL."""
    tree = identity.descendants(child.pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(grace_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    identity.signal_all(tree, signal.SIGKILL)
    child.wait()


class LifelineWatch:
    """Ends this process, and the children it registered, as soon as the lifeline ends. For rule scripts and their tools.

    A script's own parent is a shell, so PR_SET_PDEATHSIG on the script would watch the wrong process.
    """

    def __init__(self, watched: Identity | None = None):
        self._watched = watched or identity.lifeline()
        self._children: set[int] = set()
        self._ending = False
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def add(self, child: subprocess.Popen[bytes]) -> None:
        """Kill this child's process group when the lifeline ends."""
        with self._lock:
            self._children.add(child.pid)

    def remove(self, child: subprocess.Popen[bytes]) -> None:
        """Forget a child that has ended. Do not return once the lifeline has: what we did to the child is not its own end."""
        with self._lock:
            self._children.discard(child.pid)
        while self._ending:
            time.sleep(1.0)

    def _watch(self) -> None:
        identity.wait_for_end(self._watched)
        with self._lock:
            self._ending = True
            children = list(self._children)
        for pid in children:
            identity.signal_all(identity.descendants(pid), signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        os._exit(130)


@dataclass(frozen=True)
class ToolResult:
    """How a short-lived tool ended. ``exit_code`` is negative for a signal; ``stopped`` says why we ended it, if we did."""

    exit_code: int
    seconds: float
    stopped: str | None = None


def run_tool(
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    timeout_s: float,
    watch: LifelineWatch | None = None,
    check: Callable[[], str | None] = lambda: None,
    interval_s: float = 0.2,
    leash: bool = False,
) -> ToolResult:
    """Run a short-lived tool to its end. It dies with us and with the lifeline.

    Args:
        check: called every ``interval_s``; a text ends the tool, and is returned as ``stopped``.
        leash: see :func:`start_child`.
    """
    begin = time.monotonic()
    child = start_child(argv, log=log, env=env, leash=leash)
    if watch:
        watch.add(child)
    stopped = None
    try:
        while True:
            try:
                child.wait(interval_s)
                break
            except subprocess.TimeoutExpired:
                stopped = check() or (f"timeout after {timeout_s:.0f} s" if time.monotonic() - begin > timeout_s else None)
                if stopped:
                    break
    finally:
        if child.stdin:
            child.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(3.0 if stopped else 0.0)
        if child.poll() is None:
            end_group(child)
        if watch:
            watch.remove(child)
    return ToolResult(child.returncode, time.monotonic() - begin, stopped)


def python_path() -> dict[str, str]:
    """Return the variable by which a child of our interpreter finds servemark and the Slurm executor.

    ``servemark.pth`` is not enough: its relative lines lead nowhere where the interpreter is named by the link ``.snakemake/interpreter``.
    """
    return {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), str(Path(plugin.__path__[0]).parent)])}
