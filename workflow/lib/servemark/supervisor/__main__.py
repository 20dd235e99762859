"""The supervisor: one small process per deployment that owns everything long-lived in it.

``python -m servemark.supervisor ATTEMPT`` reads ``ATTEMPT/keeper-spec.json``, takes the machine lock, then starts the
daemons that appear as ``ATTEMPT/requests/NAME.json`` and records each in ``ATTEMPT/daemons/NAME.json``. It ends its whole
tree (TERM, grace, KILL) when

* the stop file ``ATTEMPT/stop`` appears,
* the owner process ends: the Snakemake that works on this deployment, for whatever reason (success, Ctrl-C, kill -9, wall time),
* the script of a stage is killed,
* a daemon ends by itself: a server that died, a Ray node that was lost,
* the allocation's time is nearly over, or another allocation has taken over the deployment.

A daemon on another node, or in its own step on this one, is started through a launcher (srun) and ``servemark.supervisor.remote``
there; the end of the heartbeat pipe, or its silence, ends it. A launcher that could start nothing, because slurmctld did not respond,
is started again.

Then it removes its scratch folder and the shared memory that the tree has left, writes the reason to ``ATTEMPT/keeper.json`` and, if the
owner process has ended, removes the deployment's live records. While the run goes on they stay: its later stages read them and find
in keeper.json that the deployment has ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from servemark.files import storage
from servemark.processes import children
from servemark.processes import identity as processes
from servemark.processes.identity import Identity
from servemark.processes.shared_memory import Segments, remove_noted
from servemark.records import DaemonState, utc_now, write_atomically
from servemark.supervisor import SupervisorSpec, SupervisorState, launcher_log, ownership, process_request, remove_secrets, worker_file
from snakemake_executor_plugin_slurm_guarded import commands

TICK_S = 0.1
# The owner's file lies on a shared disk, so not every tick reads it.
OWNER_S = 1.0
# After its grace a far end kills what is left and removes its files, and srun ends. On two busy cores 1 s was too short.
FAR_END_S = 5.0


class Supervisor:
    """One running supervisor; :meth:`run` is its whole life."""

    def __init__(self, attempt: Path):
        self.attempt = attempt
        self.spec = SupervisorSpec.model_validate_json((attempt / "keeper-spec.json").read_text())
        self.owner_process = Identity.parse(self.spec.lifeline)
        self.daemons: dict[str, DaemonState] = {}
        self.identities: dict[str, Identity] = {}
        self.launchers: dict[str, subprocess.Popen[bytes]] = {}
        self.launchers_lock = threading.Lock()
        # Of each launcher: where its log began, and until when it may be started again; then, when it will be.
        self.launches: dict[str, tuple[int, float]] = {}
        self.again: dict[str, float] = {}
        self.terminated = False
        self._look_at_owner = 0.0

    def say(self, state: str, **more: Any) -> None:
        """Write keeper.json."""
        spec = self.spec
        text = SupervisorState(state=state, identity=str(processes.myself()), deployment=spec.deployment, owner=spec.owner, **more)
        write_atomically(self.attempt / "keeper.json", text.model_dump_json(indent=2) + "\n")

    def run(self) -> None:
        """Take the lock, keep the daemons until there is a reason to end, end them, record the reason."""
        processes.become_subreaper()
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "terminated", True))
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        segments = Segments(Path(self.spec.scratch))
        try:
            why = self._take_machine()
            if why is None:
                self.say("running")
        except OSError as error:
            # Nothing is started yet; the stage quotes the log.
            refused = storage.refusal(error, [self.attempt, Path(self.spec.scratch)])
            print(refused.message() if refused else f"{type(error).__name__}: {error}", file=sys.stderr)
            why = refused.reason if refused else "cannot_begin"
        if why is None:
            threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
            while (why := self._reason_to_end()) is None:
                # A shared disk may fail for a moment.
                with contextlib.suppress(OSError):
                    self._start_requested()
                segments.look()
                time.sleep(TICK_S)
        # A full disk must not keep the tree alive.
        with contextlib.suppress(OSError):
            self.say("ending", why=why)
        segments.look(now=True)
        leftovers = self._end_tree(why)
        segments.remove()
        # Segments of far ends on this machine that were killed before they could remove them.
        remove_noted(Path(self.spec.scratch))
        shutil.rmtree(self.spec.scratch, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._remove_files(why)
        with contextlib.suppress(OSError):
            self.say("ended", why=why, ended_at=utc_now(), leftovers=tuple(leftovers))

    def _remove_files(self, why: str) -> None:
        if not why.startswith("daemon_ended"):
            # After a daemon's own end a stage that is just beginning may read them; stop_deployment removes them.
            remove_secrets(self.attempt)
        if why == "lifeline_ended":
            for record in self.spec.tokens:
                Path(record).unlink(missing_ok=True)

    def _beat(self) -> None:
        """Send the heartbeat to the far ends. A thread of its own, because a shared disk that hangs may block the main one."""
        while True:
            time.sleep(process_request.BEAT_S)
            with self.launchers_lock:
                for child in self.launchers.values():
                    # The far end, or _reap, handles a pipe that is full or broken.
                    with contextlib.suppress(OSError):
                        if child.stdin and not child.stdin.closed and select.select([], [child.stdin], [], 0)[1]:
                            os.write(child.stdin.fileno(), b".")

    def _take_machine(self) -> str | None:
        if self.spec.machine_lock is None:
            return None
        self._machine, said = ownership.MachineLock(Path(self.spec.machine_lock)), None
        while holder := self._machine.take():
            if holder != said:
                self.say("waiting", waiting_for=holder)
                said = holder
            if why := self._reason_to_end():
                return why
            time.sleep(TICK_S)
        self._machine.sign(f"deployment {self.spec.deployment} (supervisor {os.getpid()}, since {utc_now()}, {self.attempt})")
        return None

    def _reason_to_end(self) -> str | None:
        self._reap()
        if self.terminated or self._finds(lambda: (self.attempt / "stop").exists()):
            return "stop_requested"
        if not self.owner_process.alive:
            return "lifeline_ended"
        # The script that works on this deployment was killed (kill -9, out of memory): nobody would stop us.
        worker = worker_file(self.attempt.parents[1])
        if self._finds(lambda: not Identity.parse(worker.read_text()).alive and worker.exists()):
            return "stage_killed"
        if self.spec.ends_at and time.time() > self.spec.ends_at - self.spec.end_margin_s:
            return "out_of_time"
        if self.spec.owner and time.monotonic() > self._look_at_owner:
            self._look_at_owner = time.monotonic() + OWNER_S
            if self._finds(lambda: ownership.owner(self.attempt.parents[1]) not in (None, self.spec.owner)):
                return "taken_over"
        ended = [name for name, state in self.daemons.items() if state.ended_at]
        return f"daemon_ended:{ended[0]}" if ended else None

    def _finds(self, look: Callable[[], bool]) -> bool:
        """Return what a look at a shared disk finds; False after an error: that is no reason to end."""
        try:
            return look()
        except (OSError, ValueError):
            return False

    def _start_requested(self) -> None:
        folder = self.attempt / "requests"
        asked = [path.stem for path in sorted(folder.glob("*.json")) if not path.name.endswith(".place.json")]
        again = [name for name, due in self.again.items() if time.monotonic() > due]
        for name in [*(name for name in asked if name not in self.daemons), *again]:
            request = process_request.DaemonRequest.model_validate_json((folder / f"{name}.json").read_text())
            self.again.pop(name, None)
            self._start(request)

    def _start(self, request: process_request.DaemonRequest) -> None:
        state = DaemonState(name=request.name, argv=request.argv, log=request.log, node=request.node, started_at=utc_now())
        try:
            child = self._launched(request) if request.launcher else self._started(request)
        except OSError as error:
            with contextlib.suppress(OSError), open(request.log, "a") as log:
                log.write(f"servemark: cannot start {request.argv[0]}: {error}\n")
            self._record(state.model_copy(update={"ended_at": utc_now(), "exit_code": 127, "why": "never_started"}))
            return
        self.identities[request.name] = Identity.of(child.pid) or Identity(child.pid, 0)
        child.returncode = 0  # _reap collects every child itself; the destructor of Popen must not try again
        self._record(state.model_copy(update={"pid": child.pid}))

    def _started(self, request: process_request.DaemonRequest) -> subprocess.Popen[bytes]:
        env = process_request.environment(request) | processes.mark(self.attempt)
        return children.start_child(process_request.command(request), log=Path(request.log), env=env)

    def _launched(self, request: process_request.DaemonRequest) -> subprocess.Popen[bytes]:
        argv, env = process_request.through_launcher(request, self.attempt / "requests" / f"{request.name}.json")
        # The node writes the process's log, and a shared disk does not append for two machines: the launcher has its own.
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
                    may_start = code > 0 and why == "exited" and time.monotonic() < until
                    if may_start and commands.step_not_started(launcher_log(self.attempt, state.name), begin):
                        self.again[state.name] = time.monotonic() + commands.PAUSE_S
                        continue
                    if state.name in self.launchers and code > 128:
                        code = 128 - code  # how servemark.supervisor.remote hands on a signal
                    ending = {"exit_code": code} if code >= 0 else {"signal": -code}
                    self._record(state.model_copy(update={"ended_at": utc_now(), "why": why, **ending}))

    def _end_tree(self, why: str) -> list[str]:
        """End the daemons, the last started first, then every other descendant; return what had to be killed."""
        orphaned = why == "lifeline_ended"
        grace_s = self.spec.orphan_grace_s if orphaned else self.spec.stop_grace_s
        # A far end has the same grace, and kills what is left when it is over. Its launcher ends after that.
        far_s = 0.0 if orphaned else FAR_END_S
        label = "sibling_ended" if why.startswith("daemon_ended") else why
        deadline = time.monotonic() + grace_s
        for name in self.again:
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


if __name__ == "__main__":
    supervisor = Supervisor(Path(sys.argv[1]))
    with contextlib.suppress(KeyboardInterrupt):
        supervisor.run()
