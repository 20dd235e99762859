"""The supervisor ends everything that it started, and records why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders.supervised import assert_all_dead, daemon, wait_for
from servemark import supervisor
from servemark.processes import identity as processes
from servemark.processes.identity import Identity
from servemark.supervisor import SupervisorSpec, SupervisorState, ownership
from servemark.supervisor.__main__ import Supervisor
from servemark.supervisor.process_request import DaemonRequest
from snakemake_executor_plugin_slurm_guarded.records import Checkout

pytestmark = pytest.mark.live


def test_stop_ends_detached_children_and_removes_keys(attempts, tmp_path):
    attempt = attempts()
    daemon(attempt)
    (attempt / "api-key").write_text("key")
    state = supervisor.stop(attempt, 60)
    assert (state.state, state.why) == ("ended", "stop_requested")
    assert len(state.leftovers) == 1, "the detached child that ignores TERM is named"
    assert_all_dead(attempt)
    assert (tmp_path / "a-ready.json").exists(), "the run goes on, and its later stages read the live record"
    assert not (attempt / "api-key").exists()
    assert not (tmp_path / "a-scratch").exists()
    (ended,) = supervisor.read_daemons(attempt)
    assert (ended.why, ended.signal) == ("stop_requested", signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_end_of_owner_process_ends_all_and_removes_keys(attempts, master, number, tmp_path):
    attempt = attempts()
    (attempt / "api-key").write_text("key")
    daemon(attempt, "deaf")
    master.send_signal(number)
    master.wait()
    wait_for(lambda: supervisor.read_state(attempt).state == "ended")
    assert supervisor.read_state(attempt).why == "lifeline_ended"
    assert not (tmp_path / "a-ready.json").exists()
    assert_all_dead(attempt)
    assert not (tmp_path / "a-ready.json").exists() and not (attempt / "api-key").exists()


def test_daemon_that_dies_ends_siblings_and_is_named(attempts, tmp_path):
    attempt = attempts()
    daemon(attempt, name="ray-head")
    server = daemon(attempt, name="server")
    os.kill(server.pid, signal.SIGKILL)
    wait_for(lambda: supervisor.read_state(attempt).state == "ended")
    assert supervisor.read_state(attempt).why == "daemon_ended:server"
    states = {d.name: d for d in supervisor.read_daemons(attempt)}
    assert states["server"].signal == signal.SIGKILL
    assert states["ray-head"].why == "sibling_ended"
    assert (tmp_path / "a-ready.json").exists(), "the run goes on, and its later stages read the live record"
    assert_all_dead(attempt)


def test_request_that_cannot_be_read_ends_all(attempts):
    attempt = attempts()
    daemon(attempt)
    (attempt / "requests" / "broken.json").write_text("{}")
    wait_for(lambda: supervisor.read_state(attempt).state == "ended")
    assert supervisor.read_state(attempt).why == "supervisor_failed"
    assert_all_dead(attempt)
    assert "ValidationError" in (attempt / supervisor.LOG).read_text()


# A supervisor with a defect that shows at each look at the shared memory, also at the last one.
DEFECT = """
import sys
from pathlib import Path
from servemark.supervisor import __main__ as supervisor

def look(*_, **__):
    raise RuntimeError("a defect")

