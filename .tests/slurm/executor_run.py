"""Runs of a small workflow through the executor ``slurm-guarded``, without servemark's rules."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sandbox import Sandbox

from snakemake_executor_plugin_slurm_guarded import guard, journal

SNAKEMAKE = Path(sys.executable).with_name("snakemake")
LIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED")


class Run:
    """One Snakemake on the login node, in its own folder that all nodes see."""

    def __init__(self, cluster: Sandbox, folder: Path, jobs_file: str = "results/test/slurm/jobs.jsonl"):
        self.cluster, self.folder, self.jobs_file = cluster, folder, folder / jobs_file
        self.begun = time.monotonic()
        self.process: subprocess.Popen[Any] | None = None

    def start(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Run:
        """Start Snakemake; its output goes to ``said.txt``."""
        wanted = {journal.VARIABLE: str(self.jobs_file)} | dict(env or {})
        with open(self.folder / "said.txt", "ab") as said:
            self.begun = time.monotonic()
            self.process = self.cluster.popen(argv, cwd=self.folder, env=wanted, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
        return self

    @property
    def guard_log(self) -> str:
        path = self.jobs_file.with_name("guard.log")
        return path.read_text() if path.exists() else ""

    @property
    def said(self) -> str:
        return (self.folder / "said.txt").read_text()

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the journal's events of one kind."""
        lines = self.jobs_file.read_text().splitlines() if self.jobs_file.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["event"] == kind]

    def until(self, ready: Callable[[], Any], seconds: float, what: str) -> Any:
        """Wait until ``ready`` returns a true value, and return it; fail with the run's output."""
        deadline = time.monotonic() + seconds
        while not (found := ready()):
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}; the run printed:\n{self.said}\n{self.guard_log}"
            time.sleep(0.05)
        return found

    def job(self, state: str, seconds: float = 60.0) -> str:
        """Return the id of a job of this run, once the controller lists it in this state."""
        name = self.until(lambda: self.events("run"), seconds, "the executor has started")[0]["run"]

        def found() -> list[str]:
            return [job["job_id"] for job in self.cluster.jobs() if job["name"] == name and job["state"] == state]

        return str(self.until(found, seconds, f"a job is {state}")[0])

    def end(self, seconds: float) -> int:
        """Wait for the run's end, at most this number of seconds, and return the exit code."""
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"no end within {seconds:.0f} s; it printed:\n{self.said}") from None

    def signal(self, number: int) -> None:
        """Send a signal to Snakemake, not to its children."""
        assert self.process is not None
        self.process.send_signal(number)

    def queue(self) -> list[dict[str, str]]:
        """Return the jobs of this run in the queue."""
        names = {entry["run"] for entry in self.events("run")}
        return [job for job in self.cluster.jobs() if job["name"] in names and job["state"] in LIVE]

    def assert_clear(self, seconds: float) -> None:
        """Assert that within this number of seconds the run has no job in the queue and no guard."""
        self.until(lambda: not self.queue(), seconds, f"the queue is clear; there is {self.queue()}")
        self.until(lambda: not self.guards(), seconds, "the guard has ended")

    def guards(self) -> list[int]:
        """Return the process ids of this run's guards on the login node."""
        found = []
        for process in self.cluster.processes("login"):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
                if guard.__name__.encode() in line and str(self.jobs_file).encode() in line:
                    found.append(process.pid)
        return found

    def close(self) -> None:
        """End the run, its guards and its jobs."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.guards():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for entry in self.events("run"):
            self.cluster.run(["scancel", f"--name={entry['run']}"])
