"""Repetitions that differ, in every place that states a verdict: table, report, terminal, final check, verification."""

from __future__ import annotations

import pandas as pd
import pytest

from servemark import verification
from servemark.archive import crate
from servemark.measurement import repetitions
from servemark.measurement.ledger import Ledger
from servemark.report import gather
from servemark.run import final_check
from servemark.verification.show import show

CODE = "repetitions_differ"


@pytest.fixture
def differing(run):
    """The archived run with a limit of 0, which no two repetitions meet."""
    set_limit(run, 0.0)
    run.tabulate()
    run.report()
    return run


def set_limit(run, limit):
    def change(config):
        config["verdict"].pop("max_repetition_spread", None)
        config["verdict"] |= {} if limit is None else {"max_repetition_spread": limit}

    run.edit_json("config.json", change)


def verdicts(run):
    return pd.read_parquet(run.folder / "measurements.parquet").groupby("verdict").size().to_dict()


def test_table_states_the_reason_and_records_do_not(differing):
    frame = pd.read_parquet(differing.folder / "measurements.parquet")
    accepted = frame[frame["verdict"] != "INVALID"]
    assert len(accepted) > 2 and accepted["reasons"].str.contains(CODE).all() and set(accepted["verdict"]) == {"SUSPECT"}
    assert not any(CODE in str(item.reasons) for item in differing.measurements())
    assert CODE in (differing.folder / "report.html").read_text()


def test_verification_recomputes_the_reason_from_the_records(differing):
    assert verification.verify(differing.seal()).wrong == ()
    set_limit(differing, 0.5)
    wrong = verification.verify(differing.seal()).wrong
    assert sum(f"reasons: stated {CODE}, recomputed nothing" in line for line in wrong) > 2


def test_archive_without_a_limit_is_judged_without_the_check(run, monkeypatch):
    set_limit(run, None)
    run.without_thresholds()
    monkeypatch.setattr(crate, "FORMAT", 2)
    result = verification.verify(run.seal())
    assert result.wrong == () and result.sealed_by.format == 2
    assert repetitions.limit(gather.read(run.folder).config) is None
    assert CODE not in str(gather.gather(run.folder).measurements)


def test_terminal_marks_every_result(differing):
    accepted = sum(item.verdict != "INVALID" for item in differing.measurements())
    rows = [line for line in show(differing.folder).splitlines() if "c=" in line]
    assert sum("?" in line for line in rows) >= accepted


def test_final_check_counts_the_load_as_suspect_and_passes(differing, told):
    found = {path: path for path in differing.folder.glob("deployments/*/points/*.json") if "requests" not in path.name}
    accepted = sum(item.verdict != "INVALID" for item in differing.measurements())
    check = final_check.check(differing.folder, found, Ledger(differing.folder / "ledger"), True, told)
    assert (check.valid, check.suspect) == (0, accepted)


def test_limit_that_is_no_number_is_named(run):
    run.edit_json("config.json", lambda config: config["verdict"].update(max_repetition_spread="much"))
    problems = [line for line in verification.verify(run.seal()).wrong if "config.json" in line]
    assert problems and all("max_repetition_spread" in line for line in problems)


def test_report_of_an_older_archive_holds_no_intervals(run, monkeypatch):
    set_limit(run, None)
    run.without_thresholds()
    run.edit_block(lambda block: [block.pop(name) for name in ("intervals", "bars")])
    assert any("intervals" in line or "bars" in line for line in verification.verify(run.seal()).wrong)
    monkeypatch.setattr(crate, "FORMAT", 2)
    result = verification.verify(run.seal())
    assert result.wrong == ()
    assert any("intervals" in text and "bars" in text for text in result.not_checked)


def test_changed_end_of_an_interval_is_named(run):
    def change(block):
        block["intervals"]["rows"][0][block["intervals"]["columns"].index("ttft_p50_ms_repetitions")] = 99

    run.tabulate()
    run.report()
    run.edit_block(change)
    (line,) = verification.verify(run.seal()).wrong
    assert "intervals" in line and "ttft_p50_ms_repetitions" in line and "99" in line
