"""Logs kept from a scratch folder: which files, how much of each, and no error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from servemark.deployment.executors.ray import KEPT
from servemark.diagnosis.text import window
from servemark.supervisor import salvage

SESSION = "session_2026-11-21_20-05-40_937849_15154"


@pytest.fixture
def scratch(tmp_path):
    """A scratch folder with a session of Ray 2.60, and its link to the latest session."""
    folder = tmp_path / "scratch"
    logs = folder / SESSION / "logs"
    logs.mkdir(parents=True)
    (folder / "session_latest").symlink_to(folder / SESSION)
    for name in (
        "raylet.out",
        "gcs_server.out",
        "worker-8ad-01000000-15884.err",
        "python-core-worker-8ad_15884.log",
        "log_monitor.log",
    ):
        (logs / name).write_text(f"in {name}\n")
    (logs / "raylet.err").touch()
    return folder


def keep(scratch: Path, log: str = "", patterns=KEPT) -> list[Path]:
    (scratch.parent / "ray-n1.log").write_text(log)
    target = salvage.folder(scratch.parent / "ray-n1.log", "ray-n1")
    salvage.keep(scratch, patterns, scratch.parent / "ray-n1.log", target)
    return salvage.files(target)


def test_rays_logs_are_kept_once_each_and_only_for_the_user(scratch):
    found = keep(scratch)
    assert [path.name for path in found] == [
        "raylet.out",
        "gcs_server.out",
        "worker-8ad-01000000-15884.err",
        "python-core-worker-8ad_15884.log",
    ]
    assert all(path.read_text() == f"in {path.name}\n" for path in found)
    assert {path.stat().st_mode & 0o777 for path in found} == {0o600}
    assert found[0].parent == scratch.parent / "ray-n1.kept" and found[0].parent.stat().st_mode & 0o777 == 0o700


def test_long_file_keeps_its_end_in_whole_lines(scratch):
    long = scratch / SESSION / "logs" / "raylet.out"
    long.write_text("".join(f"line {number}\n" for number in range(60_000)))
    (end, *_) = keep(scratch)
    said = end.read_text()
    assert salvage.TAIL_BYTES - 20 < len(said) <= salvage.TAIL_BYTES
    assert said.startswith("line ") and said.endswith("line 59999\n") and len(window(end)) == said.count("\n")


def test_first_pattern_and_newest_files_are_kept(scratch):
    logs = scratch / SESSION / "logs"
    for number in range(50):
        path = logs / f"worker-{number:02}.err"
        path.write_text("x")
        os.utime(path, (1000 + number, 1000 + number))
    names = {path.name for path in keep(scratch)}
    assert len(names) == salvage.MOST_FILES and {"raylet.out", "gcs_server.out"} <= names
    workers = {name for name in names if name.startswith("worker-") and "-0100" not in name}
    assert workers == {f"worker-{number:02}.err" for number in range(50 - len(workers), 50)}


def test_only_the_session_named_in_the_log_is_kept(scratch):
    other = scratch / "session_2026-11-21_20-06-00_1_99" / "logs"
    other.mkdir(parents=True)
    (other / "raylet.out").write_text("of another\n")
    (other / "raylet.err").write_text("of another\n")
    said = f"INFO scripts.py:1274 -- Process exit logs will be saved to: {scratch}/{SESSION}/logs/ray_process_exit.log\n"
    assert "raylet.err" not in [path.name for path in keep(scratch, said)]
    assert "raylet.err" in [path.name for path in keep(scratch, "names none")]


def test_links_pipes_and_folders_are_not_copied(scratch, tmp_path):
    logs = scratch / SESSION / "logs"
    (tmp_path / "secret").write_text("s3cr3t")
    (logs / "raylet.link").symlink_to(tmp_path / "secret")
    os.mkfifo(logs / "raylet.pipe")
    (logs / "raylet.folder").mkdir()
    elsewhere = tmp_path / "elsewhere" / "logs"
    elsewhere.mkdir(parents=True)
    (elsewhere / "raylet.far").write_text("far")
    (scratch / "session_x").symlink_to(elsewhere.parent)
    assert [path.name for path in keep(scratch, patterns=("session_*/logs/raylet.*",))] == ["raylet.out"]


def test_link_at_the_place_of_a_target_is_not_followed(scratch, tmp_path):
    target = salvage.folder(tmp_path / "ray-n1.log", "ray-n1")
    target.mkdir()
    (target / "raylet.out").symlink_to(tmp_path / "victim")
    keep(scratch)
    assert not (tmp_path / "victim").exists()
    assert (target / "gcs_server.out").read_text() == "in gcs_server.out\n", "the others are kept"


def test_failed_copy_is_no_error(scratch, tmp_path, monkeypatch):
    salvage.keep(tmp_path / "never", KEPT, tmp_path / "no.log", tmp_path / "a.kept")
    salvage.keep(scratch, KEPT, tmp_path / "no.log", tmp_path / "no" / "such" / "a.kept")
    (tmp_path / "file.kept").touch()
    salvage.keep(scratch, KEPT, tmp_path / "no.log", tmp_path / "file.kept")
    monkeypatch.setattr(salvage, "MOST_S", -1.0)
    salvage.keep(scratch, KEPT, tmp_path / "no.log", tmp_path / "late.kept")
    for name in ("a", "file", "late", "none"):
        assert salvage.files(tmp_path / f"{name}.kept") == []
