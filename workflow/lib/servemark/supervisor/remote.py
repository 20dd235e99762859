"""The far end of a launcher: starts one requested process on a node and ends it, with all that it started, when it is told to.

``python -m servemark.supervisor.remote REQUEST.json``. Standard input is a leash. Its end (the keeper closed it, or died; the launcher was
killed; the node with the keeper is gone) ends the process: TERM, grace, KILL. So does its silence, where a keeper is to be heard: the
network is cut, or Slurm's daemon here is dead and the launcher's end did not come through. The exit code is the process's own, 128 + N
for signal N.
Where the process is says ``REQUEST.place.json`` beside the request. When it ends by itself, what the request names of the files that it
leaves on this node is kept beside its log (servemark.supervisor.salvage).

Whoever asks for the end may never come here to tidy up (the job was cancelled, the network is cut): the last of the attempt's processes on
this node removes its scratch folder. Shared memory that the process had mapped and left is removed too.
"""

from __future__ import annotations

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
# In a scratch folder: a file for each of us that uses it.
USERS = ".users"


class _Leash:
    """Whether somebody asks for the end: by a signal, by letting go, or by having nothing to say.

    Args:
        silence_s: see :class:`servemark.supervisor.process_request.DaemonRequest`.
    """

    def __init__(self, silence_s: float | None) -> None:
        self.silence_s = silence_s
        self.signalled = False
        self.let_go = False
        self.silent_s = 0.0
        self._looked_at = time.monotonic()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, *_: object) -> None:
        self.signalled = True

    @property
    def silent(self) -> bool:
        """Whether nothing was heard for too long."""
        return self.silence_s is not None and self.silent_s > self.silence_s

    @property
    def ended(self) -> bool:
        """Look at it for up to a tick."""
        heard = bool(select.select([0], [], [], TICK_S)[0])
        now = time.monotonic()
        # A node that stood still, with us on it, has heard nothing either; that alone is no end.
        self.silent_s = 0.0 if heard else self.silent_s + min(now - self._looked_at, 10 * TICK_S)
        self._looked_at = now
        self.let_go = heard and not os.read(0, 4096)
        return self.signalled or self.let_go or self.silent


def run(path: Path) -> int:
    """Start what the file asks for and wait for its end; returns the exit code to hand on."""
    request = process_request.DaemonRequest.model_validate_json(path.read_text())
    processes.become_subreaper()
    leash = _Leash(request.silence_s)
    scratch = Path(request.scratch) if request.scratch else None
    if scratch:
        _use(scratch)
    env = process_request.environment(request)
    if mark := os.environ.get(processes.MARK_VARIABLE):
        env[processes.MARK_VARIABLE] = mark
    env[processes.NODE_VARIABLE] = processes.here()
    child = children.start_child(process_request.command(request), log=Path(request.log), env=env)
    identity = processes.Identity.of(child.pid)
    place = {"host": processes.host(), "pid": child.pid, "identity": str(identity)}
    with contextlib.suppress(OSError):
        write_atomically(path.with_suffix(".place.json"), json.dumps(place) + "\n")
    status = None
    segments = Segments(scratch)
    while status is None and not leash.ended:
        segments.look()
        status = _reap(child.pid)
    segments.look(now=True)
    asked = status is None
    deadline = time.monotonic() + request.grace_s
    if asked:
        if identity:
            identity.signal(signal.SIGTERM)
        while status is None and time.monotonic() < deadline:
            status = _reap(child.pid)
            time.sleep(0.02)
    status = _end_rest(child.pid, status, min(deadline, time.monotonic() + 1.0))
    if scratch and request.keep and not asked and not leash.signalled:
        salvage.keep(scratch, request.keep, Path(request.log), salvage.folder(request.log, request.name))
    segments.remove()
    if scratch:
        _leave(scratch, remove=asked)
    child.returncode = 0  # collected here; the destructor of Popen must not try again
    code = os.waitstatus_to_exitcode(status) if status is not None else 0
    return code if code >= 0 else 128 - code


def _use(scratch: Path) -> None:
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    (scratch / USERS).mkdir(exist_ok=True)
    (scratch / USERS / str(os.getpid())).touch()


def _leave(scratch: Path, *, remove: bool) -> None:
    """Leave the folder. The last process to leave removes it if it is told to."""
    with contextlib.suppress(OSError):
        (scratch / USERS / str(os.getpid())).unlink()
        if remove and not any((scratch / USERS).iterdir()):
            shutil.rmtree(scratch, ignore_errors=True)


def _reap(pid: int) -> int | None:
    """Collect ended descendants; the wait status of ``pid`` if it was among them."""
    found = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if ended == 0:
            return found
        if ended == pid:
            found = status


def _end_rest(pid: int, status: int | None, deadline: float) -> int | None:
    while left := processes.descendants(os.getpid()):
        if time.monotonic() > deadline:
            processes.signal_all(left, signal.SIGKILL)
        time.sleep(0.02)
        status = _reap(pid) if status is None else (_reap(pid), status)[1]
    return _reap(pid) if status is None else status


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1])))
