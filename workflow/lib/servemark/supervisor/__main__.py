"""The supervisor: one small process per deployment that owns everything long-lived in it. See docs/explanation/supervision.md.

``python -m servemark.supervisor ATTEMPT`` reads ``ATTEMPT/supervisor-spec.json`` and takes the machine lock. It starts the daemons that
appear as ``ATTEMPT/requests/NAME.json`` and records each in ``ATTEMPT/daemons/NAME.json``. On a node of a job it starts them through a
launcher (srun) and ``servemark.supervisor.remote``. When there is a reason to end, it ends the whole tree (TERM, grace, KILL), removes
what the tree left, and writes the reason to ``ATTEMPT/supervisor.json``.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from servemark.files import storage
from servemark.processes import children
from servemark.processes import identity as processes
from servemark.processes.identity import Identity
from servemark.processes.shared_memory import Segments, remove_noted
from servemark.records import DaemonState, utc_now, write_atomically
from servemark.supervisor import (
    STATE,
    SupervisorState,
    launcher_log,
    ownership,
    process_request,
    read_spec,
    remove_secrets,
    worker_file,
)
from snakemake_executor_plugin_slurm_guarded import commands

TICK_S = 0.1
# Time between two reads of the owner's file, which lies on a shared disk.
OWNER_S = 1.0
# After its grace a remote agent kills the rest and removes its files; then srun ends. On two busy cores 1 s was too short.
FAR_END_S = 5.0


class Supervisor:
    """One running supervisor; :meth:`run` is its whole life."""

    def __init__(self, attempt: Path):
        self.attempt = attempt
        self.spec = read_spec(attempt)
        self.owner_process = Identity.parse(self.spec.lifeline)
        self.daemons: dict[str, DaemonState] = {}
        self.identities: dict[str, Identity] = {}
        # Daemons whose end does not end the deployment.
        self.optional: set[str] = set()
        self.launchers: dict[str, subprocess.Popen[bytes]] = {}
        self.launchers_lock = threading.Lock()
        # Of each launcher: the size of its log when it started, and the time until which it may be restarted.
        self.launches: dict[str, tuple[int, float]] = {}
        # When each launcher that reached no slurmctld is restarted.
        self.restarts: dict[str, float] = {}
        self.terminated = False
        self._read_owner_at = 0.0

    def write_state(self, state: str, **more: Any) -> None:
        """Write the supervisor's state."""
        spec = self.spec
        same: dict[str, Any] = {"deployment": spec.deployment, "owner": spec.owner, "attempt_id": spec.attempt_id}
        text = SupervisorState(state=state, identity=str(processes.myself()), **same, **more)
        write_atomically(self.attempt / STATE, text.model_dump_json(indent=2) + "\n")

    def run(self) -> None:
        """Take the machine lock, start what stages request until there is a reason to end, end everything, record the reason."""
        processes.become_subreaper()
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "terminated", True))
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        segments = Segments(Path(self.spec.scratch))
        try:
            why = self._take_machine()
            if why is None:
                self.write_state("running")
        except OSError as error:
            # Nothing has been started. The stage quotes this log.
            refused = storage.refusal(error, [self.attempt, Path(self.spec.scratch)])
            print(refused.message() if refused else f"{type(error).__name__}: {error}", file=sys.stderr)
            why = refused.reason if refused else "cannot_begin"
        if why is None:
            threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
            why = self._supervise(segments)
        # A full disk must not keep the tree alive.
        with contextlib.suppress(OSError):
            self.write_state("ending", why=why)
        # So must a defect.
        with contextlib.suppress(Exception):
            segments.look(now=True)
        leftovers = self._end_tree(why)
        segments.remove()
        # Remote agents on this machine may have been killed before they could remove theirs.
        remove_noted(Path(self.spec.scratch))
        shutil.rmtree(self.spec.scratch, ignore_errors=True)
        with contextlib.suppress(OSError):
            # After a daemon's own end, a stage that just begins may read the keys; stop_deployment removes them.
            if not why.startswith("daemon_ended"):
                remove_secrets(self.attempt)
            # During a run its later stages read the live records.
            for record in self.spec.tokens if why == "lifeline_ended" else ():
                Path(record).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.write_state("ended", why=why, ended_at=utc_now(), leftovers=tuple(leftovers))

    def _supervise(self, segments: Segments) -> str:
        """Start what stages request until there is a reason to end, and return it."""
        try:
            while (why := self._reason_to_end()) is None:
                # A shared disk may fail for a moment.
                with contextlib.suppress(OSError):
                    self._start_requested()
                segments.look()
                time.sleep(TICK_S)
            return why
        except Exception:  # a defect must not leave processes behind
            with contextlib.suppress(OSError):
                traceback.print_exc()
            return "supervisor_failed"

    def _beat(self) -> None:
        """Send the heartbeat to the remote agents, in a thread of its own: a hanging shared disk may block the main thread."""
        while True:
            time.sleep(process_request.BEAT_S)
            with self.launchers_lock:
                for child in self.launchers.values():
                    # _reap handles a broken pipe.
                    with contextlib.suppress(OSError):
                        if child.stdin and not child.stdin.closed and select.select([], [child.stdin], [], 0)[1]:
                            os.write(child.stdin.fileno(), b".")

    def _take_machine(self) -> str | None:
        if self.spec.machine_lock is None:
            return None
        self._machine, known = ownership.MachineLock(Path(self.spec.machine_lock)), None
        while holder := self._machine.take():
            if holder != known:
                self.write_state("waiting", waiting_for=holder)
                known = holder
            if why := self._reason_to_end():
                return why
            time.sleep(TICK_S)
        self._machine.sign(f"deployment {self.spec.deployment} (supervisor {os.getpid()}, since {utc_now()}, {self.attempt})")
        return None

    def _reason_to_end(self) -> str | None:
        self._reap()
        if self.terminated or _holds(lambda: (self.attempt / "stop").exists()):
            return "stop_requested"
        if not self.owner_process.alive:
            return "lifeline_ended"
        # A stage's script that was killed (kill -9, out of memory) cannot stop its deployment.
        worker = worker_file(self.attempt.parents[1])
        if _holds(lambda: not Identity.parse(worker.read_text()).alive and worker.exists()):
            return "stage_killed"
        if self.spec.ends_at and time.time() > self.spec.ends_at - self.spec.end_margin_s:
            return "out_of_time"
        if self.spec.owner and time.monotonic() > self._read_owner_at:
            self._read_owner_at = time.monotonic() + OWNER_S
            if _holds(lambda: ownership.owner(self.attempt.parents[1]) not in (None, self.spec.owner)):
                return "taken_over"
        ended = [name for name, state in self.daemons.items() if state.ended_at and name not in self.optional]
        return f"daemon_ended:{ended[0]}" if ended else None

    def _start_requested(self) -> None:
        folder = self.attempt / "requests"
        requested = [path.stem for path in sorted(folder.glob("*.json")) if not path.name.endswith(".place.json")]
        due = [name for name, at in self.restarts.items() if time.monotonic() > at]
        for name in [*(name for name in requested if name not in self.daemons), *due]:
            request = process_request.DaemonRequest.model_validate_json((folder / f"{name}.json").read_text())
            self.restarts.pop(name, None)
            self._start(request)

    def _start(self, request: process_request.DaemonRequest) -> None:
        state = DaemonState(name=request.name, argv=request.argv, log=request.log, node=request.node, started_at=utc_now())
        if request.optional:
            self.optional.add(request.name)
        try:
            if request.launcher:
                child = self._launch(request)
            else:
                argv, env = process_request.prepared(request, processes.mark(self.attempt))
                child = children.start_child(argv, log=Path(request.log), env=env)
        except OSError as error:
            with contextlib.suppress(OSError), open(request.log, "a") as log:
                log.write(f"servemark: cannot start {request.argv[0]}: {error}\n")
            self._record(state.model_copy(update={"ended_at": utc_now(), "exit_code": 127, "why": "never_started"}))
            return
        self.identities[request.name] = Identity.of(child.pid) or Identity(child.pid, 0)
        child.returncode = 0  # _reap collects every child, so Popen's destructor must not
        self._record(state.model_copy(update={"pid": child.pid}))

    def _launch(self, request: process_request.DaemonRequest) -> subprocess.Popen[bytes]:
        argv, env = process_request.through_launcher(request, self.attempt / "requests" / f"{request.name}.json")
        # The node writes the process's log. The launcher needs another one: two machines cannot append to one file on a shared disk.
        Path(request.log).touch()
        log = launcher_log(self.attempt, request.name)
        _, until = self.launches.get(request.name, (0, time.monotonic() + commands.PATIENCE_S))
        self.launches[request.name] = (log.stat().st_size if log.exists() else 0, until)
        child = children.start_child(argv, log=log, env=env | processes.mark(self.attempt), heartbeat_pipe=True)
        with self.launchers_lock:
            self.launchers[request.name] = child
        return child

    def _record(self, state: DaemonState) -> None:
        self.daemons[state.name] = state
        with contextlib.suppress(OSError):
            write_atomically(self.attempt / "daemons" / f"{state.name}.json", state.model_dump_json(indent=2) + "\n")

    def _reap(self, why: str = "exited") -> None:
        for pid, status in children.reaped():
            for state in self.daemons.values():
                if state.pid == pid and not state.ended_at:
                    code = os.waitstatus_to_exitcode(status)
                    begin, until = self.launches.get(state.name, (0, 0.0))
                    may_restart = code > 0 and why == "exited" and time.monotonic() < until
                    if may_restart and commands.step_not_started(launcher_log(self.attempt, state.name), begin):
                        self.restarts[state.name] = time.monotonic() + commands.PAUSE_S
                        continue
                    if state.name in self.launchers and code > 128:
                        code = 128 - code  # servemark.supervisor.remote exits with 128 + N after signal N
                    ending = {"exit_code": code} if code >= 0 else {"signal": -code}
                    self._record(state.model_copy(update={"ended_at": utc_now(), "why": why, **ending}))

    def _end_tree(self, why: str) -> list[str]:
        """End the daemons, last started first, then all other descendants; return the processes that had to be killed."""
        orphaned = why == "lifeline_ended"
        grace_s = self.spec.orphan_grace_s if orphaned else self.spec.stop_grace_s
        # A remote agent has the same grace and kills the rest after it. Its launcher ends later.
        far_s = 0.0 if orphaned else FAR_END_S
        label = "sibling_ended" if why.startswith("daemon_ended") else why
        deadline = time.monotonic() + grace_s
        for name in self.restarts:
            self._record(self.daemons[name].model_copy(update={"ended_at": utc_now(), "why": "never_started"}))
        for name in reversed(self.daemons):
            identity = self.identities.get(name)
            if name in self.launchers:
                with self.launchers_lock:
                    if pipe := self.launchers[name].stdin:
                        pipe.close()
            elif identity:
                identity.signal(signal.SIGTERM)
            until = deadline + (far_s if name in self.launchers else 0.0)
            while time.monotonic() < until and identity and identity.alive:
                self._reap(label)
                time.sleep(0.02)
        self._reap(label)
        until = time.monotonic() + min(1.0, grace_s)
        while time.monotonic() < until and processes.descendants(os.getpid()):
            self._reap()
            time.sleep(0.02)
        leftovers = processes.descendants(os.getpid())
        named = [processes.describe(p) for p in leftovers]
        while leftovers:
            processes.signal_all(leftovers, signal.SIGKILL)
            self._reap(label)
            time.sleep(0.02)
            leftovers = processes.descendants(os.getpid())
        self._reap(label)
        return named


def _holds(condition: Callable[[], bool]) -> bool:
    """Return whether a condition on a shared disk holds; False after an error of the disk, which is no reason to end."""
    try:
        return condition()
    except (OSError, ValueError):
        return False


if __name__ == "__main__":
    supervisor = Supervisor(Path(sys.argv[1]))
    with contextlib.suppress(KeyboardInterrupt):
        supervisor.run()
