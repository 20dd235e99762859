"""Jobs of an earlier run are cancelled from their own checkout, even a moved one, and never from a copy."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_tools import AWAY, MakeTool

from snakemake_executor_plugin_slurm_guarded import guard, journal, leftovers
from snakemake_executor_plugin_slurm_guarded.errors import GuardedError
from snakemake_executor_plugin_slurm_guarded.records import Checkout


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_POLL_S", 0.02)


def calls(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def row(workdir: Path, state: str = "RUNNING", job: int = 5, run: str = "run-1") -> str:
    return f"echo '{job}|{state}|0:00|5:00|N/A|N/A||None|{run}|x #1|{workdir}'"


def clear(folder: Path, say: Callable[[str], None], **more: bool) -> None:
    leftovers.cancel(sorted(folder.glob("results/*/slurm/jobs.jsonl")), folder, say, **more)


class Site:
    """Slurm with job 5 of run-1 until it is cancelled; the cancelled jobs and the messages."""

    def __init__(self, tool: MakeTool, workdir: Path):
        self.asked = tool("squeue", f"[ -s $0.gone ] || {row(workdir)}")
        self.cancelled = tool("scancel", f"echo x > {self.asked.with_name('squeue.gone')}")
        self.said: list[str] = []

    def look(self, folder: Path) -> list[str]:
        """Start a run in a checkout; return the calls of scancel."""
        clear(folder, self.said.append)
        return calls(self.cancelled)


def checkout(folder: Path, **noted: object) -> Path:
    """Make a checkout with a killed run and an ended one; ``noted`` replaces fields of the first run's checkout."""
    facts = Checkout.of(folder).model_dump() if folder.mkdir() is None else {}
    journal.append(folder / "results/old/slurm/jobs.jsonl", "run", run="run-1", checkout=facts | noted)
    journal.append(folder / "results/new/slurm/jobs.jsonl", "run", run="run-2", checkout=facts)
    journal.append(folder / "results/new/slurm/jobs.jsonl", "run_ended", run="run-2")
    return folder


def jobs_file(folder: Path) -> Path:
    return folder / "results/old/slurm/jobs.jsonl"


CANCELLED = ["--quiet 5"]


def test_leftovers_of_every_run_are_cancelled(tool: MakeTool, tmp_path: Path) -> None:
    own = checkout(tmp_path / "own")
    site = Site(tool, own)
    assert site.look(own) == CANCELLED
    assert "(5)" in site.said[0] and len(site.said) == 1
    assert "--name=run-1 " in calls(site.asked)[0] and "run-2" not in calls(site.asked)[0]
    before = len(calls(site.asked))
    site.look(own)
    assert len(calls(site.asked)) == before, "no query for a closed journal"


@pytest.mark.parametrize(("body", "reason"), [(AWAY, "slurm_unreachable"), ("COMPLETING", "slurm_leftovers")])
def test_leftovers_that_stay_refuse_the_new_run(
    tool: MakeTool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: str
) -> None:
    monkeypatch.setattr(guard, "GONE_S", 0.2)
    own = checkout(tmp_path / "own")
    tool("squeue", body if body == AWAY else row(own, body))
    tool("scancel", "")
    with pytest.raises(GuardedError) as caught:
        clear(own, lambda _: None)
    assert caught.value.reason == reason and caught.value.do
    assert list(journal.open_runs(jobs_file(own))) == ["run-1"]


@pytest.mark.parametrize("how", ["files", "links"])
def test_copy_cancels_nothing_and_the_original_does(tool: MakeTool, tmp_path: Path, how: str) -> None:
    own = checkout(tmp_path / "own")
    copy = tmp_path / "copy"
    shutil.copytree(own, copy, copy_function=os.link if how == "links" else shutil.copy2)
    site = Site(tool, own)
    assert site.look(copy) == []
    assert len(site.said) == 1 and str(own) in site.said[0] and "scancel 5" in site.said[0]
    before = len(calls(site.asked))
    assert site.look(copy) == [] and len(site.said) == 1 and len(calls(site.asked)) == before, "once"
    journal.append(jobs_file(copy), "run", run="run-3", checkout=Checkout.of(copy).model_dump())
    assert list(journal.open_runs(jobs_file(copy))) == ["run-3"]
    assert site.look(own) == CANCELLED


def test_copy_of_a_deleted_checkout_cancels_nothing(tool: MakeTool, tmp_path: Path) -> None:
    own = checkout(tmp_path / "own")
    shutil.copytree(own, tmp_path / "copy")
    shutil.rmtree(own)
    site = Site(tool, own)
    assert site.look(tmp_path / "copy") == [] and "scancel 5" in site.said[0]