supervisor.Segments.look = look
supervisor.Supervisor(Path(sys.argv[1])).run()
"""


def test_defect_at_the_last_look_at_shared_memory_still_ends_all(tmp_path):
    attempt, scratch = tmp_path / "attempts" / "001", tmp_path / "scratch"
    attempt.mkdir(parents=True)
    scratch.mkdir()
    spec = SupervisorSpec(deployment="x", lifeline=str(processes.myself()), machine_lock=None, tokens=(), scratch=str(scratch))
    (attempt / "supervisor-spec.json").write_text(spec.model_dump_json())
    done = subprocess.run([sys.executable, "-c", DEFECT, attempt], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "a defect" in done.stderr
    state = supervisor.read_state(attempt)
    assert (state.state, state.why) == ("ended", "supervisor_failed") and not scratch.exists()


def test_missing_command_is_never_started(attempts):
    attempt = attempts()
    log = attempt / "server.log"
    state = supervisor.request(attempt, DaemonRequest(name="server", argv=("/no/such/program",), env={}, log=str(log)))
    assert (state.why, state.exit_code) == ("never_started", 127)
    assert "/no/such/program" in log.read_text()


def test_two_deployments_never_have_the_machine_lock_at_once(attempts):
    first = attempts("first")
    second = attempts("second")
    wait_for(lambda: supervisor.read_state(first).state == "running" or supervisor.read_state(second).state == "running")
    holder, waiter = (first, second) if supervisor.read_state(first).state == "running" else (second, first)
    wait_for(lambda: supervisor.read_state(waiter).state == "waiting")
    assert f"deployment {holder.name}" in supervisor.read_state(waiter).waiting_for
    supervisor.stop(holder, 60)
    wait_for(lambda: supervisor.read_state(waiter).state == "running")


def test_a_waiting_supervisor_can_be_stopped(attempts):
    first = attempts("first")
    wait_for(lambda: supervisor.read_state(first).state == "running")
    second = attempts("second")
    assert supervisor.stop(second, 60).why == "stop_requested"
    assert supervisor.is_alive(first)


def test_secrets_come_from_a_file_and_are_in_no_record(attempts, tmp_path):
    secret = tmp_path / "key"
    secret.write_text("s3cr3t-value\n")
    attempt = attempts()
    state = daemon(attempt, secret=secret)
    assert "s3cr3t-value" in Path(state.log).read_text(), "the daemon got it"
    written = [p.read_text() for p in attempt.rglob("*.json")]
    assert written and not any("s3cr3t" in text for text in written)


def test_daemons_die_with_killed_supervisor_and_rest_is_found(attempts):
    attempt = attempts()
    state = daemon(attempt)
    Identity.parse(supervisor.read_state(attempt).identity).signal(signal.SIGKILL)
    wait_for(lambda: Identity.of(state.pid) is None)
    (orphan,) = processes.marked(attempt)
    orphan.kill()
    assert not supervisor.is_alive(attempt)


def test_request_to_dead_supervisor_names_its_log(attempts):
    attempt = attempts()
    supervisor.stop(attempt, 60)
    with pytest.raises(TimeoutError, match=r"supervisor\.log"):
        supervisor.request(attempt, DaemonRequest(name="late", argv=("true",), env={}, log=str(attempt / "late.log")))


def test_killed_stage_ends_deployment(tmp_path, master, attempts):
    folder = tmp_path / "deployment" / "attempts"
    folder.mkdir(parents=True)
    attempt = attempts("deployment/attempts/001")
    script = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    supervisor.worker_file(tmp_path / "deployment").write_text(str(Identity.of(script.pid)))
    daemon(attempt)
    assert supervisor.is_alive(attempt)
    script.kill()
    script.wait()
    wait_for(lambda: supervisor.read_state(attempt).state == "ended")
    assert supervisor.read_state(attempt).why == "stage_killed"
    assert_all_dead(attempt)


@pytest.fixture
def deployment(tmp_path):
    """A deployment's folder, with a folder for attempts."""
    folder = tmp_path / "deployment"
    (folder / "attempts").mkdir(parents=True)
    return folder


def test_time_limit_ends_everything_before_slurm_does(attempts):
    attempt = attempts(ends_at=time.time() + 38.0, end_margin_s=30.0)  # later than the daemon's start on a busy machine
    daemon(attempt)
    wait_for(lambda: supervisor.read_state(attempt).state == "ended")
    assert supervisor.read_state(attempt).why == "out_of_time"
    (ended,) = supervisor.read_daemons(attempt)
    assert ended.why == "out_of_time"
    assert_all_dead(attempt)


