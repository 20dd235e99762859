"""Full and read-only file systems: the run names them, leaves nothing behind, and resumes when they accept writes again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from integration import mounts
from integration.harness import GONE_S, Checkout, Finished, Running, wait_until


@pytest.fixture
def disks(checkout: Checkout, tmp_path: Path) -> Iterator[ModuleType]:
    """Return a checkout with one deployment and its own cache, and file systems for it."""
    checkout.keep("a")
    cache = tmp_path / "cache"
    shutil.copytree(checkout.config["cache"], cache)
    checkout.config["cache"] = str(cache)
    with mounts.own_namespace():
        yield mounts


def place(checkout: Checkout, name: str) -> Path:
    return {"results": checkout.path / "results", "snakemake": checkout.path / ".snakemake",
            "cache": Path(checkout.config["cache"]), "scratch": checkout.runtime}[name]  # fmt: skip


def assert_names(done: Finished, disk: Path) -> None:
    """Assert that the run failed and names the file system without a traceback."""
    assert done.rc == 1, done.text
    assert str(disk) in done.text and "what to do: " in done.text, done.text
    for word in ("Traceback", "Exception ignored", "Logging error", "a defect of servemark"):
        assert word not in done.text, done.text


def start_second_point(checkout: Checkout) -> Running:
    run = checkout.start(STANDIN_TOKEN_S="0.25")  # the second point takes longer than filling the disk
    checkout.wait_for_progress("chat-c2-r1: 6 requests")
    return run


# Every `make test` starts such a run in the next test, on the disk of the results.
@pytest.mark.full
@pytest.mark.parametrize("name", ["results", "snakemake", "cache", "scratch"])
def test_run_on_full_disk_is_refused_before_it_starts(checkout: Checkout, disks, name: str):
    disk = place(checkout, name)
    disks.mount(disk)
    disks.fill(disk)

    done = checkout.run()

    assert_names(done, disk)
    assert checkout.attempts("a") == []
    disks.free(disk)
    again = checkout.run()
    assert again.rc == 0, again.text


def test_results_disk_full_while_measuring_loses_no_finished_point(checkout: Checkout, disks):
    disk = checkout.path / "results"
    disks.mount(disk)
    run = start_second_point(checkout)
    finished = checkout.started_at("a")
    disks.fill(disk)

    done = run.wait(480)

    assert_names(done, disk)
    checkout.assert_all_dead()
    assert checkout.started_at("a") == finished and len(finished) == 1
    assert checkout.rejected() == {}
    tried = checkout.attempts("a")
    assert_names(checkout.run(), disk)
    assert checkout.attempts("a") == tried, "refused before it starts"
    disks.free(disk)
    again = checkout.run()
    assert again.rc == 0, again.text
    assert finished.items() < checkout.started_at("a").items()
    assert {row["verdict"] for row in checkout.rows().values()} <= {"VALID", "SUSPECT"}


# The test before this one has a disk that refuses writes, too.
@pytest.mark.full
def test_read_only_results_disk_leaves_no_process_and_no_scratch(checkout: Checkout, disks):
    disk = checkout.path / "results"
    disks.mount_disk(disk)
    run = start_second_point(checkout)
    finished = checkout.started_at("a")
    disks.fail(disk)

    done = run.wait(480)

    assert_names(done, disk)
    # The live records stay: they cannot be removed.
    wait_until(lambda: not checkout.processes(), GONE_S, "all processes have ended")
    assert [path.name for path in checkout.runtime.iterdir() if path.name != "machine.lock"] == []
    assert_names(checkout.run(), disk)
    disks.repair(disk)
    again = checkout.run()
    assert again.rc == 0, again.text
    assert finished.items() < checkout.started_at("a").items()
    checkout.assert_all_dead()


@pytest.mark.full
def test_cache_full_while_measuring_loses_no_measurement(checkout: Checkout, disks):
    """With the ledger in the cache, the next run stores the missing measurements."""
    checkout.config["share_ledger"] = True
    disk = place(checkout, "cache")
    disks.mount(disk)
    run = start_second_point(checkout)
    disks.fill(disk)

    done = run.wait(480)

    assert done.rc == 0, done.text
    assert "warning: chat-c2-r1" in done.text and str(disk) in done.text
    disks.free(disk)
    finished = checkout.started_at("a")
    again = checkout.run()
    assert again.rc == 0, again.text
    assert checkout.started_at("a") == finished and len(list(disk.glob("ledger/*/*/raw.json"))) == 2
