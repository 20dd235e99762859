"""``servemark compare``: exit codes, files, help."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from servemark.cli import main as cli
from servemark.compare import side
from servemark.compare.metrics import METRICS
from servemark.records import Comparison


def run(*words: object) -> int:
    return cli.main(["compare", *map(str, words)])


def test_regression_beyond_the_limit_exits_with_1(archive, slower_archive, capsys):
    assert run(archive.path, slower_archive.path, "--gate", "throughput:-5%,p95_ttft:+10%") == 1
    out, err = capsys.readouterr()
    assert out.count("FAILED") == 2
    assert err.count("plain, chat, c=1") == 2


@pytest.mark.parametrize("gate", ["throughput:-50%", "p95_ttft:+100%,mean_ttft:+100%"])
def test_regression_within_the_limit_exits_with_0(archive, slower_archive, gate):
    assert run(archive.path, slower_archive.path, "--gate", gate) == 0


def test_improvement_exits_with_0(archive, slower_archive):
    assert run(slower_archive.path, archive.path, "--gate", "throughput:-1%,p95_ttft:+1%") == 0


def test_gate_that_cannot_tell_exits_with_0_and_is_printed(built_run, capsys):
    assert run(built_run.path, built_run.path, "--gate", "throughput:-5%") == 0
    gate = capsys.readouterr().out.partition("gate throughput:-5%: ")[2]
    assert gate.startswith("undecided") and "passed" not in gate
    assert "4 load points: A has 2 repetitions and B has 2 repetitions" in gate


def test_bad_input_exits_with_2_before_anything_is_read(archive, tmp_path, capsys):
    assert run("nowhere", "nowhere", "--gate", "speed:-5%") == 2
    assert "throughput" in capsys.readouterr().err
    assert run(archive.path, tmp_path / "nowhere") == 2


def test_files_are_written_only_with_a_folder(archive, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(archive.path, archive.path) == 0
    assert list(tmp_path.iterdir()) == []
    assert run(archive.path, archive.folder, "-o", tmp_path / "out") == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["compare.html", "compare.json"]
    assert len(Comparison.read(tmp_path / "out" / "compare.json").points) == 2


@pytest.mark.parametrize("place", ["file", "file/sub", "/proc/servemark", "/dev/null"])
def test_folder_that_cannot_be_written_exits_with_2_before_the_comparison(archive, tmp_path, capsys, place):
    (tmp_path / "file").write_text("")
    assert run(archive.path, archive.path, "-o", tmp_path / place) == 2
    out, err = capsys.readouterr()
    assert out == "" and place in err


def test_failed_write_of_the_results_exits_with_2(archive, tmp_path, capsys, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Comparison, "write", full)
    assert run(archive.path, archive.path, "-o", tmp_path / "out") == 2
    assert str(tmp_path / "out") in capsys.readouterr().err


def test_side_that_cannot_be_read_exits_with_2(archive, capsys, monkeypatch):
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(side, "opened", refuse)
    assert run(archive.path, archive.path) == 2
    assert str(archive.path) in capsys.readouterr().err


def test_help_names_every_metric(capsys):
    with pytest.raises(SystemExit):
        run("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert all(name in shown for name in METRICS)
