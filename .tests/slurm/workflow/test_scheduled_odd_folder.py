"""A whole run through Slurm in a folder whose name has a space, an umlaut, quotes and characters that shells and sbatch expand."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import scheduled_checkout
from scheduled_checkout import ScheduledCheckout

from builders import odd_folder


@pytest.fixture
def odd(bare: ScheduledCheckout, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScheduledCheckout]:
    """Return a fresh checkout in an odd folder, with its own environment."""
    path = bare.path.parent / odd_folder.NAME / "checkout"
    shutil.copytree(bare.path, path)
    monkeypatch.setattr(scheduled_checkout, "SNAKEMAKE", odd_folder.own_environment(path))
    checkout = ScheduledCheckout(bare.cluster, path, bare.config)
    checkout.config["cache"] = "results/cache"
    checkout.keep("a")
    yield checkout
    checkout.close()


@pytest.mark.full
def test_whole_run_through_slurm_in_odd_folder_exits_with_0(odd: ScheduledCheckout) -> None:
    done = odd.run(LC_ALL="C", PYTHONPATH="", seconds=300)
    assert done.rc == 0, done.text
    assert {record["verdict"] for record in odd.points("a").values()} == {"VALID"}
    jobs = odd.journal("submitted")
    assert jobs and all(Path(job["log"]).name == f"{job['job']}.log" and Path(job["log"]).exists() for job in jobs)
    odd.assert_nothing_left()
