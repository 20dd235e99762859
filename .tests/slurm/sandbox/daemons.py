"""The daemons: munged, MariaDB, slurmdbd, slurmctld, slurmd."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from . import configuration
from .machine import Machine
from .options import LOGIN, SandboxError
from .processes import Process, in_namespace, namespace, wait_for
from .requirements import SYSTEM_PATH, find


class Daemons:
    """Starts, stops and finds the daemons of a machine."""

    def __init__(self, machine: Machine):
        self._machine = machine

    def _bare(self, *argv: str) -> list[str]:
        # The starter's other variables must not reach the daemons and their children.
        kept = ("SLURM_CONF", "SERVEMARK_SANDBOX")
        environment = self._machine.environment(LOGIN, None)
        settings = [f"PATH={SYSTEM_PATH}", "HOME=/root", *(f"{name}={environment[name]}" for name in kept)]
        return ["/usr/bin/env", "--ignore-environment", *settings, find(argv[0], self._machine.options.release), *argv[1:]]

    def command(self, *argv: str, node: str = LOGIN, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command of the sandbox to its end; the caller checks the exit code."""
        child = self._machine.popen(self._bare(*argv), node, capture=True, stdin=subprocess.DEVNULL)
        out, err = child.communicate(timeout=timeout)
        return subprocess.CompletedProcess(argv, child.returncode, out, err)

    def checked(self, *argv: str, node: str = LOGIN) -> str:
        done = self.command(*argv, node=node)
        if done.returncode != 0:
            raise SandboxError(
                f"`{' '.join(argv)}` on {node} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}\n"
                f"The daemons' logs are in {self._machine.folder}/log."
            )
        return done.stdout

    def find(self, program: str, node: str = LOGIN) -> Process | None:
        """Return the process of a Slurm daemon, by its pid file; None if it does not run."""
        init = self._machine.init_pid(node)
        try:
            number = int(Path(f"/proc/{init}/root/run/slurm/{program}.pid").read_text())
        except (FileNotFoundError, ValueError):
            return None
        inode = namespace(init, "pid")
        for process in in_namespace(inode) if inode is not None else []:
            if process.node_pid == number and program in process.command:
                try:
                    return Process.of(process.pid)
                except ProcessLookupError:
                    return None
        return None

    def stop(self, program: str, node: str = LOGIN, number: int = signal.SIGTERM) -> None:
        """End a Slurm daemon, if it runs, and wait until it is gone."""
        process = self.find(program, node)
        if process is None:
            return
        process.kill(number)
        if not process.wait(20):
            raise SandboxError(f"{program} on {node} (process {process.pid}) did not end within 20 s.")

    def start_munged(self) -> None:
        folder = self._machine.folder
        self.checked(
            "munged", "--force", f"--key-file={folder}/munge/munge.key", f"--seed-file={folder}/munge/seed",
            f"--log-file={folder}/log/munged.log", "--pid-file=/run/munge/munged.pid",
            "--socket=/run/munge/munge.socket.2",
        )  # fmt: skip
        wait_for(lambda: (folder / "munge/socket/munge.socket.2").exists(), 10, f"munged's socket ({folder}/log)")

    def make_database(self) -> subprocess.Popen[str]:
        """Start writing the system tables of an empty MariaDB (takes half a second or more)."""
        argv = [
            "mariadb-install-db", "--no-defaults", f"--datadir={self._machine.folder}/database", "--user=root",
            "--auth-root-authentication-method=normal", "--skip-test-db",
        ]  # fmt: skip
        return self._machine.popen(self._bare(*argv), cwd="/", capture=True, stdin=subprocess.DEVNULL)

    def start_mariadb(self) -> None:
        folder = self._machine.folder
        # A folder is an empty database. If slurmdbd has to create it, libmariadb 3.4.10 (Debian 13) then refuses every result: "exceeds
        # maximum allowed number of columns (=0)".
        (folder / "database/slurm_acct_db").mkdir()
        # The database ends with the sandbox, so it need not be safe on disk.
        argv = [
            "setsid", "--fork", find("mariadbd", self._machine.options.release),
            "--no-defaults", f"--datadir={folder}/database", "--user=root",
            "--socket=/run/mysqld/mysqld.sock", "--skip-networking", "--skip-grant-tables",
            f"--log-error={folder}/log/mariadb.log", "--pid-file=/run/mysqld/mysqld.pid",
            "--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900",
            "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0", "--innodb-flush-method=nosync",
        ]  # fmt: skip
        null = subprocess.DEVNULL
        self._machine.popen(self._bare(*argv), stdin=null, stdout=null, stderr=null).wait(20)
        socket = Path(f"/proc/{self._machine.init_pid(LOGIN)}/root/run/mysqld/mysqld.sock")
        wait_for(socket.exists, 60, f"MariaDB ({folder}/log/mariadb.log)")

    def start_slurmdbd(self) -> None:
        self._launch("slurmdbd", LOGIN, "slurmdbd")
        wait_for(
            lambda: self.command("sacctmgr", "-nP", "list", "cluster").returncode == 0,
            60,
            f"slurmdbd ({self._machine.folder}/log/slurmdbd.log)",
        )

    def fill_accounting(self) -> None:
        """Create cluster, accounts, users and QOS."""
        options = self._machine.options
        self.checked("sacctmgr", "-iQ", "add", "cluster", configuration.CLUSTER)
        for qos in options.qos:
            self.checked("sacctmgr", "-iQ", "add", "qos", qos)
        allowed = ["qos=" + ",".join(("normal", *options.qos))]
        for account in options.accounts:
            self.checked("sacctmgr", "-iQ", "add", "account", account, *allowed, "defaultqos=normal")
        for user in ("root", options.second_user):
            if user:
                accounts = f"account={','.join(options.accounts)}"
                self.checked("sacctmgr", "-iQ", "add", "user", user, accounts, f"defaultaccount={options.accounts[0]}")
                self.checked("sacctmgr", "-iQ", "modify", "user", user, "set", f"defaultaccount={options.accounts[0]}")

    def start_slurmctld(self) -> None:
        self._launch("slurmctld", LOGIN, "slurmctld")
        wait_for(
            lambda: " is UP" in self.command("scontrol", "ping").stdout,
            60,
            f"slurmctld ({self._machine.folder}/log/slurmctld.log)",
        )

    def start_slurmd(self, node: str) -> None:
        self._launch("slurmd", node, "slurmd", "-N", node)

    def _launch(self, program: str, node: str, *argv: str) -> None:
        if self.find(program, node) is not None:
            raise SandboxError(f"{program} already runs on {node}; stop it first.")
        self.checked(*argv, node=node)
        log = f"{self._machine.folder}/log"
        wait_for(lambda: self.find(program, node), 20, f"{program} on {node} ({log})")

    def wait_idle(self, expected: Sequence[str], seconds: float = 60) -> None:
        """Wait until these nodes accept jobs."""

        def idle() -> bool:
            lines = self.command("sinfo", "-hN", "-o", "%N %T").stdout.split("\n")
            states = dict(line.split() for line in lines if line)
            return all(states.get(node) == "idle" for node in expected)

        wait_for(idle, seconds, f"{', '.join(expected)} idle ({self._machine.folder}/log)")
