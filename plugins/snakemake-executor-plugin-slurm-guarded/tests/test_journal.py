"""The journal keeps complete lines and lists the runs that may have jobs in the queue."""

from __future__ import annotations

import os
from pathlib import Path

from snakemake_executor_plugin_slurm_guarded import journal


def test_open_runs_and_incomplete_lines(tmp_path: Path) -> None:
    path = tmp_path / "slurm" / "jobs.jsonl"
    assert list(journal.read(path)) == [] and journal.open_runs(path) == {} and not journal.closed(path, "a")
    for name in "abc":
        journal.append(path, "run", run=name)
    journal.append(path, "run_ended", run="b")
    with open(path, "a") as stream:
        stream.write('{"event": "run", "run": "d"')  # cut off by a full disk
    assert list(journal.open_runs(path)) == ["a", "c"] and journal.closed(path, "b") and not journal.closed(path, "a")
    journal.append(Path("/proc/no/such"), "run", run="f")


def test_only_the_owner_can_write_it_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        journal.append(tmp_path / "jobs.jsonl", "run", run="a")
    finally:
        os.umask(before)
    assert (tmp_path / "jobs.jsonl").stat().st_mode & 0o777 == 0o644
