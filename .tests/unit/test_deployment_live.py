"""A deployment's whole life with real processes: keeper, stand-in server and client. Whatever happens, no figure of a
faulty point is published and no process is left."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest
from conftest import Deployment

from servemark import keeper, launch, processes
from servemark.config.model import Timeouts
from servemark.deployment import attempts, cluster
from servemark.deployment import stop as stop_module
from servemark.errors import ServemarkError
from servemark.measurement import quarantine
from servemark.measurement.ledger import file_sha256
from servemark.records import Measurement, Ready

FIGURES = (
    "duration_s",
    "request_throughput",
    "output_throughput",
    "total_throughput",
    "ttft_ms",
    "tpot_ms",
    "itl_ms",
    "e2el_ms",
)


def reasons(record: Measurement) -> set[str]:
    return {reason.code for reason in record.reasons}


def assert_no_figure(deployment: Deployment, record: Measurement) -> None:
    assert record.verdict == "INVALID"
    assert [name for name in FIGURES if getattr(record, name) is not None] == []
    assert deployment.ledger.find(record.key) is None


def assert_all_gone(deployment: Deployment) -> None:
    deadline = time.monotonic() + 2  # a keeper says its last word a moment before it is gone itself
    while deployment.left and time.monotonic() < deadline:
        time.sleep(0.02)
    assert deployment.left == []
    state = keeper.read_state(deployment.attempt)
    assert state.state == "ended"
    assert not Path(
        keeper.KeeperSpec.model_validate_json((deployment.attempt / "keeper-spec.json").read_text()).scratch
    ).exists()


def kill_keeper(deployment: Deployment) -> None:
    identity = processes.Identity.parse(keeper.read_state(deployment.attempt).identity)
    identity.signal(signal.SIGKILL)
    assert processes.wait_for_end(identity, 5)


def test_a_deployment_is_started_measured_stopped_and_then_only_replayed(deploy):
    plain = deploy()
    token = plain.start()
    assert (token.replay, token.failure, token.ray_address, token.nodes) == (False, None, None, ())
    assert token.attempt == str(plain.folder / "attempts" / "001")
    endpoint = plain.serve(token)
    key = Path(endpoint.key_file)
    assert key.stat().st_mode & 0o777 == 0o600 and key.read_text() not in " ".join(endpoint.argv)
    assert int(endpoint.url.rpartition(":")[2]) in launch.PORTS
    ready, startup = plain.wait(token, endpoint)
    assert (ready.failure, ready.url, ready.served_name) == (None, endpoint.url, "tiny")
    assert 0 < startup.seconds_to_health <= startup.seconds_to_first_token < 20
    assert startup.observed["kv_cache_tokens"] == 65536 and startup.phases
    assert httpx.get(f"{ready.url}/v1/models").status_code == 401, "nobody is served without the key"

    first = plain.measure(1)
    assert (first.verdict, first.reasons, first.completed, first.failed) == ("VALID", (), 4, 0)
    assert first.output_throughput > 0 and first.total_output_tokens == 20
    assert (Path(first.attempt).name, first.client_exit_code) == ("001", 0)
    assert file_sha256(plain.raw(1)) == first.raw_sha256 and first.raw == plain.raw(1).name
    assert [path.name for path in plain.raw(1).parent.iterdir()] == [first.raw], "no draft is left"
    assert plain.measure(2).verdict == "VALID"
    assert any("output tokens/s, median TTFT" in text for text in plain.told.words)

    stopped = plain.stop()
    assert (stopped.failure, Path(stopped.attempt).name, stopped.replay) == (None, "001", False)
    assert stopped.leftovers == ()
    (daemon,) = stopped.daemons
    assert (daemon.name, daemon.why) == ("server", "stop_requested")
    assert not key.exists(), "its secrets end with it"
    assert_all_gone(plain)

    plain.raw(1).unlink()
    begin = time.monotonic()
    replayed = plain.measure(1)
    assert time.monotonic() - begin < 1
    assert replayed == first and file_sha256(plain.raw(1)) == first.raw_sha256
    token = plain.start()
    assert token.replay and token.attempt is None
    endpoint = plain.serve(token)
    again, kept = plain.wait(token, endpoint)
    assert endpoint.replay and again.replay and kept == startup
    assert plain.measure(2).verdict == "VALID"
    assert plain.stop().daemons == stopped.daemons
    assert len(attempts.every(plain.folder)) == 1, "nothing was started"
    assert "all 2 points are in the ledger: nothing is started" in plain.told.words


def test_a_stored_measurement_is_judged_by_todays_thresholds(deploy):
    plain = deploy(points=1)
    plain.up()
    assert plain.measure().verdict == "VALID"
    plain.stop()
    plain.verdict = plain.verdict.model_copy(update={"min_requests_per_slot": 1000.0})
    record = plain.measure()
    assert (record.verdict, reasons(record)) == ("SUSPECT", {"few_requests_per_slot"})


def test_a_suspect_measurement_is_kept_and_marked(deploy):
    plain = deploy(points=1)
    plain.verdict = plain.verdict.model_copy(update={"min_duration_s": 60.0})
    plain.up()
    record = plain.measure()
    assert (record.verdict, reasons(record)) == ("SUSPECT", {"too_short"})
    assert plain.ledger.find(record.key).record == record
    assert plain.told.words[-1].endswith("(SUSPECT: too_short)")


def test_a_damaged_entry_of_the_ledger_is_said_and_measured_again(deploy):
    plain = deploy(points=1)
    plain.up()
    key = plain.measure().key
    plain.ledger.find(key).raw.write_text("{}")
    record = plain.measure()
    assert record.verdict == "VALID" and plain.ledger.find(key).record == record
    assert any(text.startswith("warning: A stored measurement was damaged") for text in plain.told.words)


def test_a_server_that_is_killed_in_mid_measurement_ends_the_deployment_with_its_reason(deploy):
    # One completion makes it ready, one is the client's warm-up.
    plain = deploy(variables={"STANDIN_FAULT": "die_after:4", "STANDIN_TOKEN_S": "0.02"})
    ready = plain.up()
    begin = time.monotonic()
    first = plain.measure(1)
    assert time.monotonic() - begin < 12
    assert_no_figure(plain, first)
    assert "server_died" in reasons(first) and first.failure.reason == "server_died"
    assert f"server (pid {ready.server_pid}) was ended by signal 9" in first.failure.detail
    assert first.failure.log == str(plain.attempt / "server.log") and first.failure.remedy
    second = plain.measure(2)
    assert_no_figure(plain, second)
    assert second.failure == first.failure and second.asked in (0, 4)
    assert plain.raw(2).read_text() == "{}\n"
    assert any(
        text.startswith("chat-c4-r2: not measured: The server died during chat-c4-r1") for text in plain.told.words
    )
    assert_all_gone(plain)
    stopped = plain.stop()
    assert stopped.failure == first.failure
    assert (stopped.daemons[0].signal, stopped.daemons[0].why) == (signal.SIGKILL, "exited")
    assert quarantine.reason_codes(second) == {"server_died"}


def test_after_a_death_a_new_attempt_measures_what_is_lacking(deploy, tmp_path):
    fault = tmp_path / "fault"
    plain = deploy(variables={"STANDIN_FAULT_FILE": str(fault)})
    plain.up()
    good = plain.measure(1)
    fault.write_text("die_after:0")
    assert "server_died" in reasons(plain.measure(2))
    plain.stop()
    fault.write_text("none")
    plain.up()
    assert plain.attempt.name == "002"
    assert plain.measure(1) == good, "not measured twice"
    record = plain.measure(2)
    assert (record.verdict, Path(record.attempt).name) == ("VALID", "002")


def test_a_server_that_hangs_is_found_by_its_silence_and_ended(deploy, tmp_path):
    fault = tmp_path / "fault"
    plain = deploy(
        variables={"STANDIN_FAULT_FILE": str(fault)},
        timeouts=Timeouts(start=20.0, stall=20.0, point=60.0, no_progress=1.0, stop=1.0),
    )
    plain.up()
    fault.write_text("hang")
    begin = time.monotonic()
    record = plain.measure()
    assert time.monotonic() - begin < 15
    assert_no_figure(plain, record)
    assert "server_hung" in reasons(record)
    assert (record.failure.reason, record.client_exit_code) == ("server_hung", None)
    assert "did not answer /metrics" in record.failure.detail and "timeouts.no_progress" in record.failure.remedy
    assert_all_gone(plain)


def test_faults_of_single_requests_make_invalid_points_and_leave_the_server_to_the_next(deploy, tmp_path):
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
    assert plain.measure(len(expected) + 1).verdict == "VALID"
    assert (plain.stop().failure, plain.left) == (None, [])


def test_faults_of_the_client_make_invalid_points_and_leave_the_server_to_the_next(deploy, monkeypatch):
    expected = {
        "exit_1": {"client_failed", "raw_missing"},
        "no_file": {"raw_missing"},
        "truncated_json": {"raw_truncated"},
        "nan": {"non_finite"},
        "hang": {"client_timeout", "raw_missing"},
    }
    plain = deploy(
        points=len(expected) + 1,
        timeouts=Timeouts(start=20.0, stall=20.0, point=1.0, no_progress=10.0, stop=1.0),
    )
    plain.up()
    for number, (text, codes) in enumerate(expected.items()):
        monkeypatch.setenv("STANDIN_CLIENT_FAULT", text)
        plain.timeouts = plain.timeouts.model_copy(update={"point": 1.0 if text == "hang" else 20.0})
        record = plain.measure(number + 1)
        assert_no_figure(plain, record)
        assert reasons(record) == codes and record.failure is None, text
        if codes & {"raw_missing"}:
            assert plain.raw(number + 1).read_text() == "{}\n"
    monkeypatch.delenv("STANDIN_CLIENT_FAULT")
    plain.timeouts = plain.timeouts.model_copy(update={"point": 20.0})
    assert plain.measure(len(expected) + 1).verdict == "VALID"


@pytest.mark.parametrize(
    ("variables", "timeouts", "reason", "words", "quote"),
    [
        (
            {"STANDIN_FAULT": "exit_at_start"},
            {},
            "kv_cache_too_small",
            "exited with code 1",
            "No available memory for the cache blocks",
        ),
        (
            {"STANDIN_FAULT": "bad_option"},
            {},
            None,
            "exited with code 2",
            "unrecognized arguments: --standin-bad-option",
        ),
        ({"STANDIN_FAULT": "die_after:0"}, {}, "server_exited", "was ended by signal 9", ""),
        ({"STANDIN_FAULT": "wrong_name"}, {}, "foreign_server", "['standin-wrong-name'], not 'tiny'", ""),
        ({"STANDIN_FAULT": "slow_start:60"}, {"stall": 1.0}, None, "silent for 1 s", ""),
        ({"STANDIN_FAULT": "never_ready"}, {"start": 2.0}, None, "not ready after 2 s", ""),
    ],
    ids=["exits", "bad option", "dies at its first completion", "wrong name", "silent", "never ready"],
)
def test_a_server_that_does_not_come_up_is_a_failure_that_the_later_stages_pass_on(
    deploy, variables, timeouts, reason, words, quote
):
    plain = deploy(points=1, variables=variables)
    plain.timeouts = plain.timeouts.model_copy(update=timeouts)
    begin = time.monotonic()
    ready = plain.up()
    assert time.monotonic() - begin < 12
    assert ready.failure.stage == "await_ready" and ready.url is None
    assert reason in (None, ready.failure.reason) and words in ready.failure.detail
    assert quote in "\n".join(ready.failure.quote) and ready.failure.remedy
    assert_all_gone(plain)
    record = plain.measure()
    assert_no_figure(plain, record)
    assert record.failure == ready.failure and reasons(record) == {ready.failure.reason}
    assert plain.stop().failure == ready.failure


def test_a_port_that_is_taken_is_a_failure_before_anything_is_loaded(deploy):
    plain = deploy(points=1)
    with socket.create_server((cluster.ADDRESS, 0)) as holder:
        port = holder.getsockname()[1]
        endpoint = plain.serve(plain.start(), port=port)
    assert (endpoint.failure.stage, endpoint.failure.reason) == ("serve_model", "port_taken")
    assert "deployments.plain.port" in endpoint.failure.detail and f"sport = :{port}" in endpoint.failure.remedy
    assert_all_gone(plain)
    ready, startup = plain.wait(plain.start(), endpoint)
    assert ready.failure == startup.failure == endpoint.failure


def test_a_port_that_is_asked_for_is_used(deploy):
    plain = deploy(points=1)
    (port,) = launch.free_ports(cluster.ADDRESS, 1, start=4000)
    token = plain.start()
    endpoint = plain.serve(token, port=port)
    assert endpoint.url == f"http://{cluster.ADDRESS}:{port}"
    assert plain.wait(token, endpoint)[0].failure is None


def test_an_interpreter_that_is_not_there_never_starts(deploy, standin):
    plain = deploy(points=1, environment=standin.model_copy(update={"python": "/no/such/python"}))
    endpoint = plain.serve(plain.start())
    assert endpoint.failure.reason == "never_started" and "/no/such/python" in endpoint.failure.detail
    assert_all_gone(plain)


def test_a_failed_cluster_is_passed_on_and_nothing_is_started(deploy):
    plain = deploy(points=1)
    (Path(plain.manifest.path) / "config.json").write_text("{}")
    token = plain.start()
    assert (token.failure.stage, token.failure.reason) == ("start_cluster", "weights_changed")
    assert "truncated: config.json" in token.failure.detail
    endpoint = plain.serve(token)
    assert endpoint.failure == token.failure and endpoint.url is None
    ready, startup = plain.wait(token, endpoint)
    assert ready.failure == startup.failure == token.failure
    assert_all_gone(plain)
    assert plain.measure().failure == token.failure


def test_a_keeper_that_is_gone_when_the_server_shall_start_is_named(deploy):
    plain = deploy(points=1)
    token = plain.start()
    kill_keeper(plain)
    endpoint = plain.serve(token)
    assert (endpoint.failure.reason, endpoint.failure.log) == ("keeper_ended", str(plain.attempt / "keeper.log"))
    assert plain.left == []


def test_a_killed_keeper_is_a_dead_server_and_its_orphans_are_ended_by_the_next_start(deploy):
    plain = deploy(points=1)
    plain.up()
    kill_keeper(plain)
    record = plain.measure()
    assert_no_figure(plain, record)
    assert "server_died" in reasons(record)
    (engine,) = plain.left
    assert psutil.Process(int(engine.split()[0])).name() == "EngineCore"
    token = plain.start()
    assert token.failure is None and plain.attempt.name == "002"
    assert any(text.startswith("ending a process left by attempt 001") for text in plain.told.words)
    plain.stop()
    assert plain.left == []


def test_stopping_ends_what_a_killed_keeper_left(deploy, wait_for):
    plain = deploy(points=1)
    plain.up()
    kill_keeper(plain)
    wait_for(lambda: len(plain.left) == 1)
    (engine,) = plain.left
    stopped = plain.stop()
    assert engine in stopped.leftovers
    assert plain.left == []


def test_a_server_that_ignores_requests_to_end_is_killed_and_named(deploy):
    plain = deploy(points=1, variables={"STANDIN_FAULT": "ignore_term"})
    ready = plain.up()
    begin = time.monotonic()
    stopped = plain.stop()
    assert time.monotonic() - begin < 8
    assert any(text.startswith(f"{ready.server_pid} ") for text in stopped.leftovers)
    assert stopped.daemons[0].signal == signal.SIGKILL
    assert_all_gone(plain)


def test_an_earlier_attempt_that_still_runs_is_ended_before_the_next(deploy):
    plain = deploy(points=1)
    plain.up()
    old = plain.attempt
    token = plain.start()
    assert token.failure is None and plain.attempt.name == "002"
    assert "an earlier attempt (001) still runs: ending it" in plain.told.words
    assert keeper.read_state(old).state == "ended" and processes.marked(old) == []


def test_two_deployments_take_the_machine_one_after_the_other(deploy, wait_for):
    first, second = deploy(name="first", points=1), deploy(name="second", points=1)
    first.start()
    tokens = []
    thread = threading.Thread(target=lambda: tokens.append(second.start()))
    thread.start()
    wait_for(lambda: any("waiting for the machine, in use by deployment first" in text for text in second.told.words))
    assert keeper.read_state(second.attempt).state == "waiting" and not tokens
    first.stop()
    thread.join(20)
    assert tokens[0].failure is None and keeper.read_state(second.attempt).state == "running"


def test_points_that_the_same_deployment_has_measured_meanwhile_are_not_measured_again(deploy, wait_for):
    first, second = deploy(name="first", points=1), deploy(name="second", points=1)
    assert first.plan.points[0].key == second.plan.points[0].key
    first.up()
    tokens = []
    thread = threading.Thread(target=lambda: tokens.append(second.start()))
    thread.start()
    wait_for(lambda: any("waiting for the machine" in text for text in second.told.words))
    record = first.measure()
    first.stop()
    thread.join(20)
    assert tokens[0].replay and attempts.every(second.folder) == []
    assert any("were measured meanwhile" in text for text in second.told.words)
    assert second.measure().output_throughput == record.output_throughput


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_keeper_that_ends_while_it_waits_for_the_machine_ends_the_wait(deploy, wait_for, end):
    first, second = deploy(name="first", points=1), deploy(name="second", points=1)
    first.start()
    tokens = []
    thread = threading.Thread(target=lambda: tokens.append(second.start()))
    thread.start()
    wait_for(lambda: attempts.latest(second.folder) and keeper.is_alive(second.attempt))
    keeper.stop(second.attempt, 10) if end == "stopped" else kill_keeper(second)
    thread.join(20)
    assert tokens[0].failure.reason == "keeper_ended"
    assert keeper.is_alive(first.attempt), "the other one is not disturbed"


def test_a_keeper_that_never_says_a_word_ends_the_wait(deploy, monkeypatch):
    plain = deploy(points=1)
    monkeypatch.setattr(cluster, "KEEPER_START_S", 0.2)
    monkeypatch.setattr(keeper, "launch", lambda attempt, spec: None)
    token = plain.start()
    assert token.failure.reason == "keeper_ended" and "it left no word" in token.failure.detail


def test_another_checkouts_processes_are_left_alone(deploy, tmp_path, monkeypatch, wait_for):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    relative = Path("results/demo")
    for checkout in (here, elsewhere):
        (checkout / relative).mkdir(parents=True)
    monkeypatch.chdir(here)
    plain = deploy(root=relative, points=1)
    attempts.new(plain.folder)
    theirs = elsewhere / attempts.latest(plain.folder)
    stranger = subprocess.Popen(["sleep", "300"], env={**os.environ, **processes.mark(theirs)})
    try:
        wait_for(lambda: [p.pid for p in processes.marked(theirs)] == [stranger.pid])
        plain.start()
        plain.stop()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_server_that_dies_between_two_points_is_not_asked_for_the_next(deploy, wait_for):
    plain = deploy()
    ready = plain.up()
    assert plain.measure(1).verdict == "VALID"
    os.kill(ready.server_pid, signal.SIGKILL)
    wait_for(lambda: keeper.read_state(plain.attempt).state == "ended")
    record = plain.measure(2)
    assert_no_figure(plain, record)
    assert reasons(record) == {"server_died"} and record.client_argv == ()
    assert "between two load points: server (pid" in record.failure.detail and "signal 9" in record.failure.detail
    assert_all_gone(plain)
    assert plain.stop().failure == record.failure


def test_a_point_that_is_lost_does_not_touch_what_the_ledger_keeps(deploy):
    plain = deploy(points=1)
    plain.up()
    good = plain.measure()
    plain.stop()
    # The same point of another experiment, whose deployment fails: its results take the same place.
    other = plain.plan.points[0].model_copy(update={"key": "0" * 64})
    plain.plan = plain.plan.model_copy(update={"points": (other,)})
    assert plain.measure().verdict == "INVALID" and plain.raw().read_text() == "{}\n"
    assert plain.ledger.find(good.key).record == good


def test_a_replay_that_lacks_a_point_after_all_is_no_live_deployment(deploy):
    plain = deploy(points=1)
    Ready(deployment="plain", replay=True).write(plain.tokens[2])
    record = plain.measure()
    assert_no_figure(plain, record)
    assert reasons(record) == {"deployment_gone"} and record.attempt is None


def test_a_process_that_cannot_be_ended_is_an_error_that_names_it(deploy, monkeypatch):
    plain = deploy(points=1)
    plain.start()
    stuck = subprocess.Popen(["sleep", "300"], env={**os.environ, **processes.mark(plain.attempt)})
    ticks = itertools.count()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(processes, "signal_all", lambda found, number: None)
            patch.setattr(stop_module, "time", SimpleNamespace(monotonic=lambda: next(ticks), sleep=lambda _: None))
            with pytest.raises(ServemarkError, match=f"cannot be ended: {stuck.pid} sleep 300") as failed:
                plain.stop()
        assert failed.value.reason == "cannot_stop"
    finally:
        stuck.kill()
        stuck.wait()


def test_stopping_what_was_never_started_is_a_replay(deploy):
    stopped = deploy(points=1).stop()
    assert (stopped.replay, stopped.attempt, stopped.daemons) == (True, None, ())


def test_a_run_that_is_killed_takes_the_deployment_along(deploy, monkeypatch, wait_for):
    master = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    monkeypatch.setenv(processes.LIFELINE_VARIABLE, str(processes.Identity.of(master.pid)))
    plain = deploy(points=1)
    plain.up()
    master.kill()
    master.wait()
    wait_for(lambda: keeper.read_state(plain.attempt).state == "ended", 10)
    assert_all_gone(plain)
    assert not any(token.exists() for token in plain.tokens), "no token outlives what it stands for"
