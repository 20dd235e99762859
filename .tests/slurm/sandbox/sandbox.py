"""The sandbox: start, use, disturb, stop."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from . import files
from .daemons import Daemons
from .machine import Machine
from .options import LOGIN, Options, SandboxError
from .processes import NodeProcess, in_namespace, namespace, wait_for
from .requirements import require

_JOB_FIELDS = {
    "job_id": "%i",
    "name": "%j",
    "state": "%T",
    "reason": "%r",
    "partition": "%P",
    "user": "%u",
    "account": "%a",
    "qos": "%q",
    "nodes": "%N",
    "elapsed": "%M",
    "time_left": "%L",
}


class Sandbox:
    """A Slurm cluster below a folder. ``with Sandbox(folder, Options(...)) as cluster:`` starts and stops it.

    A second object on the same folder, for example in another process, uses the running cluster and its recorded options.
    """

    def __init__(self, folder: str | Path, options: Options | None = None):
        self.folder = Path(folder).resolve()
        self._machine = Machine.on_record(self.folder) or Machine.new(self.folder, options or Options())
        self._daemons = Daemons(self._machine)
        self.started_in: float | None = None  # seconds that start() took
        self._wanted = options

    @property
    def options(self) -> Options:
        return self._machine.options

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the compute nodes."""
        return self.options.compute_nodes

    @property
    def cluster_file(self) -> Path:
        """The cluster file for servemark on these nodes."""
        return self.folder / "cluster.yaml"

    @property
    def alive(self) -> bool:
        """Whether the nodes run."""
        return self._machine.alive

    def start(self) -> Sandbox:
        """Start everything and wait until all nodes are idle. On an error, remove everything again.

        Raises:
            SandboxError: a requirement is missing, a part did not start, or the folder has a running sandbox.
        """
        begun = time.monotonic()
        if Machine.on_record(self.folder) is not None:
            raise SandboxError(f"There is a sandbox in {self.folder} already. Stop it first (also when it has crashed).")
        self._machine = Machine.new(self.folder, self._wanted or self.options)
        self._daemons = Daemons(self._machine)
        require(self.options)
        files.prepare(self.folder, self.options)
        files.write(self.folder, self.options)
        try:
            self._bring_up()
        except BaseException:
            self.stop()
            raise
        self.started_in = time.monotonic() - begun
        return self

    def _bring_up(self) -> None:
        daemons = self._daemons
        self._machine.build()
        database = daemons.make_database() if self.options.accounting else None
        daemons.start_munged()
        for node in self.nodes:
            daemons.start_slurmd(node)
        if database is not None:
            _, errors = database.communicate(timeout=120)
            if database.returncode != 0:
                raise SandboxError(f"mariadb-install-db ended with {database.returncode}: {errors.strip()}")
            daemons.start_mariadb()
            daemons.start_slurmdbd()
            daemons.fill_accounting()
        daemons.start_slurmctld()
        daemons.wait_idle(self.nodes)

    def stop(self) -> None:
        """End all processes, namespaces, mounts and control groups; files (logs) stay. Safe to call again."""
        self._machine.destroy()
        self._machine.forget()

    def __enter__(self) -> Sandbox:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def leftovers(self) -> list[str]:
        """Return what is left of the sandbox, one line each; empty after stop()."""
        return self._machine.leftovers()

    def environment(self, node: str = LOGIN, user: str | None = None) -> dict[str, str]:
        """Return the environment of commands on a node."""
        return self._machine.environment(node, user)

    def popen(
        self,
        argv: Sequence[str],
        node: str = LOGIN,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start subprocess.Popen on a node.

        Args:
            argv: the command.
            node: ``login`` or a compute node.
            user: an existing user of the machine; None: root.
            env: added to ``environment(node, user)``.
            cwd: a folder on the node; None: the node's /tmp.
            options: of subprocess.Popen.
        """
        return self._machine.popen(argv, node, user, env, cwd, **options)

    def run(
        self,
        argv: Sequence[str],
        node: str = LOGIN,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        timeout: float | None = 120,
        check: bool = False,
        input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a node to its end; capture its output as text. Arguments as in ``popen``.

        Raises:
            subprocess.TimeoutExpired: after ``timeout`` seconds; the command has been killed (not what it started).
            subprocess.CalledProcessError: with ``check``, if the exit code is not 0.
        """
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        pipes = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with self.popen(argv, node, user, env, cwd, **pipes) as child:
            try:
                out, err = child.communicate(input, timeout=timeout)
            except BaseException:
                child.kill()
                raise
        done = subprocess.CompletedProcess(list(argv), child.returncode, out, err)
        if check:
            done.check_returncode()
        return done

    def jobs(self) -> list[dict[str, str]]:
        """Return slurmctld's jobs, newest last; keys are squeue's long names, e.g. ``job_id``, ``state``."""
        layout = "|".join(_JOB_FIELDS.values())
        done = self.run(["squeue", "--all", "--noheader", "--states=all", "--sort=i", f"--format={layout}"])
        if done.returncode != 0:
            raise SandboxError(f"squeue ended with {done.returncode}: {done.stderr.strip()}")
        return [dict(zip(_JOB_FIELDS, line.split("|"), strict=True)) for line in done.stdout.splitlines()]

    def sees(self, path: str | Path, node: str = LOGIN) -> bool:
        """Return whether a path exists on a node."""
        return Path(f"/proc/{self._machine.init_pid(node)}/root{Path(path).absolute()}").exists()

    def processes(self, node: str) -> list[NodeProcess]:
        """Return the processes of a node, with its init and daemons."""
        inode = namespace(self._machine.init_pid(node), "pid")
        return [] if inode is None else in_namespace(inode)

    def wait(self, ready: Callable[[], Any], seconds: float, what: str) -> Any:
        """Poll ``ready`` until it returns a true value, and return it; SandboxError after ``seconds``."""
        return wait_for(ready, seconds, what)

    def wait_idle(self, seconds: float = 60) -> None:
        """Wait until all nodes are idle."""
        self._daemons.wait_idle(self.nodes, seconds)

    def slurmd_pid(self, node: str) -> int | None:
        """Return the process id of a node's slurmd on the machine; None if it does not run."""
        process = self._daemons.find("slurmd", node)
        return None if process is None else process.pid

    def kill_slurmd(self, node: str) -> None:
        """Send SIGKILL to a node's slurmd. Its jobs continue until slurmctld declares the node DOWN."""
        self._daemons.stop("slurmd", node, signal.SIGKILL)

    def start_slurmd(self, node: str) -> None:
        self._daemons.start_slurmd(node)

    def stop_slurmctld(self) -> None:
        self._daemons.stop("slurmctld")

    def start_slurmctld(self) -> None:
        self._daemons.start_slurmctld()

    def stop_slurmdbd(self) -> None:
        self._daemons.stop("slurmdbd")

    def start_slurmdbd(self) -> None:
        self._daemons.start_slurmdbd()

    def kill_node(self, node: str) -> None:
        """End a compute node with all its processes at once, as a power cut does."""
        if node not in self.nodes:
            raise SandboxError(f"{node!r} is no compute node; there are {', '.join(self.nodes)}.")
        self._machine.power_off(node)

    def start_node(self, node: str) -> None:
        """Start a killed compute node again, with its slurmd; its /tmp is unchanged."""
        self._machine.boot(node)
        self._daemons.start_slurmd(node)

    def cut_network(self, node: str, other: str) -> None:
        """Drop all packets between two compute nodes, both ways; the login node still reaches both."""
        self._machine.cut(node, other)

    def restore_network(self) -> None:
        """Undo all cuts."""
        self._machine.restore_network()
