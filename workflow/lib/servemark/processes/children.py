"""Child processes that end with this process: each in its own session, ended with all its descendants. Linux only."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import snakemake_executor_plugin_slurm_guarded as plugin
from servemark.processes import identity
from servemark.processes.identity import Identity, die_with_parent


def start_child(argv: Sequence[str], *, log: Path, env: Mapping[str, str], heartbeat_pipe: bool = False) -> subprocess.Popen[bytes]:
    """Start a process in its own session; the kernel kills it when this *thread* ends (PR_SET_PDEATHSIG, prctl(2)).

    Args:
        heartbeat_pipe: give it a pipe as standard input; when the pipe ends, we are gone or want the child's end.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab", buffering=0) as stream, open(os.devnull, "rb") as nothing:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if heartbeat_pipe else nothing,
            stdout=stream,
            stderr=stream,
            env=dict(env),
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def end_group(child: subprocess.Popen[bytes], grace_s: float = 3.0) -> None:
    """End a child of :func:`start_child` and its descendants: SIGTERM, ``grace_s`` seconds, SIGKILL."""
    tree = identity.descendants(child.pid)
    _signal_group(child.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(grace_s)
    _signal_group(child.pid, signal.SIGKILL)
    identity.signal_all(tree, signal.SIGKILL)
    child.wait()


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


class OwnerWatch:
    """Ends a rule's script and its tools as soon as the owner process ends. PR_SET_PDEATHSIG would watch the script's parent, a shell."""

    def __init__(self, watched: Identity | None = None):
        self._watched = watched or identity.owner_process()
        self._children: set[int] = set()
        self._ending = False
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, name="owner-process", daemon=True).start()

    def add(self, child: subprocess.Popen[bytes]) -> None:
        """Kill this child's process group when the owner process ends."""
        with self._lock:
            self._children.add(child.pid)

    def remove(self, child: subprocess.Popen[bytes]) -> None:
        """Forget a child that has ended. Never return after the owner process has ended: the caller would blame the child for our kill."""
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
            _signal_group(pid, signal.SIGKILL)
        os._exit(130)


@dataclass(frozen=True)
class ToolResult:
    """The end of a tool. ``exit_code`` is negative for a signal; ``stopped`` is the reason if :func:`run_tool` ended it."""

    exit_code: int
    seconds: float
    stopped: str | None = None


def run_tool(
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    timeout_s: float,
    watch: OwnerWatch | None = None,
    check: Callable[[], str | None] = lambda: None,
    interval_s: float = 0.2,
    heartbeat_pipe: bool = False,
) -> ToolResult:
    """Run a short-lived tool to its end. It dies with us and with the owner process.

    Args:
        check: called every ``interval_s``; if it returns a text, run_tool ends the tool with this text as ``stopped``.
    """
    begin = time.monotonic()
    child = start_child(argv, log=log, env=env, heartbeat_pipe=heartbeat_pipe)
    if watch:
        watch.add(child)
    stopped = None
    try:
        while child.poll() is None and not stopped:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(interval_s)
                break
            stopped = check() or (f"timeout after {timeout_s:.0f} s" if time.monotonic() - begin > timeout_s else None)
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


def reaped() -> Iterator[tuple[int, int]]:
    """Collect ended children, adopted ones included; yield process id and wait status of each."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def python_path() -> dict[str, str]:
    """Return the variable by which a child of this interpreter finds servemark and the Slurm executor.

    The relative lines of ``servemark.pth`` do not work for an interpreter started by the link ``.snakemake/interpreter``.
    """
    return {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), str(Path(plugin.__path__[0]).parent)])}
