"""The executor runs another workflow, in an environment without servemark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from executor_run import Run
from sandbox import Sandbox

import snakemake_executor_plugin_slurm_guarded as plugin
from snakemake_executor_plugin_slurm_guarded import journal

END_S = 60.0
WORKFLOW = """
import os


rule count:
    input:
        "words.txt",
    output:
        "count.txt",
    resources:
        slurm_partition="batch",
        runtime=5,
        cpus_per_task=1,
    shell:
        "wc -w < {input} > {output}"


rule write:
    output:
        "words.txt",
    params:
        seconds=os.environ.get("SECONDS", "0"),
    threads: 2
    resources:
        slurm_partition="batch",
        runtime=5,
    shell:
        "sleep {params.seconds}; echo to be or not to be > {output}"
"""
# As in the plugin's README.
PROFILE = """
executor: slurm-guarded
jobs: 10
default-resources:
  - mpi='batch'
latency-wait: 5
"""


@pytest.fixture(scope="module")
def python(plain: Sandbox) -> Path:
    """Return an interpreter with Snakemake and the plugin, without servemark."""
    venv = plain.folder / "work" / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site,) = venv.glob("lib/python3.*/site-packages")
    (site / "packages.pth").write_text(f"{sysconfig.get_path('purelib')}\n{Path(plugin.__path__[0]).parent}\n")
    python = venv / "bin" / "python"
    code = "import importlib.util as u; print(u.find_spec('snakemake') is not None, u.find_spec('servemark') is not None)"
    said = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True, cwd=venv)
    assert said.stdout == "True False\n"
    return python


@pytest.fixture
def new_workflow(plain: Sandbox, request: pytest.FixtureRequest) -> Iterator[Callable[[], Run]]:
    """Make the workflow in its own folder."""
    runs: list[Run] = []

    def make() -> Run:
        folder = plain.folder / "work" / request.node.name
        (folder / "profile").mkdir(parents=True)
        (folder / "Snakefile").write_text(WORKFLOW)
        (folder / "profile" / "config.yaml").write_text(PROFILE)
        runs.append(Run(plain, folder, str(journal.DEFAULT)))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def start(run: Run, python: Path, *arguments: str, seconds: int = 0) -> Run:
    argv = [str(python), "-m", "snakemake", "--profile", "profile", *arguments]
    return run.start(argv, {"SECONDS": str(seconds), journal.VARIABLE: ""})


def test_two_rules_run_as_two_jobs(new_workflow: Callable[[], Run], python: Path) -> None:
    run = start(new_workflow(), python)
    assert run.end(END_S) == 0, run.said
    assert (run.folder / "count.txt").read_text().split() == ["6"]
    assert [entry["label"] for entry in run.events("submitted")] == ["write", "count"]
    assert [(entry["state"], entry["success"]) for entry in run.events("ended")] == [("COMPLETED", True)] * 2
    name = run.events("run")[0]["run"]
    jobs = [job for job in run.cluster.jobs() if job["name"] == name]
    assert {job["job_id"] for job in jobs} == {entry["job"] for entry in run.events("submitted")} and len(jobs) == 2
    run.assert_clear(6)
    assert run.events("run_ended") and run.guard_log == "" and "servemark" not in run.said


@pytest.mark.faults
def test_next_run_cancels_jobs_of_run_killed_with_its_guard(new_workflow: Callable[[], Run], python: Path) -> None:
    run = start(new_workflow(), python, seconds=100)
    job = run.job("RUNNING")
    for pid in run.until(run.guards, 5, "the guard is there"):
        os.kill(pid, signal.SIGKILL)
    run.signal(signal.SIGKILL)
    run.end(2)
    assert [left["job_id"] for left in run.queue()] == [job]
    assert start(run, python, "--unlock").end(END_S) == 0, run.said
    start(run, python, "--rerun-incomplete")
    assert run.end(END_S) == 0, run.said
    assert f"still in Slurm's queue ({job})" in run.said
    assert [entry["jobs"] for entry in run.events("cancelled")] == [[job]]
    run.assert_clear(6)
