"""All results of an archive are recomputed from its per-request results, and each difference is named."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from builders import archived_run
from builders.archived_run import FINE, wrong
from servemark import verification
from servemark.archive import crate
from servemark.archive import seal as archive
from servemark.cli import main as cli
from servemark.measurement.merge import merge
from servemark.measurement.raw import read_raw
from servemark.measurement.verdict import ServerFacts
from servemark.records import Accounting, JobAccount
from servemark.report import gather, table
from servemark.verification import whole_archive
from servemark.verification.table_and_report import same
from servemark.verification.unpack import unpacked


def test_unchanged_archive_has_no_problem(run, capsys):
    path = run.seal()
    result = verification.verify(path)
    assert result.wrong == ()
    with unpacked(path) as found:
        identity = found.digests[archive.MANIFEST]
    assert (result.run, result.identity, result.measurements) == ("demo", identity, 12)
    # 3 throughputs, 24 latencies, 4 counts of samples, duration, 2 sums and 2 counts of requests; failed points have the last two. Requests
    # in flight (2), peak, tokens per chunk and per-token time.
    rows = table.rows(table.tidy(run.measurements()))
    steady = sum(row[name] is not None for row in rows for name in table.FIGURES if name.startswith("steady_"))
    assert steady > 0
    assert result.figures == 8 * (3 + 24 + 4 + 1 + 2 + 2) + 4 * 2 + 8 * 5 + steady
    verdicts = {item.verdict for item in run.measurements()}
    assert verdicts == {"VALID", "SUSPECT", "INVALID"}, "the run has each verdict"
    assert cli.main(["verify", str(path)]) == 0
    printed = capsys.readouterr()
    assert ": OK\n" in printed.out and identity in printed.out and printed.err == ""


def test_changed_latency_is_named_with_every_file(run, capsys):
    def slower(raw: dict[str, Any]) -> None:
        raw["latencies"][3] += 0.001

    run.edit_json(run.raw("plain", "chat-c1-r1"), slower)
    path = run.seal()
    stated = {item.load.name: item for item in run.measurements() if item.deployment == "plain"}["chat-c1-r1"].e2el_ms
    mean = f"plain chat-c1-r1: e2el_mean_ms: stated {stated.mean:.10g}, recomputed {stated.mean + 1 / 8:.10g} "
    found = wrong(path)
    assert mean + "(record, measurements.csv, measurements.parquet)" in found
    assert any(line.startswith("plain chat-c1-r1: raw_sha256:") for line in found)
    assert any(line.startswith("curves: panel-0: e2el: plain 1 1: mean:") for line in found)
    assert any(line.startswith("points: plain chat 1: e2el_p50_ms_median:") for line in found)
    assert all("plain " in line for line in found), "no other value is named"
    assert not any("ttft" in line for line in found)
    assert cli.main(["verify", str(path)]) == 1
    printed = capsys.readouterr().err
    assert mean in printed and "Traceback" not in printed


def test_impossible_time_changes_verdict_and_results(run):
    def faster(raw: dict[str, Any]) -> None:
        raw["ttfts"][0] *= 10

    run.edit_json(run.raw("ray-tp2", "chat-c2-r2"), faster)
    found = wrong(run.seal())
    (verdict,) = [line for line in found if ": verdict: " in line]
    assert "VALID" in verdict and "INVALID (clock_odd:" in verdict
    assert any("ttft_max_ms: stated" in line for line in found)


def test_results_of_each_client_process_are_recomputed(run, monkeypatch):
    """Two client processes wrote one file. A changed total of one process is named. The configuration still has one process."""
    monkeypatch.setattr(whole_archive, "contradictions", lambda *_: iter(()))
    paths = [run.folder / run.raw("plain", f"chat-c1-r{number}") for number in (1, 2)]
    parts = [(json.loads(path.read_text()), read_raw(path)) for path in paths]
    plan = run.folder / "deployments" / "plain" / "plan.json"
    points = json.loads(plan.read_text())
    for point in points["points"]:
        if point["load"]["name"] == "chat-c1-r1":
            point["load"] |= {"clients": 2, "requests": 16, "concurrency": 2}
    plan.write_text(json.dumps(points))
    run.write(run.raw("plain", "chat-c1-r1"), json.dumps(merge(parts, [[(100.1, 1.0), (101.1, 1.5)], ()])))
    run.judge("plain", "chat-c1-r1", ServerFacts(client_exit_code=0))
    record = {(item.deployment, item.load.name): item for item in run.measurements()}["plain", "chat-c1-r1"]
    assert (record.load.clients, record.client_cpu, record.completed) == (2, 0.5, 16), record.reasons
    assert wrong(run.seal()) == []
    run.edit_json(run.raw("plain", "chat-c1-r1"), lambda raw: raw["clients"][1].update(mean_itl_ms=1.0))
    found = wrong(run.seal())
    assert any("client_disagrees" in line and "process 2" in line for line in found)


def test_changed_total_of_client_changes_verdict(run):
    run.edit_json(run.raw("plain", "chat-c1-r1"), lambda raw: raw.update(mean_ttft_ms=1.0))
    found = wrong(run.seal())
    assert any("client_disagrees" in line and "mean_ttft_ms" in line for line in found)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "raw_empty"), ("{}", "raw_missing"), ("[1", "raw_broken"), ('{"a": NaN}', "non_finite"), ("[" * 9999, "raw_broken")],
)  # fmt: skip
def test_point_without_results_is_named(run, text, reason):
    run.edit(run.raw("plain", "chat-c2-r1"), lambda _: text)
    found = wrong(run.seal())
    assert any(f"stated SUSPECT (too_short), recomputed INVALID ({reason}:" in line for line in found)
    assert any("chat-c2-r1: output_tokens_per_s: stated" in line and "recomputed nothing" in line for line in found)


def test_thresholds_are_those_of_the_run(run):
    run.edit_json("config.json", lambda config: config["verdict"].update(min_duration_s=0.0))
    found = wrong(run.seal())
    limits = [line for line in found if "thresholds: stated nothing, recomputed min_duration_s=0" in line]
    verdicts = {line.partition(" (")[0] for line in found if line not in limits}
    assert verdicts == {f"plain chat-c2-r{number}: verdict: stated SUSPECT" for number in (1, 2)}
    assert len(limits) == 8 and all("recomputed VALID" in line for line in found if line not in limits)


def test_changed_record_is_named_with_unchanged_table(run):
    def better(record: dict[str, Any]) -> None:
        record["ttft_ms"]["p99"] -= 1

    run.edit_json(run.record("plain", "chat-c1-r1"), better)
    (line,) = wrong(run.seal())
    assert line.startswith("plain chat-c1-r1: ttft_p99_ms: stated ") and line.endswith(" (record)")


def test_accepted_record_without_results_is_named(run):
    def accepted(record: dict[str, Any]) -> None:
        record.update(verdict="VALID", reasons=[], failure=None)

    run.edit_json(run.record(archived_run.FAILED, "chat-c1-r1"), accepted)
    assert any(line.startswith(f"{archived_run.FAILED} chat-c1-r1: verdict: stated VALID") for line in wrong(run.seal()))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_changed_cell_missing_row_and_column_are_named(run, kind):
    frame = table.tidy(run.measurements())
    assert frame["point"][4] == "chat-c1-r1" and frame["deployment"][4] == "plain"
    changed, name = frame.copy(), f"measurements.{kind}"
    changed.loc[4, "output_tokens_per_s"] = 1234.5
    changed.loc[4, "verdict"] = "SUSPECT"
    write = getattr(table, f"write_{kind}")
    write(changed, run.folder / name)
    cells = wrong(run.seal())
    assert len(cells) == 2 and all(line.endswith(f"({name})") for line in cells)
    assert cells[0] == f"plain chat-c1-r1: verdict: stated SUSPECT, recomputed VALID ({name})"
    assert cells[1].startswith("plain chat-c1-r1: output_tokens_per_s: stated 1234.5, recomputed ")
    write(frame.drop(index=4), run.folder / name)
    (row,) = wrong(run.seal())
    assert name in row and ("11 rows" in row or row.startswith("plain chat-c1-r1: rows: stated 0"))
    write(frame.drop(columns="ttft_p99_ms"), run.folder / name)
    columns = wrong(run.seal())
    assert len(columns) == 12 and all("ttft_p99_ms:" in line for line in columns)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_column_missing_in_older_archive_is_not_checked(run, monkeypatch, kind):
    frame = table.tidy(run.measurements())
    write, name = getattr(table, f"write_{kind}"), f"measurements.{kind}"
    write(frame.drop(columns=["balancing", "routing"]), run.folder / name)
    assert len(wrong(run.seal())) == 24, "this version writes these columns"
    monkeypatch.setattr(crate, "__version__", "0.0.9")
    result = verification.verify(run.seal())
    assert result.wrong == () and result.sealed_by.servemark == "0.0.9"
    assert [text.partition(" ")[0] for text in result.not_checked] == [name]
    assert "balancing" in result.not_checked[0] and "routing" in result.not_checked[0]
    frame.loc[4, "balancing"] = "router"
    write(frame.drop(columns="routing"), run.folder / name)
    assert wrong(run.seal()) == [f"plain chat-c1-r1: balancing: stated router, recomputed server ({name})"]


def test_extra_and_repeated_rows_are_named(run):
    lines = (run.folder / "measurements.csv").read_text().splitlines()
    more = [*lines, lines[5], lines[5].replace("chat-c1-r1", "chat-c9-r1")]
    run.write("measurements.csv", "\n".join(more) + "\n")
    assert wrong(run.seal()) == [
        "plain chat-c1-r1: rows: stated 2, recomputed 1 (measurements.csv)",
        "plain chat-c9-r1: rows: stated 1, recomputed 0 (measurements.csv)",
    ]


@pytest.mark.parametrize("text", ["", '"', "\x00", "PAR1"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_unreadable_table_is_named(run, kind, text):
    run.write(f"measurements.{kind}", text)
    assert any(f"measurements.{kind}" in line for line in wrong(run.seal()))


def test_missing_job_in_table_is_named(run):
    job = JobAccount(job_id="7", state="COMPLETED", attempts=(archived_run.attempt("plain"),))
    account = Accounting(deployment="plain", scheduler="slurm", jobs=(job,))
    account.write(run.folder / "deployments" / "plain" / "accounting.json")
    assert any(": job_id:" in line and " 7 " in line for line in wrong(run.seal()))
    frame = table.tidy(run.measurements(), [account])
    table.write_csv(frame, run.folder / "measurements.csv")
    table.write_parquet(frame, run.folder / "measurements.parquet")
    run.report()
    assert wrong(run.seal()) == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config.json", "{", "config.json"),
        ("config.json", "[]", "config.json"),
        ("config.json", "[" * 100_000, "config.json"),
        ("config.json", '{"deployments": {"../../x": {}}}', "deployments/../../x/plan.json"),
        ("config.json", '{"verdict": {"min_duration_s": "x"}}', "verdict"),
        ("hardware.json", "{}", "hardware.json"),
        ("deployments/plain/points/chat-c1-r1.json", "{", "deployments/plain/points/chat-c1-r1.json"),
        ("deployments/plain/points/chat-c1-r1.json", "[" * 100_000, "chat-c1-r1.json"),
        ("deployments/plain/startup.json", "{}", "deployments/plain/startup.json"),
    ],
)  # fmt: skip
def test_unreadable_record_is_named(run, name, text, said):
    run.edit(name, lambda _: text)
    found = wrong(run.seal())
    assert any(said in line for line in found), found
    assert not any("servemark-archive-" in line for line in found), "no line contains the temporary folder"


def test_deeply_nested_value_is_named(run):
    run.edit_block(lambda data: data["verdicts"].update(VALID=json.loads("[" * 900 + "]" * 900)))
    assert wrong(run.seal()) == ["verdicts: VALID: stated 1 entries, recomputed 6 (report.html)"]


def test_record_of_another_point_is_named(run):
    text = (run.folder / run.record("plain", "chat-c1-r1")).read_text()
    run.edit(run.record("plain", "chat-c1-r2"), lambda _: text)
    assert any("plain/chat-c1-r1" in line and "chat-c1-r2.json" in line for line in wrong(run.seal()))


def test_planned_point_without_a_record_is_named(run):
    (run.folder / run.record("plain", "chat-c1-r2")).unlink()
    assert any(line.startswith("plain/chat-c1-r2:") for line in wrong(run.seal()))


def test_valid_record_without_topology_is_named(run):
    def odd(record: dict[str, Any]) -> None:
        record["key_parts"]["deployment"] = ["no mapping"]

    run.edit_json(run.record("plain", "chat-c1-r1"), odd)
    run.edit_json(run.record("plain", "chat-c2-r1"), lambda record: record["ttft_ms"].update(p50=1.0))
    found = wrong(run.seal())
    assert any("chat-c1-r1.json: " in line and "topology" in line for line in found)
    assert any("chat-c2-r1: ttft_p50_ms: stated 1," in line for line in found), "other records are still compared"


def test_report_that_cannot_be_made_hides_no_other_problem(run):
    run.edit_json("deployments/plain/startup.json", lambda startup: startup.update(seconds_to_health=float("nan")))
    run.edit_json(run.record("plain", "chat-c2-r1"), lambda record: record["ttft_ms"].update(p50=1.0))
    found = wrong(run.seal())
    assert any("chat-c2-r1: ttft_p50_ms: stated 1," in line for line in found)


@pytest.mark.parametrize(
    ("raw", "facts", "codes"),
    [
        ("{}\n", {"client_exit_code": 1}, {"client_failed", "raw_missing"}),
        ("{}\n", {"client_exit_code": None, "client_timed_out": True}, {"client_timeout", "raw_missing"}),
        (None, {"died": "exit code 1", "client_exit_code": 0}, {"server_died"}),
        (None, {"died": "exit code 1", "same_process": False, "client_exit_code": 0}, {"server_died", "server_changed"}),  # older
        (None, {"hung": "no token for 60 s", "client_exit_code": None}, {"server_hung", "client_failed"}),
    ],
)  # fmt: skip
def test_invalid_point_is_judged_with_recorded_facts(run, raw, facts, codes):
    if raw:
        run.edit(run.raw("plain", "chat-c1-r1"), lambda _: raw)
    run.judge("plain", "chat-c1-r1", ServerFacts(**facts))
    record = next(item for item in run.measurements() if (item.deployment, item.load.name) == ("plain", "chat-c1-r1"))
    assert {reason.code for reason in record.reasons} == codes and record.verdict == "INVALID"
    assert wrong(run.seal()) == []
    run.edit_json(run.record("plain", "chat-c1-r1"), lambda data: data.update(verdict="VALID"))
    assert any("plain chat-c1-r1: verdict: stated VALID" in line for line in wrong(run.seal()))


def test_recorded_suspension_is_kept_and_silence_is_found(run):
    run.judge("plain", "chat-c1-r1", ServerFacts(client_exit_code=0, interrupted="Slurm suspended job 7."))
    record = next(item for item in run.measurements() if (item.deployment, item.load.name) == ("plain", "chat-c1-r1"))
    assert "interrupted" in {reason.code for reason in record.reasons} and record.verdict == "SUSPECT"
    assert wrong(run.seal()) == []

    def stood_still(raw: dict[str, Any]) -> None:
        raw["start_times"] = [start + 5 * (index > 3) for index, start in enumerate(raw["start_times"])]
        longer = (raw["duration"] + 5) / raw["duration"]
        raw["duration"] *= longer
        raw |= {name: raw[name] / longer for name in raw if name.endswith("_throughput") and raw[name]}

    run.edit_json(run.raw("plain", "chat-c1-r1"), stood_still)
    run.judge("plain", "chat-c1-r1", FINE)
    record = next(item for item in run.measurements() if (item.deployment, item.load.name) == ("plain", "chat-c1-r1"))
    assert "interrupted" in {reason.code for reason in record.reasons}
    assert wrong(run.seal()) == []
    run.edit_json(run.record("plain", "chat-c1-r1"), lambda data: data.update(verdict="VALID", reasons=[]))
    assert any("interrupted" in line for line in wrong(run.seal()))


def test_rejected_and_earlier_points_are_ignored(run):
    record = json.loads((run.folder / run.record("plain", "chat-c1-r1")).read_text())
    run.write("rejected/plain/chat-c1-r1.1.json", json.dumps(record | {"verdict": "INVALID"}))
    run.write("deployments/plain/points/chat-c9-r1.json", json.dumps(record | {"point": "chat-c9-r1"}))
    shutil.copytree(run.folder / "deployments" / "plain", run.folder / "deployments" / "former")
    run.report()
    assert len(gather.gather(run.folder).rejected) == 1
    assert wrong(run.seal()) == []


@pytest.mark.parametrize(
    ("stated", "recomputed", "equal"),
    [
        (1.0, 1.0 + 1e-13, True), (1.0, 1.0 + 1e-7, False), ("1.5", 1.5, True), ("3", 3, True), (None, None, True),
        (None, 0.0, False), ("", 0, False), ("nan", 1.0, False), (True, 1.0, True), ("VALID", "SUSPECT", False),
        (float("nan"), 1.0, False), (10**400, 1.0, False),
    ],
)  # fmt: skip
def test_same_compares_with_tolerance(stated, recomputed, equal):
    assert same(stated, recomputed) is equal


def steady_record(run):
    """Return the record of a point with a steady state, as its path and JSON."""
    for item in run.measurements():
        if item.steady:
            return run.record(item.deployment, item.load.name)
    raise AssertionError("the run has no steady state")


def test_changed_steady_state_is_named(run):
    run.edit_json(steady_record(run), lambda data: data["steady"].update(output_throughput=1234.5))
    assert any("steady_output_tokens_per_s: stated 1234.5, recomputed" in line for line in wrong(run.seal()))


def test_lowered_format_is_named(run, monkeypatch):
    monkeypatch.setattr(crate, "FORMAT", 2)
    assert any("format 2" in line and "thresholds" in line for line in wrong(run.seal()))


def test_removed_steady_state_is_named_unless_format_is_older(run, monkeypatch):
    run.without_thresholds()
    run.edit_json(steady_record(run), lambda data: data.update(steady=None, steady_missing=None, in_flight_most=None))
    assert any("steady_output_tokens_per_s: stated nothing, recomputed" in line for line in wrong(run.seal()))
    monkeypatch.setattr(crate, "FORMAT", 2)
    result = verification.verify(run.seal())
    assert result.wrong == ()
    assert [text.partition(" ")[0] for text in result.not_checked] == ["checks", "requests_overtaken", "record"]


def test_wrong_new_value_is_named_in_older_format_too(run, monkeypatch):
    run.edit_json(steady_record(run), lambda data: data.update(in_flight_most=99))
    monkeypatch.setattr(crate, "FORMAT", 2)
    assert any("in_flight_most: stated 99" in line for line in wrong(run.seal()))


def test_latency_targets_are_applied_again_to_the_requests(run):
    run.edit_json("config.json", lambda config: config.update(slo={"ttft_ms": {"p50": 1e6}}))
    run.tabulate()
    run.report()
    rows = [row for row in table.rows(table.tidy(run.measurements(), attainments=gather.read(run.folder).attainments)) if row["slo_met"]]
    assert rows and {(row["slo_met"], row["slo_attainment"]) for row in rows} == {("yes", 1.0)}
    assert wrong(run.seal()) == []
    run.edit_json("config.json", lambda config: config.update(slo={"ttft_ms": {"p50": 1e-6}}))
    found = wrong(run.seal())
    assert any("slo_met" in line and "measurements.csv" in line for line in found)
