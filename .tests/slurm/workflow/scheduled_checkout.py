"""A checkout that all nodes of a sandbox see, runs of the whole workflow through its Slurm, and checks for leftovers."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml
from sandbox import Sandbox
from sandbox.options import LOGIN

from integration.harness import RUN, SNAKEMAKE, Checkout, Finished, Running, wait_until

# squeue's states of a job that has not ended.
LIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED")
# After this time, an ended run may have no job and no process. The machine of the tests is busy.
GONE_S = 30.0
# One run with one deployment takes 20 to 30 s on two cores, mostly starts of interpreters.
RUN_S = 150.0

SITE: dict[str, Any] = {
    "scheduler": "slurm",
    "partition": "batch",
    "gpus_per_node": 4,
    "exclusive": True,
    "minutes_to_start": 5,
    "minutes_per_point": 1,
    "scratch": "/tmp",
    "small_jobs": {"minutes": 3},
}


class ScheduledCheckout(Checkout):
    """A checkout with its own results and its own cluster file, ``config/clusters/test.yaml``, written from ``site``."""

    def __init__(self, cluster: Sandbox, path: Path, config: dict[str, Any]):
        self.cluster, self.path, self.config, self.site = cluster, path, copy.deepcopy(config), copy.deepcopy(SITE)
        self.config["cluster"] = "test"
        self._runs = 0
        self.current: Running | None = None

    # Runs

    def write(self) -> None:
        """Write the current configuration and cluster file."""
        (self.path / "my.yaml").write_text(yaml.safe_dump(self.config, sort_keys=False))
        (self.path / "config/clusters/test.yaml").write_text(yaml.safe_dump(self.site, sort_keys=False))

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of a run, as the documents write it: the profile by the link at the top of the checkout."""
        return [str(SNAKEMAKE), "--profile", "slurm", "--configfile", "my.yaml", "--latency-wait", "5", *arguments]

    def start(self, *arguments: str, profile: bool = True, **variables: str) -> Running:
        """Start Snakemake on the login node with these environment variables, which jobs get too."""
        assert profile
        self.write()
        self._runs += 1
        output = self.path.parent / f"output-{self.path.name}-{self._runs}.txt"
        # The checkout's own library: the executor plugin is imported before the Snakefile adds the library's path.
        library = {"PYTHONPATH": str(self.path / "workflow/lib")}
        env = {"STANDIN_START_S": "0.1", "STANDIN_TOKEN_S": "0.002"} | library | variables
        with output.open("wb") as stream:
            process = self.cluster.popen(
                self.command(*arguments), cwd=self.path, env=env, stdin=subprocess.DEVNULL, stdout=stream,
                stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_default_signals,
            )  # fmt: skip
        self.current = Running(process, output)
        return self.current

    def run(self, *arguments: str, seconds: float = RUN_S, **variables: str) -> Finished:
        return self.start(*arguments, **variables).wait(seconds)

    # Slurm and the executor

    def journal(self, event: str) -> list[dict[str, Any]]:
        """Return the journal's events of one kind, of all runs of this checkout."""
        path = self.results / "slurm/jobs.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["event"] == event]

    def queue(self) -> list[dict[str, str]]:
        """Return this checkout's jobs that have not ended."""
        names = {entry["run"] for entry in self.journal("run")}
        return [job for job in self.cluster.jobs() if job["name"] in names and job["state"] in LIVE]

    def job(self, deployment: str = "a", state: str = "RUNNING", seconds: float = 60) -> dict[str, str]:
        """Return the deployment's job, once it is in this state."""

        def found() -> dict[str, str] | None:
            labelled = {e["job"] for e in self.journal("submitted") if e["label"] == f"deployment {deployment}"}
            return next((j for j in self.queue() if j["job_id"] in labelled and j["state"] == state), None)

        return wait_until(found, seconds, f"the job of {deployment} is {state}; {self.current and self.current.text}")

    def measuring(self, point: str = "chat-c2-r1", seconds: float = 90) -> dict[str, str]:
        """Wait until the server of ``a``, with the fault ``hang``, hangs in this point; return its job."""
        self.wait_for_progress(f"{point}: 6 requests", subject="a", seconds=seconds)
        self.hang(True)
        return self.job()

    def hang(self, hangs: bool) -> None:
        """Let the server of ``a`` hang, or not; call :meth:`inject` first."""
        (self.path / "fault-a").write_text("hang" if hangs else "none")

    # Leftovers of a run

    def of_ours(self) -> Iterator[tuple[str, psutil.Process]]:
        """Return every living process of a run in this checkout with the name of its node.

        Their working folder or command line names the checkout; Slurm's step daemons for its jobs count too.
        """
        for node in (LOGIN, *self.cluster.nodes):
            with contextlib.suppress(RuntimeError):  # the node is off
                for found in self.cluster.processes(node):
                    with contextlib.suppress(OSError, psutil.Error):
                        process = psutil.Process(found.pid)
                        inside = os.readlink(f"/proc/{found.pid}/cwd").startswith(str(self.path))
                        if (inside or f"{self.path}/" in found.command) and process.status() != psutil.STATUS_ZOMBIE:
                            yield node, process

    def processes(self) -> list[psutil.Process]:
        return [process for _, process in self.of_ours()]

    def where(self, words: str) -> dict[str, list[psutil.Process]]:
        """Return our processes with these words in the command line, by node."""
        found: dict[str, list[psutil.Process]] = {}
        for node, process in self.of_ours():
            with contextlib.suppress(psutil.Error):
                if words in " ".join(process.cmdline()):
                    found.setdefault(node, []).append(process)
        return found

    def scratch(self) -> list[str]:
        """Return the remaining scratch folders of this checkout's attempts on a node."""
        names = [json.loads(p.read_text())["scratch"] for p in self.results.glob("deployments/*/attempts/*/supervisor-spec.json")]
        places = [self.cluster.folder / "nodes" / node / name[1:] for node in (LOGIN, *self.cluster.nodes) for name in names]
        return [str(place) for place in places if place.exists()]

    def left(self) -> list[str]:
        """Return what is left of this checkout's runs, one line each: jobs, processes, scratch folders, live records, keys."""
        lines = [f"job {job['job_id']} is {job['state']}" for job in self.queue()]
        lines += [f"{node}: process {process.pid} {_words(process)}" for node, process in self.of_ours()]
        lines += [f"scratch folder {path}" for path in self.scratch()]
        records = [self.results.glob(f"deployments/*/{name}.json") for name in ("cluster", "endpoint", "ready")]
        return lines + [f"file {path}" for path in [*(p for found in records for p in found), *self.secrets()]]

    def assert_nothing_left(self, seconds: float = GONE_S) -> None:
        """Assert that within this number of seconds nothing of the runs is in the queue, on a node, or among the results."""
        deadline = time.monotonic() + seconds
        while left := self.left():
            assert time.monotonic() < deadline, f"still there after {seconds:.0f} s: {left}"
            time.sleep(0.2)

    assert_all_dead = assert_nothing_left

    def close(self) -> None:
        """End everything that the test has left."""
        if self.current and self.current.process.poll() is None:
            self.current.process.kill()
            self.current.process.wait()
        for entry in self.journal("run"):
            self.cluster.run(["scancel", f"--name={entry['run']}"])
        deadline = time.monotonic() + 20
        while (self.queue() or self.processes()) and time.monotonic() < deadline:
            time.sleep(0.2)
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()


def eventually(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait until a condition holds: ``wait_until`` for states of Slurm."""
    return wait_until(condition, seconds, what)


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:160]
    except psutil.Error:
        return ""


__all__ = ["GONE_S", "LIVE", "RUN", "RUN_S", "SITE", "ScheduledCheckout", "eventually"]