def test_moved_checkout_cancels_its_jobs(tool: MakeTool, tmp_path: Path) -> None:
    own = checkout(tmp_path / "own")
    moved = own.rename(tmp_path / "moved")
    assert Site(tool, own).look(moved) == CANCELLED


def test_moved_checkout_cancels_although_a_copy_took_its_place(tool: MakeTool, tmp_path: Path) -> None:
    own = checkout(tmp_path / "own")
    moved = own.rename(tmp_path / "moved")
    shutil.copytree(moved, own)
    assert Site(tool, own).look(moved) == CANCELLED


def test_restored_checkout_cancels_its_jobs(tool: MakeTool, tmp_path: Path) -> None:
    own = checkout(tmp_path / "own")
    shutil.copytree(own, tmp_path / "backup")
    shutil.rmtree(own)
    (tmp_path / "backup").rename(own)
    assert Site(tool, own).look(own) == CANCELLED


@pytest.mark.parametrize("noted", [{"host": "login1"}, {"inode": 1}])
def test_other_login_node_or_restored_backup_cancels(tool: MakeTool, tmp_path: Path, noted: dict[str, object]) -> None:
    own = checkout(tmp_path / "own", **noted)
    assert Site(tool, own).look(own) == CANCELLED


def test_copy_at_same_path_on_other_host_cancels_nothing(tool: MakeTool, tmp_path: Path) -> None:
    copy = checkout(tmp_path / "own", host="node1", inode=1)
    site = Site(tool, copy)
    assert site.look(copy) == []
    assert len(site.said) == 1 and f"the checkout {copy} on node1." in site.said[0] and "scancel 5" in site.said[0]
    assert journal.open_runs(jobs_file(copy)) == {}


@pytest.mark.parametrize("name", ["a|b", "a |", "a|/b", "ends with a space "])
def test_leftovers_of_a_folder_with_special_name(tool: MakeTool, tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    own = checkout(tmp_path / name)
    assert Site(tool, own).look(own) == CANCELLED


def test_disk_mounted_elsewhere_on_other_login_node(tool: MakeTool, tmp_path: Path) -> None:
    own = checkout(tmp_path / "own", host="login1", path="/mounted/there/own")
    assert Site(tool, Path("/mounted/there/own")).look(own) == CANCELLED


def test_same_inode_on_another_disk_is_a_copy(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    noted = Checkout.of(other).model_copy(update={"inode": one.stat().st_ino})
    assert noted.is_at(one), "the old path has another inode now, so this folder was moved"
    assert not Checkout.of(other).is_at(one)


def test_job_submitted_from_another_folder_is_kept(tool: MakeTool, tmp_path: Path) -> None:
    own = checkout(tmp_path / "own")
    site = Site(tool, tmp_path / "elsewhere")
    assert site.look(own) == [] and str(tmp_path / "elsewhere") in site.said[0]


def test_workdir_decides_for_a_journal_without_checkout(tool: MakeTool, tmp_path: Path) -> None:
    folders = [tmp_path / "own", tmp_path / "copy"]
    for folder in folders:
        journal.append(jobs_file(folder), "run", run="run-1")
    site = Site(tool, folders[0])
    assert site.look(folders[1]) == []
    assert site.look(folders[0]) == CANCELLED


def test_results_folder_of_two_checkouts_is_refused(tool: MakeTool, tmp_path: Path) -> None:
    own = checkout(tmp_path / "own")
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "results").symlink_to(own / "results")
    site = Site(tool, own)
    with pytest.raises(GuardedError) as caught:
        site.look(copy)
    assert caught.value.reason == "run_locked" and str(own) in caught.value.what
    assert calls(site.cancelled) == [] and list(journal.open_runs(jobs_file(own))) == ["run-1"]


@pytest.mark.parametrize(("main", "cancelled"), [("1:1", CANCELLED), (guard.identity(os.getpid()), [])], ids=["ended", "alive"])
def test_without_a_lock_only_ended_runs_are_cancelled(tool: MakeTool, tmp_path: Path, main: str, cancelled: list[str]) -> None:
    own = checkout(tmp_path / "own")
    facts = Checkout.of(own).model_dump()
    journal.append(jobs_file(own), "run", run="run-1", main=main, host=socket.gethostname(), checkout=facts)
    site = Site(tool, own)
    clear(own, site.said.append, ended_alone=True)
    assert calls(site.cancelled) == cancelled
