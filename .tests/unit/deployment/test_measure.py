"""Points measured on a live stand-in: a faulty point never has a result."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from datetime import UTC, datetime

import psutil
import pytest

from builders.deployed import assert_all_gone, assert_no_figure, reasons, verdict
from integration.harness import wait_until
from servemark import supervisor
from servemark.config.cluster import Site
from servemark.config.model import Timeouts
from servemark.deployment import attempts, fabric
from servemark.measurement import silence
from servemark.measurement.key import FORMAT, digest
from servemark.measurement.raw import read_raw
from servemark.measurement.reasons import MORE_TIME
from servemark.nodes import allocation
from servemark.records import Fabric, Ready, Timeline, Topology
from servemark.report import timelines
from servemark.run import final_check
from servemark.supervisor import ownership


def test_stored_measurement_is_judged_by_current_thresholds(deploy):
    plain = deploy(points=1)
    plain.up()
    first = plain.measure()
    assert (verdict(first), first.key_format) == ("VALID", FORMAT)
    assert digest(first.key_parts["deployment"], first.key_parts["point"], first.key_format) == first.key
    plain.stop()
    plain.verdict = plain.verdict.model_copy(update={"min_requests_per_slot": 1000.0})
    record = plain.measure()
    assert (record.verdict, reasons(record)) == ("SUSPECT", {"few_requests_per_slot"})


def test_server_timeline_outlives_replay(deploy):
    plain = deploy(points=1, point={"requests": 24}, variables={"STANDIN_TOKEN_S": "0.1"})
    plain.up()
    record = plain.measure()
    attempt = plain.attempt
    plain.stop()
    timeline = Timeline.read(Timeline.path(attempt, record.load.name))
    assert timelines.belongs(timeline, record)
    (server,) = timeline.servers
    assert len(server.seconds) >= 2 and 4.0 in server.running and 0.0 in server.waiting
    assert all(0 <= usage <= 1 for usage in server.kv_cache_usage)
    replayed = plain.measure()
    assert timelines.belongs(timeline, replayed) and replayed.attempt == record.attempt


def test_record_has_unique_id_of_its_attempt_also_from_the_ledger(deploy):
    plain = deploy(points=2)
    plain.up()
    first = plain.measure(1)
    state = supervisor.read_state(plain.attempt)
    assert state and first.attempt_id and first.attempt_id == state.attempt_id
    # Attempts begin at 001 again, as on another machine with a copy of the ledger.
    plain.stop()
    shutil.rmtree(plain.attempt.parent)
    plain.up()
    second = plain.measure(2)
    assert second.attempt == first.attempt and second.attempt_id not in (None, first.attempt_id)
    assert plain.measure(1).attempt_id == first.attempt_id


def test_a_suspect_measurement_is_kept_and_marked(deploy):
    plain = deploy(points=1)
    plain.verdict = plain.verdict.model_copy(update={"min_duration_s": 60.0})
    plain.up()
    record = plain.measure()
    assert (record.verdict, reasons(record)) == ("SUSPECT", {"too_short"})
    assert plain.ledger.find(record.key).record == record
    assert "too_short" in plain.told.words[-1]


@pytest.mark.parametrize("victim", ["client", "server", "job"])
def test_suspended_process_makes_the_point_suspect(deploy, victim):
    plain = deploy(points=1, point={"requests": 40}, variables={"STANDIN_TOKEN_S": "0.1"})
    plain.up()
    log = plain.attempt / "server.log"

    def family() -> list[psutil.Process]:
        server, ours = psutil.Process(plain.pid()), psutil.Process().children(recursive=True)
        servers = [server, *server.children(recursive=True)]
        clients = [one for one in ours if one.name() == "bench-client"]
        return {"client": clients, "server": servers, "job": [*ours, *servers]}[victim]

    def stand_still() -> None:
        """Stop the process for 4 s after the client has sent its warm-up and some requests."""
        wait_until(lambda: log.read_text().count("POST /v1/completions") > 12, 120, "it is measured")
        stopped = family()
        for process in stopped:
            process.suspend()
        time.sleep(4.0)
        for process in stopped:
            process.resume()

    thread = threading.Thread(target=stand_still)
    thread.start()
    record = plain.measure()
    thread.join()
    # The sampler of a suspended job stops with it.
    expected = {"interrupted", "telemetry_gap"} if victim == "job" else {"interrupted"}
    assert (record.verdict, reasons(record, *expected)) == ("SUSPECT", expected), record.reasons
    assert record.output_throughput and plain.ledger.find(record.key) is None
    (client,) = read_raw(plain.raw()).clients
    assert bool(silence.find(client, closed_loop=True).stopped) is (victim == "job"), "its CPU time was not sampled"


def test_a_suspension_in_slurms_record_makes_the_point_suspect(deploy, monkeypatch):
    plain = deploy(points=2)
    plain.up()
    monkeypatch.setattr(allocation, "suspended_since", lambda began: f"Slurm suspended job 7 after {began}.")
    record = plain.measure(1)
    assert (record.verdict, reasons(record)) == ("SUSPECT", {"interrupted"})
    assert plain.ledger.find(record.key) is None and "job 7" in record.reasons[0].detail
    monkeypatch.undo()
    assert verdict(plain.measure(2)) == "VALID"


def test_slow_transport_of_fabric_check_makes_the_points_suspect(deploy):
    plain = deploy(points=1)
    plain.up()
    Fabric(deployment="plain", needed=True, slow="NCCL uses TCP").write(plain.attempt / fabric.KEPT)
    record = plain.measure()
    assert (record.verdict, reasons(record)) == ("SUSPECT", {"slow_transport"})
    stored = plain.measure()
    assert (stored.verdict, reasons(stored)) == ("SUSPECT", {"slow_transport"}), "from the ledger"


@pytest.mark.parametrize("kind", ["tcp", None])
def test_stored_measurement_over_another_transport_than_required_is_suspect(deploy, kind):
    plain = deploy(points=1)
    plain.up()
    Fabric(deployment="plain", needed=True, transport_kind=kind).write(plain.attempt / fabric.KEPT)
    assert (verdict(plain.measure()), plain.ledger.find(plain.plan.points[0].key).record.transport_kind) == ("VALID", kind)
    plain.stop()
    two = Topology(nodes=2, devices_per_node=1, tensor_parallel=1, pipeline_parallel=2, executor="mp")
    plain.plan = plain.plan.model_copy(update={"topology": two})
    plain.site = Site(scheduler="slurm", require_transport="ib")
    record = plain.measure()
    assert (record.verdict, reasons(record)) == ("SUSPECT", {"slow_transport"}) and "require_transport: ib" in record.reasons[0].detail
    plain.site = Site(scheduler="slurm")
    assert verdict(plain.measure()) == "VALID", "the ledger keeps the measurement as it was"


def test_damaged_ledger_entry_is_reported_and_remeasured(deploy):
    plain = deploy(points=1)
    plain.up()
    key = plain.measure().key
    plain.ledger.find(key).raw.write_text("{}")
    record = plain.measure()
    assert verdict(record) == "VALID" and plain.ledger.find(key).record == record
    assert any(text.startswith("warning:") and "damaged" in text for text in plain.told.words)


def test_server_killed_during_point_ends_deployment(deploy):
    # One completion makes it ready, one is the client's warm-up.
    plain = deploy(variables={"STANDIN_FAULT": "die_after:4", "STANDIN_TOKEN_S": "0.02"})
    plain.up()
    begin = time.monotonic()
    first = plain.measure(1)
    assert time.monotonic() - begin < 60
    assert_no_figure(plain, first)
    assert "server_died" in reasons(first) and first.failure.reason == "server_died"
    assert f"server (pid {plain.pid()})" in first.failure.detail and "SIGKILL" in first.failure.detail
    assert first.failure.log == str(plain.attempt / "server.log") and first.failure.remedy
    second = plain.measure(2)
    assert_no_figure(plain, second)
    assert second.failure == first.failure and second.load.requests == 4
    assert plain.raw(2).read_text() == "{}\n"
    assert any("chat-c4-r2" in text and "chat-c4-r1" in text for text in plain.told.words)
    assert_all_gone(plain)
    stopped = plain.stop()
    assert stopped.failure == first.failure
    server = next(daemon for daemon in stopped.daemons if daemon.name == "server")
    assert (server.signal, server.why) == (signal.SIGKILL, "exited")
    assert final_check.reason_codes(second) == {"server_died"}


def test_hanging_server_is_detected_and_ended(deploy, tmp_path):
    fault = tmp_path / "fault"
    plain = deploy(
        variables={"STANDIN_FAULT_FILE": str(fault)},
        timeouts=Timeouts(start=90.0, stall=60.0, point=90.0, no_progress=1.0, stop=1.0),
    )
    plain.up()
    fault.write_text("hang")
    begin = time.monotonic()
    record = plain.measure()
    assert time.monotonic() - begin < 60
    assert_no_figure(plain, record)
    assert "server_hung" in reasons(record)
    assert (record.failure.reason, record.client_exit_code) == ("server_hung", None)
    assert "/metrics" in record.failure.detail and "timeouts.no_progress" in record.failure.remedy
    assert_all_gone(plain)


def test_failed_requests_make_point_invalid_and_server_stays(deploy, tmp_path):
    expected = {
        "fail_requests:2": {"requests_failed"},
        "cut_streams:2": {"requests_failed"},
        "zero_tokens": {"no_output", "requests_failed"},
        "short_tokens": {"output_tokens_short"},
    }
    fault = tmp_path / "fault"
    plain = deploy(points=len(expected) + 1, variables={"STANDIN_FAULT_FILE": str(fault)})
    plain.up()
    for number, (text, codes) in enumerate(expected.items()):
        fault.write_text(text)
        record = plain.measure(number + 1)
        assert_no_figure(plain, record)
        assert reasons(record) & codes and record.failure is None, text
        assert plain.raw(number + 1).stat().st_size > 100, "the client's results are kept as evidence"
    fault.write_text("none")
    assert verdict(plain.measure(len(expected) + 1)) == "VALID"
    assert (plain.stop().failure, plain.left) == (None, [])


def test_client_faults_make_point_invalid_and_server_stays(deploy, tmp_path, monkeypatch):
    expected = {
        "exit_1": {"client_failed", "raw_missing"},
        "no_file": {"raw_missing"},
        "truncated_json": {"raw_truncated"},
        "nan": {"non_finite"},
        "hang": {"client_timeout", "raw_missing"},
    }
    fault = tmp_path / "client-fault"
    monkeypatch.setenv("STANDIN_CLIENT_FAULT_FILE", str(fault))
    plain = deploy(
        points=len(expected) + 1,
        timeouts=Timeouts(start=90.0, stall=60.0, point=1.0, no_progress=60.0, stop=1.0),
    )
    plain.up()
    for number, (text, codes) in enumerate(expected.items()):
        fault.write_text(text)
        plain.timeouts = plain.timeouts.model_copy(update={"point": 1.0 if text == "hang" else 90.0})
        record = plain.measure(number + 1)
        assert_no_figure(plain, record)
        assert reasons(record) == codes and record.failure is None, text
        if codes & {"raw_missing"}:
            assert plain.raw(number + 1).read_text() == "{}\n"
    fault.unlink()
    plain.timeouts = plain.timeouts.model_copy(update={"point": 90.0})
    assert verdict(plain.measure(len(expected) + 1)) == "VALID"


def test_server_dead_between_points_is_not_measured(deploy, wait_for):
    plain = deploy()
    plain.up()
    assert verdict(plain.measure(1)) == "VALID"
    os.kill(plain.pid(), signal.SIGKILL)
    wait_for(lambda: supervisor.read_state(plain.attempt).state == "ended")
    record = plain.measure(2)
    assert_no_figure(plain, record)
    assert reasons(record) == {"server_died"} and record.client_argv == ()
    assert "server (pid" in record.failure.detail and "SIGKILL" in record.failure.detail
    assert_all_gone(plain)
    assert plain.stop().failure == record.failure


def test_lost_point_leaves_ledger_file_unchanged(deploy):
    plain = deploy(points=1)
    plain.up()
    good = plain.measure()
    plain.stop()
    # The same point in another experiment whose deployment fails: its empty results replace the file.
    other = plain.plan.points[0].model_copy(update={"key": "0" * 64})
    plain.plan = plain.plan.model_copy(update={"points": (other,)})
    assert plain.measure().verdict == "INVALID" and plain.raw().read_text() == "{}\n"
    assert plain.ledger.find(good.key).record == good


def test_replay_with_missing_point_is_invalid(deploy):
    plain = deploy(points=1)
    Ready(deployment="plain", replay=True).write(plain.live_records[2])
    record = plain.measure()
    assert_no_figure(plain, record)
    assert reasons(record) == {"deployment_gone"} and record.attempt is None


def test_point_beyond_time_limit_is_not_begun(deploy):
    plain = deploy()
    ready = plain.up()
    assert verdict(plain.measure(1)) == "VALID"
    (took,) = map(float, (plain.attempt / "durations").read_text().split())
    margin = supervisor.read_spec(plain.attempt).end_margin_s
    assert 0 < took < 90 and margin == plain.timeouts.stop + attempts.END_MARGIN_S
    (plain.attempt / "durations").write_text("1.0\n100.0\n")

    def ends_in(seconds: float) -> None:
        ends_at = datetime.fromtimestamp(time.time() + margin + seconds, UTC).isoformat()
        ready.model_copy(update={"ends_at": ends_at}).write(plain.live_records[2])

    ends_in(125)
    plain.plan = plain.plan.model_copy(update={"points": (plain.plan.points[1], plain.plan.points[1])})
    assert verdict(plain.measure(1)) == "VALID", "the longest point so far and a tenth"
    other = plain.plan.points[0].model_copy(update={"key": "0" * 64})
    plain.plan = plain.plan.model_copy(update={"points": (other,)})
    ends_in(105)
    record = plain.measure(1)
    assert_no_figure(plain, record)
    assert reasons(record) == {"out_of_time"} and record.client_argv == ()
    assert "110 s" in record.failure.detail
    assert record.failure.remedy == MORE_TIME
    assert_all_gone(plain)
    assert plain.stop().failure == record.failure


@pytest.mark.parametrize(("how", "reason"), [("asked", "stop_requested"), ("later owner", "taken_over")])
def test_next_point_reports_deployment_ended_from_outside(deploy, wait_for, how, reason):
    plain = deploy(points=1)
    plain.up()
    if how == "asked":
        (plain.attempt / "stop").touch()
    else:
        (plain.folder / ownership.FILE).write_text("job 7, start 2\n")
    wait_for(lambda: supervisor.read_state(plain.attempt).state == "ended")
    if how == "later owner":
        with pytest.raises(ownership.TakenOver):
            plain.measure()
        ownership.take(plain.folder)
    record = plain.measure()
    assert_no_figure(plain, record)
    assert reasons(record) == {reason} and record.failure.log == str(plain.attempt / "supervisor.json")
    assert plain.stop().failure == record.failure


def test_client_with_its_own_node_starts_through_the_launcher(deploy, slurm, short_path):
    scratch = short_path / "scratch"
    scratch.mkdir(mode=0o700)
    site = Site.model_construct(scheduler="slurm", interface="lo", scratch=str(scratch))
    plain = deploy(points=1, topology=Topology(client="own"), site=site)
    ready = plain.up()
    assert ready.failure is None, ready.failure
    assert ready.client_node == "node2" and datetime.fromisoformat(ready.ends_at).timestamp() > time.time()
    record = plain.measure()
    assert (verdict(record), record.client_node, record.client_exit_code) == ("VALID", "node2", 0)
    (call,) = [call for call in slurm.calls("srun") if "client-chat-c4-r1.json" in call]
    assert "--nodelist=node2 " in call
    (started,) = [call for call in slurm.calls("srun") if "client-server.json" in call]
    assert "--nodelist=node2 " in started
    request = (plain.attempt / "requests" / "client-server.json").read_text()
    assert "OPENAI_API_KEY" in request
    key = (plain.attempt / "api-key").read_text()
    assert key not in request and key not in " ".join(slurm.calls("srun"))
    plain.stop()
    assert_all_gone(plain)
