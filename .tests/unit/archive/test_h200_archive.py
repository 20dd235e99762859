"""Later versions must still verify and show an archive that was sealed on four H200."""

import json
import time

import pytest

from builders.paths import FIXTURES
from servemark.diagnosis.startup_log import StartupLog
from servemark.report import attempts
from servemark.verification import verify
from servemark.verification.show import show
from servemark.verification.unpack import unpacked

ARCHIVE = FIXTURES / "archives" / "h200x4-tp4.tar.zst"


def test_archive_of_other_python_version_is_verified():
    found = verify(ARCHIVE)
    assert found.wrong == ()
    assert (found.run, found.measurements, found.figures) == ("h200x4", 1, 36)
    assert (found.sealed_by.servemark, found.sealed_by.format) == ("0.1.0", 1)
    assert {text.partition(" ")[0] for text in found.not_checked} == {
        *("report.html", "run.json", "checks", "requests_overtaken", "record", "measurements.csv", "measurements.parquet")
    }
    assert found.identity == "704e79d4e3ca30df609615d2cdd9bfa09e60d0279b9440306bbd1f0eda42ddbd"


def test_attempt_with_earlier_file_names_is_read():
    with unpacked(ARCHIVE) as archive:
        (attempt,) = attempts.read(archive.folder / "deployments" / "tutorial-tp4")
        assert not list(archive.folder.rglob("supervisor.json"))
    assert (attempt.outcome, attempt.failure) == ("ended as planned", None) and attempt.ended_at


def test_archive_table_is_shown():
    text = show(ARCHIVE)
    assert "NVIDIA H200, 140 GiB" in text and "vLLM 0.25.1" in text
    (row,) = [line for line in text.splitlines() if line.startswith("tutorial-tp4 ")]
    assert row.split() == ["tutorial-tp4", "tutorial", "c=512", "1", "18,455", "1,841", "482", "8,645", "10,172", "26.2", "27,283"]


@pytest.fixture
def utc(monkeypatch):
    """Set UTC, the time zone of the machine that wrote the log."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("utc")
def test_archived_server_log_gives_recorded_phases():
    with unpacked(ARCHIVE) as archive:
        deployment = archive.folder / "deployments" / "tutorial-tp4"
        record = json.loads((deployment / "startup.json").read_text())
        log = StartupLog()
        log.feed((deployment / "attempts" / "001" / "server.log").read_text())
    assert log.stage == "ready"
    parsed = {phase.name: phase.seconds for phase in log.phases("2026-11-22T09:33:15+00:00")}
    # The other phases need the times of start and readiness, which the log does not contain.
    recorded = {phase["name"]: phase["seconds"] for phase in record["phases"]}
    for name in ("weights", "compile", "graph capture"):
        assert parsed[name] == recorded[name], name
    # The version that made the archive had one phase for these four.
    split = ("first run of the model", "graph capture (estimate)", "KV cache and profiling", "kernel warm-up")
    assert sum(parsed[name] for name in split) == pytest.approx(recorded["KV cache and profiling"], abs=0.005)
