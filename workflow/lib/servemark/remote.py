"""The far end of a launcher: starts one requested process on a node and ends it, with all that it started, when it is told to.

``python -m servemark.remote REQUEST.json``. Standard input is a leash: its end (the keeper closed it, or died; the launcher was killed; the
node with the keeper is gone) ends the process: TERM, grace, KILL. The exit code is the process's own, 128 + N for signal N.
Where the process is says ``REQUEST.place.json`` beside the request.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path

from servemark import children, daemon, processes, survey
from servemark.records import write_atomically

TICK_S = 0.1


class _Asked:
    """Whether somebody asked for the end by a signal."""

    def __init__(self) -> None:
        self.ended = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, *_: object) -> None:
        self.ended = True


def run(path: Path) -> int:
    """Start what the file asks for and wait for its end; returns the exit code to hand on."""
    request = daemon.DaemonRequest.model_validate_json(path.read_text())
    processes.become_subreaper()
    asked = _Asked()
    if request.scratch:
        Path(request.scratch).mkdir(mode=0o700, parents=True, exist_ok=True)
    env = daemon.environment(request)
    if mark := os.environ.get(processes.MARK_VARIABLE):
        env[processes.MARK_VARIABLE] = mark
    env[survey.NODE_VARIABLE] = survey.here()
    child = children.start_child(daemon.command(request), log=Path(request.log), env=env)
    identity = processes.Identity.of(child.pid)
    place = {"host": processes.host(), "pid": child.pid, "identity": str(identity)}
    with contextlib.suppress(OSError):
        write_atomically(path.with_suffix(".place.json"), json.dumps(place) + "\n")
    status = None
    while status is None and not asked.ended and not _leash_ended():
        status = _reap(child.pid)
    deadline = time.monotonic() + request.grace_s
    if status is None:
        if identity:
            identity.signal(signal.SIGTERM)
        while status is None and time.monotonic() < deadline:
            status = _reap(child.pid)
            time.sleep(0.02)
    status = _end_rest(child.pid, status, min(deadline, time.monotonic() + 1.0))
    child.returncode = 0  # collected here; the destructor of Popen must not try again
    code = os.waitstatus_to_exitcode(status) if status is not None else 0
    return code if code >= 0 else 128 - code


def _leash_ended() -> bool:
    return bool(select.select([0], [], [], TICK_S)[0]) and not os.read(0, 4096)


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
