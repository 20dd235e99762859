"""The gate: what is moved, what stays as a hole, and what the user reads."""

import pytest

from builders.loads import load
from servemark.errors import ServemarkError
from servemark.measurement.quarantine import decide, gate, reason_codes, reject
from servemark.measurement.reasons import remedy
from servemark.records import Check, Failure, Measurement, Reason

FAILURE = Failure(
    stage="await_ready",
    reason="server_exited",
    detail="The server exited with 1.",
    log="logs/server.log",
    remedy="Read it.",
)


def record(point="chat-c1", verdict="INVALID", codes=("server_died",), key="k1", deployment="plain", **changes):
    reasons = tuple(Reason(code=code, severity="INVALID", detail=f"Detail of {code}.") for code in codes)
    values = {
        "deployment": deployment, "load": load(name=point), "key": key, "key_parts": {}, "verdict": verdict,
        "reasons": reasons if verdict == "INVALID" else (), "raw": f"{point}.raw.json", "attempt": "attempts/1",
    }  # fmt: skip
    return Measurement(**{**values, **changes})


@pytest.fixture
def run(tmp_path):
    class Run:
        rejected = tmp_path / "rejected"

        def put(self, *records):
            paths = {}
            for made in records:
                path = tmp_path / "measurements" / made.deployment / f"{made.load.name}.json"
                made.write(path)
                (path.parent / made.raw).write_text(f"raw:{made.load.name}")
                paths[path] = made
            return paths

        def gate(self, *records, **options):
            return gate(self.put(*records), self.rejected, **options)

        def files(self, folder):
            return sorted(str(p.relative_to(tmp_path / folder)) for p in (tmp_path / folder).rglob("*") if p.is_file())

    return Run()


def test_good_records_pass_and_stay(run):
    result = run.gate(record("a", "VALID"), record("b", "SUSPECT"))
    assert (result.passed, result.valid, result.suspect, result.moved, result.holes, result.table) == (
        True,
        1,
        1,
        {},
        (),
        "",
    )
    assert len(run.files("measurements")) == 4
    assert not run.rejected.exists()


def test_an_invalid_record_is_moved_with_its_raw_file_and_the_good_ones_are_untouched(run):
    result = run.gate(record("good", "VALID"), record("bad"))
    assert not result.passed
    assert run.files("measurements") == ["plain/good.json", "plain/good.raw.json"]
    assert run.files("rejected") == ["plain/bad.1.json", "plain/bad.1.raw"]
    moved = Measurement.read(result.moved["plain/bad"])
    assert moved.raw == "bad.1.raw"
    assert (run.rejected / "plain" / moved.raw).read_text() == "raw:bad"


def test_the_same_fault_twice_becomes_a_hole_that_stays_and_passes(run):
    assert not run.gate(record()).passed
    second = run.gate(record())
    assert second.passed
    assert [(h["deployment"], h["point"], h["reason"]) for h in second.holes] == [("plain", "chat-c1", "server_died")]
    assert run.files("measurements") == ["plain/chat-c1.json", "plain/chat-c1.raw.json"]
    assert run.gate(record()).holes == second.holes


@pytest.mark.parametrize(
    "second",
    [record(codes=("server_hung",)), record(codes=("server_died", "server_hung")), record(key="k2")],
    ids=["other-reason", "more-reasons", "other-key"],
)
def test_another_fault_or_another_key_is_measured_again(run, second):
    run.gate(record())
    assert not run.gate(second).passed
    assert [name for name in run.files("rejected") if name.endswith(".json")] == [
        "plain/chat-c1.1.json", "plain/chat-c1.2.json",
    ]  # fmt: skip


def test_faults_that_alternate_end_too(run):
    answers = [run.gate(record(codes=(code,))).passed for code in ("a", "b", "a")]
    assert answers == [False, False, True]


def test_a_suspect_reason_beside_the_invalid_one_does_not_make_it_another_fault():
    extra = (*record().reasons, Reason(code="too_short", severity="SUSPECT", detail="x"))
    assert reason_codes(record(reasons=extra)) == reason_codes(record())


