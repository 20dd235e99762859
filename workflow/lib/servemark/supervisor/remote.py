"""The remote agent of a launcher: starts one requested process on a node, and ends it with all its descendants.

``python -m servemark.supervisor.remote REQUEST.json``. Standard input is the heartbeat pipe. If the pipe ends, or carries no heartbeat
for ``silence_s``, the remote agent stops the process (TERM, grace, KILL). The exit code is the process's own, 128 + N for signal N.
``REQUEST.place.json`` records host and process. If the process ends by itself, the remote agent keeps the files that the request names
next to the log (servemark.supervisor.salvage).

The last remote agent of an attempt that is asked to end removes the node's scratch folder: in a cancelled job no later process could.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

from servemark.processes import children
from servemark.processes import identity as processes
from servemark.processes.shared_memory import Segments
from servemark.records import write_atomically
from servemark.supervisor import process_request, salvage

TICK_S = 0.1
# Folder in a scratch folder, with a file for each remote agent that uses it.
USERS = ".users"


class _HeartbeatPipe:
    """Standard input. Its end, its silence or a signal requests the stop."""

    def __init__(self, silence_s: float | None) -> None:
        self.silence_s = silence_s
        self.signalled = False
        self.silent_s = 0.0
        self._read_at = time.monotonic()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, *_: object) -> None:
        self.signalled = True

    def ended(self) -> bool:
        """Wait up to a tick for a heartbeat; return whether the stop is requested."""
        heard = bool(select.select([0], [], [], TICK_S)[0])
        now = time.monotonic()
        # Time during which this whole node was suspended does not count.
        self.silent_s = 0.0 if heard else self.silent_s + min(now - self._read_at, 10 * TICK_S)
        self._read_at = now
        silent = self.silence_s is not None and self.silent_s > self.silence_s
        return (heard and not os.read(0, 4096)) or self.signalled or silent


def run(path: Path) -> int:
    """Start the requested process and wait for its end; return the exit code."""
    request = process_request.DaemonRequest.model_validate_json(path.read_text())
    processes.become_subreaper()
    pipe = _HeartbeatPipe(request.silence_s)
    scratch = Path(request.scratch) if request.scratch else None
    if scratch:
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        (scratch / USERS).mkdir(exist_ok=True)
        (scratch / USERS / str(os.getpid())).touch()
    marks = {processes.NODE_VARIABLE: processes.here()}
    if mark := os.environ.get(processes.MARK_VARIABLE):
        marks[processes.MARK_VARIABLE] = mark
    argv, env = process_request.prepared(request, marks)
    child = children.start_child(argv, log=Path(request.log), env=env)
    identity = processes.Identity.of(child.pid)
    place = {"host": processes.host(), "pid": child.pid, "identity": str(identity)}
    with contextlib.suppress(OSError):
        write_atomically(path.with_suffix(".place.json"), json.dumps(place) + "\n")
    status = None
    segments = Segments(scratch)
    while status is None and not pipe.ended():
        segments.look()
        status = _reap(child.pid)
    segments.look(now=True)
    asked_to_end = status is None
    deadline = time.monotonic() + request.grace_s
    if asked_to_end and identity:
        identity.signal(signal.SIGTERM)
    while status is None and time.monotonic() < deadline:
        status = _reap(child.pid)
        time.sleep(0.02)
    deadline = min(deadline, time.monotonic() + 1.0)
    while left := processes.descendants(os.getpid()):
        if time.monotonic() > deadline:
            processes.signal_all(left, signal.SIGKILL)
        time.sleep(0.02)
        status = _reap(child.pid, status)
    status = _reap(child.pid, status)
    if scratch and request.keep and not asked_to_end and not pipe.signalled:
        salvage.keep(scratch, request.keep, Path(request.log), salvage.folder(request.log, request.name))
    segments.remove()
    if scratch:
        with contextlib.suppress(OSError):
            (scratch / USERS / str(os.getpid())).unlink()
            if asked_to_end and not any((scratch / USERS).iterdir()):
                shutil.rmtree(scratch, ignore_errors=True)
    child.returncode = 0  # _reap collected it, so Popen's destructor must not
    code = os.waitstatus_to_exitcode(status) if status is not None else 0
    return code if code >= 0 else 128 - code


def _reap(pid: int, status: int | None = None) -> int | None:
    """Collect ended descendants; return the wait status of ``pid`` if it is among them, else ``status``."""
    return dict(children.reaped()).get(pid, status)


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1])))
