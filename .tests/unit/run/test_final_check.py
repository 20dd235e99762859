"""The final check of a run: accepted results, rejected results, permanent gaps, and the messages for the user."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from builders import report_data
from builders.loads import load
from servemark.errors import ServemarkError
from servemark.measurement.ledger import Ledger
from servemark.measurement.reasons import remedy
from servemark.records import Failure, Measurement, Reason
from servemark.run import final_check
from servemark.run.final_check import decide, reason_codes, reject

FAILURE = Failure(
    stage="await_ready",
    reason="server_exited",
    detail="The server exited with 1.",
    log="logs/server.log",
    remedy="Read it.",
)


def record(point="chat-c1", verdict="INVALID", codes=("server_died",), key="1" * 64, deployment="plain", **changes):
    reasons = tuple(Reason(code=code, severity="INVALID", detail=f"Detail of {code}.") for code in codes)
    values = {
        "deployment": deployment, "load": load(name=point), "key": key, "key_parts": {}, "verdict": verdict,
        "reasons": reasons if verdict == "INVALID" else (), "raw": f"{point}.raw.json", "attempt": "attempts/1",
    }  # fmt: skip
    return Measurement(**{**values, **changes})


@pytest.fixture
def run(tmp_path, told):
    class Run:
        folder = tmp_path / "results" / "demo"
        rejected = folder / "rejected"

        def put(self, *records):
            paths = {}
            for made in records:
                path = self.folder / "deployments" / made.deployment / "points" / f"{made.load.name}.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                if made.raw:
                    path.with_name(made.raw).write_text(f"raw:{made.load.name}")
                made.write(path)
                paths[path] = made
            return paths

        def check(self, *records, accept_invalid=False):
            """Return whether the check passes, its record, and the error's or the summary's text."""
            paths = self.put(*records)
            try:
                passed = final_check.check(self.folder, paths, Ledger(self.folder / "ledger"), accept_invalid, told)
            except ServemarkError as error:
                first = error.what + "\n"
                return SimpleNamespace(passed=error.reason != "invalid_measurements", holes=(), text=first + self.summary())
            return SimpleNamespace(passed=True, holes=passed.holes, text=self.summary(), record=passed)

        def summary(self):
            return (self.folder / "summary.txt").read_text()

        def files(self, folder):
            place = self.folder / folder
            return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())

    return Run()


def test_good_records_pass_and_the_summary_links_all_results(run, told):
    names = ("report.html", "archive/demo.tar.zst", "measurements.csv")
    (run.folder / "archive").mkdir(parents=True)
    for name in names:
        (run.folder / name).touch()
    result = run.check(report_data.measurement(), report_data.sweep()[-1])
    assert (result.record.run, result.record.valid, result.record.suspect, result.holes) == ("demo", 1, 1, ())
    last = [line.split()[-1] for line in result.text.splitlines()[-3:]]
    assert last == [f"file://{run.folder}/{name}" for name in names]
    assert told.words == ["1 VALID, 1 SUSPECT, 0 permanent gaps"]
    assert not run.rejected.exists()


def test_points_with_the_same_failure_state_it_once(run):
    lost = [record(point=f"chat-c{number}", failure=FAILURE, raw=None) for number in (1, 2, 3)]
    other = record(point="chat-c1", deployment="second", failure=FAILURE, raw=None)
    lines = run.check(*lost, other).text.splitlines()
    assert [line.split()[0] for line in lines if line.endswith(" server_exited")] == [
        *(f"plain/chat-c{number}" for number in (1, 2, 3)),
        "second/chat-c1",
    ]
    assert len([line for line in lines if FAILURE.detail in line]) == 2, "once for each deployment"


def test_invalid_record_is_moved_and_a_second_failure_is_a_gap(run, told):
    bad = report_data.invalid(concurrency=4)
    failed = run.check(report_data.measurement(), bad)
    assert not failed.passed and failed.text.startswith("1 of 2 ") and "15 of 32 requests failed" in failed.text
    assert not (run.folder / "deployments" / "plain" / "points" / f"{bad.load.name}.json").exists()
    assert Measurement.read(run.rejected / "plain" / f"{bad.load.name}.1.json").verdict == "INVALID"
    assert bad.load.name in run.summary() and str(report_data.POISON) not in run.summary()
    second = run.check(report_data.measurement(), bad)
    assert [(hole["point"], hole["reason"]) for hole in second.holes] == [(bad.load.name, "requests_failed")]
    assert told.words == ["1 VALID, 0 SUSPECT, 1 permanent gaps"]


def test_invalid_record_is_moved_with_its_raw_file(run):
    assert not run.check(record("good", "VALID"), record("bad")).passed
    assert run.files("deployments") == ["plain/points/good.json", "plain/points/good.raw.json"]
    assert run.files("rejected") == ["plain/bad.1.json", "plain/bad.1.raw"]
    moved = Measurement.read(run.rejected / "plain" / "bad.1.json")
    assert moved.raw == "bad.1.raw"
    assert (run.rejected / "plain" / moved.raw).read_text() == "raw:bad"


def test_same_fault_twice_becomes_a_permanent_gap(run):
    assert not run.check(record()).passed
    second = run.check(record())
    assert [(hole["deployment"], hole["point"], hole["reason"]) for hole in second.holes] == [("plain", "chat-c1", "server_died")]
    assert set(second.holes[0]) == {"deployment", "point", "reason", "detail"}
    assert run.files("deployments") == ["plain/points/chat-c1.json", "plain/points/chat-c1.raw.json"]
    assert run.check(record()).holes == second.holes


@pytest.mark.parametrize(
    "second",
    [record(codes=("server_hung",)), record(codes=("server_died", "server_hung")), record(key="2" * 64)],
    ids=["other-reason", "more-reasons", "other-key"],
)
def test_other_reasons_or_another_key_are_measured_again(run, second):
    run.check(record())
    assert not run.check(second).passed
    assert [name for name in run.files("rejected") if name.endswith(".json")] == ["plain/chat-c1.1.json", "plain/chat-c1.2.json"]


def test_alternating_faults_become_a_permanent_gap(run):
    assert [run.check(record(codes=(code,))).passed for code in ("a", "b", "a")] == [False, False, True]


def test_suspect_reason_does_not_change_the_fault():
    extra = (*record().reasons, Reason(code="too_short", severity="SUSPECT", detail="x"))
    assert reason_codes(record(reasons=extra)) == reason_codes(record())


def test_same_fault_of_another_point_or_deployment_is_measured_again(run):
    run.check(record("a"))
    assert not run.check(record("b"), record("a", deployment="ray")).passed
    assert {"plain/b.1.json", "ray/a.1.json"} <= set(run.files("rejected"))


def test_failed_deployment_is_compared_by_its_failures_code(run):
    assert not run.check(record(failure=FAILURE, codes=("server_exited",))).passed
    detail = FAILURE.model_copy(update={"detail": "Other words."})
    assert run.check(record(failure=detail, codes=("server_exited", "more"))).passed


def test_point_skipped_after_another_points_failure_is_no_permanent_gap(run):
    """Each run may measure a load first that ends the server, and so skip this point."""
    inherited = Failure(stage="measure", reason="server_died", detail="The server died.")
    for _ in range(3):
        assert not run.check(record(failure=inherited, codes=("server_died",))).passed
    own = record(failure=inherited, codes=("server_died",), client_argv=("vllm", "bench"))
    assert not run.check(own).passed, "its own first measurement"
    assert run.check(own).passed


@pytest.mark.parametrize(
    ("accept", "is_hole"),
    [
        (True, True),
        (False, False),
        ([], False),
        (["plain/*"], True),
        (["*/chat-c1"], True),
        (["ray/*", "plain/chat-c?"], True),
        (["ray/*"], False),
        (["chat-c1"], False),
        ("plain/*", True),
    ],
)
def test_accepted_points_are_permanent_gaps_at_once(run, accept, is_hole):
    result = run.check(record(), accept_invalid=accept)
    assert (result.passed, len(result.holes)) == (is_hole, int(is_hole))
    if is_hole:
        assert "accept_invalid" in result.holes[0]["detail"]
        assert not run.check(record()).passed, "measured again without accept_invalid"


def test_error_names_point_reason_detail_log_and_remedy(run):
    text = run.check(record("bad"), record("dead", failure=FAILURE), record("x", codes=("new_code",))).text
    for part in (
        str(run.rejected), "plain/bad", "server_died", "Detail of server_died.", "attempts/1", remedy("server_died"),
        "plain/dead", "server_exited", FAILURE.detail, FAILURE.log, FAILURE.remedy, "new_code", remedy("new_code"),
    ):  # fmt: skip
        assert part in text
    assert "Permanent gaps (1)" in run.check(record("bad")).text


def test_invalid_record_without_reason_is_reported(run):
    assert "unknown" in run.check(record(codes=())).text


def test_record_without_raw_file_is_moved(run):
    for made in (record("gone"), record("none", raw=None)):
        path = run.folder / "m" / f"{made.load.name}.json"
        made.write(path)
        assert Measurement.read(reject(path, made, run.rejected)).load == made.load
        assert not path.exists()


def test_number_of_a_leftover_raw_file_is_not_used_again(run):
    (run.rejected / "plain").mkdir(parents=True)
    (run.rejected / "plain" / "chat-c1.1.raw").write_text("kept")
    run.check(record())
    assert run.files("rejected") == ["plain/chat-c1.1.raw", "plain/chat-c1.2.json", "plain/chat-c1.2.raw"]
    assert (run.rejected / "plain" / "chat-c1.1.raw").read_text() == "kept"


def test_unreadable_rejected_record_does_not_count(run):
    (run.rejected / "plain").mkdir(parents=True)
    (run.rejected / "plain" / "chat-c1.1.json").write_text("{")
    assert not run.check(record()).passed


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ""])
def test_name_that_leads_out_of_the_folder_is_refused(run, name):
    path = next(iter(run.put(record())))
    for wrong in ({"deployment": name}, {"point": name}):
        with pytest.raises(ServemarkError) as refused:
            reject(path, record(**wrong), run.rejected)
        assert refused.value.reason == "record_broken"


def test_decide_touches_no_file(tmp_path):
    decisions = decide({tmp_path / "none.json": record()}, [record()], False)
    assert [(decision.action, decision.record.load.name) for decision in decisions] == [("hole", "chat-c1")]
    assert list(tmp_path.iterdir()) == []


def test_trial_that_the_search_counts_as_a_miss_is_a_gap_at_once():
    missed, died = record("chat-c64-r1", codes=("requests_failed",)), record("chat-c8-r1")
    found = {decision.record.load.name: decision.action for decision in decide({"a": missed, "b": died}, (), False, {"plain/chat-c64-r1"})}
    assert found == {"chat-c64-r1": "hole", "chat-c8-r1": "move"}
