"""The final check of a run: accepted results, rejected ones, gaps."""

from __future__ import annotations

import pytest

from builders import report_data
from servemark.errors import ServemarkError
from servemark.measurement.ledger import Ledger
from servemark.records import Measurement
from servemark.run import final_check


@pytest.fixture
def run_folder(tmp_path):
    return tmp_path / "results" / "demo"


def write(run_folder, *records):
    paths = []
    for record in records:
        path = run_folder / "deployments" / record.deployment / "points" / f"{record.load.name}.json"
        record.write(path)
        paths.append(path)
    return paths


def test_the_gate_passes_and_says_where_everything_is(run_folder, told):
    suspect = report_data.sweep()[-1]
    paths = write(run_folder, report_data.measurement(), suspect)
    check = final_check.gate(run_folder, paths, Ledger(run_folder / "ledger"), False, told)
    assert (check.run, check.valid, check.suspect, check.holes) == ("demo", 1, 1, ())
    summary = (run_folder / "summary.txt").read_text()
    for name in ("report.html", "measurements.csv", "archive/demo.tar.zst"):
        assert str(run_folder / name) in summary
    assert told.words == ["1 VALID, 1 SUSPECT, 0 accepted holes"]


def test_the_gate_sets_invalid_ones_aside_and_a_second_failure_is_a_hole(run_folder, told):
    bad = report_data.invalid(concurrency=4)
    paths = write(run_folder, report_data.measurement(), bad)
    with pytest.raises(ServemarkError, match="1 of 2 measurements are INVALID") as failed:
        final_check.gate(run_folder, paths, Ledger(run_folder / "ledger"), False, told)
    assert failed.value.reason == "invalid_measurements" and "15 of 32 requests failed" in failed.value.what
    assert not (run_folder / "deployments" / "plain" / "points" / f"{bad.load.name}.json").exists()
    assert Measurement.read(run_folder / "rejected" / "plain" / f"{bad.load.name}.1.json").verdict == "INVALID"
    assert bad.load.name in (run_folder / "summary.txt").read_text(), "the summary is there after a failure, too"
    assert str(report_data.POISON) not in (run_folder / "summary.txt").read_text()
    check = final_check.gate(run_folder, write(run_folder, report_data.measurement(), bad), Ledger(run_folder / "ledger"), False, told)
    assert [(hole["point"], hole["reason"]) for hole in check.holes] == [(bad.load.name, "requests_failed")]
    assert told.words == ["1 VALID, 0 SUSPECT, 1 accepted holes"]


def test_the_gate_accepts_what_the_user_accepts(run_folder, told):
    bad = report_data.invalid(concurrency=4)
    check = final_check.gate(run_folder, write(run_folder, bad), Ledger(run_folder / "ledger"), ["plain/chat-*"], told)
    assert (check.valid, len(check.holes)) == (0, 1)