def test_superseded_supervisor_ends(attempts, deployment):
    ownership.write_atomically(deployment / ownership.FILE, "job 7\n")
    attempt = attempts("deployment/attempts/001", owner="job 7")
    daemon(attempt)
    assert supervisor.is_alive(attempt) and supervisor.read_state(attempt).owner == "job 7"
    ownership.write_atomically(deployment / ownership.FILE, "job 7, start 2\n")
    wait_for(lambda: supervisor.read_state(attempt).state == "ended")
    assert supervisor.read_state(attempt).why == "taken_over"
    assert_all_dead(attempt)
    assert (deployment / ownership.FILE).read_text() == "job 7, start 2\n", "the newer owner's file stays"


def test_an_error_of_the_shared_disk_is_no_reason_to_end(tmp_path, monkeypatch):
    attempt = tmp_path / "attempts" / "001"
    attempt.mkdir(parents=True)
    spec = SupervisorSpec(
        deployment="x",
        lifeline=str(processes.myself()),
        machine_lock=None,
        tokens=(),
        scratch="/tmp/abc",
        owner="job 7",
    )
    (attempt / "supervisor-spec.json").write_text(spec.model_dump_json())
    kept = Supervisor(attempt)
    assert kept._reason_to_end() is None

    def broken(*_, **__):
        raise OSError(108, "Cannot send after transport endpoint shutdown")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", broken)
        patched.setattr(ownership, "owner", broken)
        kept._read_owner_at = 0.0
        assert kept._reason_to_end() is None
    (attempt / "stop").touch()
    assert kept._reason_to_end() == "stop_requested"


def test_deployment_without_an_owner_is_not_superseded(attempts, deployment):
    attempt = attempts("deployment/attempts/001", owner="job 7")
    time.sleep(1.2)  # it reads the owner once a second
    assert supervisor.is_alive(attempt)


def test_supervisors_in_jobs_need_no_machine_lock(attempts):
    first, second = attempts("first", machine_lock=None), attempts("second", machine_lock=None)
    wait_for(lambda: supervisor.read_state(first).state == supervisor.read_state(second).state == "running")


def test_attempt_with_earlier_file_names_can_be_stopped(attempts):
    attempt = attempts()
    wait_for(lambda: supervisor.read_state(attempt).state == "running")
    for name, earlier in supervisor.EARLIER_NAMES.items():
        assert supervisor.own_file(attempt, name) == attempt / name
        (attempt / name).rename(attempt / earlier)
        assert supervisor.own_file(attempt, name) == attempt / earlier
    assert supervisor.is_alive(attempt) and supervisor.read_spec(attempt).deployment == "a"
    assert supervisor.stop(attempt, 60).why == "stop_requested"


def test_supervisor_of_another_checkout_stays_alive(tmp_path, monkeypatch):
    own, copy, attempt = (tmp_path / name for name in ("own", "copy", "attempt"))
    for folder in (own, copy, attempt):
        folder.mkdir()
    me = str(processes.myself())
    spec = SupervisorSpec(deployment="x", lifeline=me, machine_lock=None, tokens=(), scratch="/tmp/abc", checkout=Checkout.of(own))
    state = SupervisorState(state="running", identity=me, deployment="x")
    (attempt / "supervisor-spec.json").write_text(spec.model_dump_json())
    (attempt / "supervisor.json").write_text(state.model_dump_json())
    signalled = []
    monkeypatch.setattr(Identity, "signal", lambda self, number: signalled.append(number))
    monkeypatch.chdir(copy)
    assert supervisor.stop(attempt, 30) == state
    supervisor.ask_to_end(attempt)
    assert not (attempt / "stop").exists()

    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "touch", refuse)
    supervisor.ask_to_end(attempt)
    assert signalled == []
    monkeypatch.chdir(own)
    supervisor.ask_to_end(attempt)
    assert signalled == [signal.SIGTERM]
