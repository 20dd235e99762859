"""The watch reports why a job waits, and notes it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from slurm_tools import MakeTool

from snakemake_executor_plugin_slurm_guarded import journal
from snakemake_executor_plugin_slurm_guarded.submit import Outage
from snakemake_executor_plugin_slurm_guarded.tracking import Bounds, Tracked, Tracker
from snakemake_executor_plugin_slurm_guarded.watching import Watch


def test_watch_says_why_a_job_waits_and_notes_it(tool: MakeTool, tmp_path: Path) -> None:
    said: list[str] = []
    path, tracker = tmp_path / "jobs.jsonl", Tracker(bounds=Bounds(waits_s=0))
    tracker.add(Tracked("7", "deployment x", "x #1", "", submitted=time.monotonic()))
    watch = Watch("run", path, tracker, threading.RLock(), Outage(said.append), threading.Event(), said.append)
    for reason in ("None", "Priority", "Priority", "JobHeldUser"):
        tool("squeue", f"echo '7|PENDING|0:00|5:00|N/A|N/A||{reason}|run|x #1|/work'")
        watch.look()
    assert [words.startswith("deployment x (job 7)") for words in said] == [True, True]
    assert "Priority" in said[0] and "scontrol release 7" in said[1]
    assert [entry["reason"] for entry in journal.read(path)] == ["", "Priority", "JobHeldUser"]