def test_another_point_or_deployment_with_the_same_fault_is_its_own(run):
    run.gate(record("a"))
    assert set(run.gate(record("b"), record("a", deployment="ray")).moved) == {"plain/b", "ray/a"}


def test_a_failed_deployment_is_compared_by_its_failures_reason(run):
    assert not run.gate(record(failure=FAILURE, codes=("server_exited",))).passed
    detail = FAILURE.model_copy(update={"detail": "Other words."})
    assert run.gate(record(failure=detail, codes=("server_exited", "more"))).passed


def test_a_point_that_was_never_measured_for_another_ones_end_is_no_hole(run):
    """It may lie behind a load that ends the server every time, and says nothing of itself."""
    inherited = Failure(stage="measure", reason="server_died", detail="The server died.")
    for _ in range(3):
        assert not run.gate(record(failure=inherited, codes=("server_died",))).passed
    own = record(failure=inherited, codes=("server_died",), client_argv=("vllm", "bench"))
    assert not run.gate(own).passed, "measured itself at last, for the first time"
    assert run.gate(own).passed


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
def test_accepted_points_stay_as_holes_at_once(run, accept, is_hole):
    result = run.gate(record(), accept_invalid=accept)
    assert (result.passed, len(result.holes)) == (is_hole, int(is_hole))
    if is_hole:
        assert "accept_invalid" in result.holes[0]["detail"]


def test_an_accepted_point_is_measured_again_when_it_is_no_longer_accepted(run):
    run.gate(record(), accept_invalid=True)
    assert not run.gate(record()).passed


def test_holes_fit_the_check_record(run):
    result = run.gate(record(), accept_invalid=True)
    check = Check(run="demo", valid=result.valid, suspect=result.suspect, holes=result.holes)
    assert set(check.holes[0]) == {"deployment", "point", "reason", "detail"}


def test_the_table_names_point_reason_detail_log_remedy_and_the_next_run(run):
    table = run.gate(record("bad"), record("dead", failure=FAILURE), record("x", codes=("new_code",))).table
    for text in (
        "3 INVALID", str(run.rejected), "plain/bad", "server_died", "Detail of server_died.", "attempts/1", remedy("server_died"),
        "plain/dead", "server_exited", FAILURE.detail, FAILURE.log, FAILURE.remedy, "new_code", remedy("new_code"),
    ):  # fmt: skip
        assert text in table
    again = run.gate(record("bad")).table
    assert "1 hole" in again and "plain/bad" in again


def test_an_invalid_record_without_reason_is_reported_as_such(run):
    assert "unknown" in run.gate(record(codes=())).table


def test_a_raw_file_that_is_not_there_or_not_named_does_not_stop_the_move(run):
    for made in (record("gone"), record("none", raw=None)):
        path = run.rejected.parent / "m" / f"{made.load.name}.json"
        made.write(path)
        assert Measurement.read(reject(path, made, run.rejected)).load == made.load
        assert not path.exists()


def test_a_number_taken_by_a_left_over_raw_file_is_not_used_again(run):
    (run.rejected / "plain").mkdir(parents=True)
    (run.rejected / "plain" / "chat-c1.1.raw").write_text("kept")
    result = run.gate(record())
    assert result.moved["plain/chat-c1"].name == "chat-c1.2.json"
    assert (run.rejected / "plain" / "chat-c1.1.raw").read_text() == "kept"


def test_a_rejected_record_that_cannot_be_read_does_not_count(run):
    (run.rejected / "plain").mkdir(parents=True)
    (run.rejected / "plain" / "chat-c1.1.json").write_text("{")
    assert not run.gate(record()).passed


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ""])
def test_a_name_that_would_leave_the_folder_is_refused(run, name):
    with pytest.raises(ServemarkError, match="plain name"):
        gate({run.rejected / "x.json": record(deployment=name)}, run.rejected)
    path = next(iter(run.put(record())))
    with pytest.raises(ServemarkError, match="plain name"):
        reject(path, record(point=name), run.rejected)


def test_deciding_touches_no_file(tmp_path):
    decisions = decide({tmp_path / "none.json": record()}, [record()], False)
    assert [(d.action, d.record.load.name) for d in decisions] == [("hole", "chat-c1")]
    assert list(tmp_path.iterdir()) == []
