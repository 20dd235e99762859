"""Recorded output of a real Slurm, a journal, and accounts of jobs."""

from __future__ import annotations

from pathlib import Path

from snakemake_executor_plugin_slurm_guarded.records import JobAccount

FIXTURES = Path(__file__).with_name("fixtures")
SACCT = (FIXTURES / "sacct-22.05.8.txt").read_text()
SCONTROL = (FIXTURES / "scontrol-22.05.8.txt").read_text().splitlines()
NO_ACCOUNTING = (FIXTURES / "scontrol-22.05.8-no-accounting.txt").read_text()
DAY = "2026-11-20T18:"

JOURNAL = [
    {"event": "submitted", "time": 1000.0, "job": "7", "kind": "group", "wildcards": {"deployment": "x"}},
    {"event": "submitted", "time": 1001.0, "job": "8"},
    {"event": "state", "time": 1010.0, "job": "7", "state": "RUNNING", "reason": "", "nodes": "node[1-2]"},
    {"event": "ended", "time": 1100.0, "job": "7", "state": "TIMEOUT", "success": False, "exit_code": None, "signal": 15,
     "reason": "TimeLimit", "nodes": "", "by": None, "elapsed_s": 80.0, "queue_wait_s": 5.0},
]  # fmt: skip


def start(state="COMPLETED", restarts=0, gpus=4, source="sacct", **more):
    """Return one start of job 7."""
    return JobAccount(job_id="7", state=state, restarts=restarts, gpus=gpus, source=source, nodes=("node1",), **more)
