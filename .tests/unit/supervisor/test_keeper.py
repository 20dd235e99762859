"""The keeper ends everything it started, whatever ends the run, and says why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from servemark import supervisor
from servemark.processes import identity
from servemark.processes import identity as processes
from servemark.processes.identity import Identity
from servemark.supervisor import KeeperSpec, KeeperState, ownership
from servemark.supervisor.__main__ import Keeper
from servemark.supervisor.process_request import DaemonRequest
from snakemake_executor_plugin_slurm_guarded.records import Checkout

pytestmark = pytest.mark.live

# A daemon like vLLM's worst: a child that detached itself into a session of its own, and (by argument) deaf to TERM.
DAEMON = """
import os, signal, subprocess, sys, time
if 'deaf' in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = 'import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)'
child = subprocess.Popen([sys.executable, '-c', deaf], start_new_session=True)
print('child', child.pid, os.environ.get('SECRET'), os.environ.get('SERVEMARK_NODE'), flush=True)
time.sleep(300)
"""


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


@pytest.fixture
def master():
    """Stands for the Snakemake that runs the rule."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def attempts(tmp_path, master):
    started = []

    def start(name="a", lock="machine.lock", **more) -> Path:
        attempt = tmp_path / name
        token = tmp_path / f"{name}-ready.json"
        token.write_text("{}")
        scratch = tmp_path / f"{name}-scratch"
        scratch.mkdir()
        identity = Identity.of(master.pid)
        given = {"deployment": name, "lifeline": str(identity), "machine_lock": str(tmp_path / lock), "tokens": (str(token),),
                 "scratch": str(scratch), "stop_grace_s": 0.4, "orphan_grace_s": 0.4}  # fmt: skip
        spec = KeeperSpec(**(given | more))
        supervisor.launch(attempt, spec)
        wait_for(lambda: supervisor.read_state(attempt) is not None)
        started.append(attempt)
        return attempt

    yield start
    for attempt in started:
        (attempt / "stop").touch()
    for attempt in started:
        wait_for(lambda attempt=attempt: not Identity.parse(supervisor.read_state(attempt).identity).alive)
        for left in processes.marked(attempt):
            left.kill()


def daemon(attempt: Path, *arguments: str, name="server", secret: Path | None = None, **more):
    request = DaemonRequest(name=name, argv=(sys.executable, "-c", DAEMON, *arguments), env={}, log=str(attempt / f"{name}.log"),
                            secret_env={"SECRET": str(secret)} if secret else {}, **more)  # fmt: skip
    state = supervisor.request(attempt, request)
    wait_for(lambda: "child" in Path(state.log).read_text())
    return state


def assert_all_dead(attempt: Path):
    # The keeper says its last word a moment before it is gone itself.
    wait_for(lambda: not Identity.parse(supervisor.read_state(attempt).identity).alive, 2)
    assert [processes.describe(p) for p in processes.marked(attempt)] == []


def test_stop_ends_the_tree_with_detached_children_and_removes_the_keys(attempts, tmp_path):
    attempt = attempts()
    daemon(attempt)
    (attempt / "api-key").write_text("key")
    state = supervisor.stop(attempt, 10)
    assert (state.state, state.why) == ("ended", "stop_requested")
    assert len(state.leftovers) == 1, "the detached, deaf child is named"
    assert_all_dead(attempt)
    assert (tmp_path / "a-ready.json").exists(), "the run goes on, and its later stages read the token"
    assert not (attempt / "api-key").exists()
    assert not (tmp_path / "a-scratch").exists()
    (ended,) = supervisor.read_daemons(attempt)
    assert (ended.why, ended.signal) == ("stop_requested", signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_end_of_the_lifeline_ends_everything_and_removes_tokens_and_keys(attempts, master, number, tmp_path):
    attempt = attempts()
    (attempt / "api-key").write_text("key")
    daemon(attempt, "deaf")
    master.send_signal(number)
    master.wait()
    begin = time.monotonic()
    wait_for(lambda: supervisor.read_state(attempt).state == "ended", 8)
    assert time.monotonic() - begin < 6
    assert supervisor.read_state(attempt).why == "lifeline_ended"
    assert not (tmp_path / "a-ready.json").exists()
    assert_all_dead(attempt)
    assert not (tmp_path / "a-ready.json").exists() and not (attempt / "api-key").exists()


def test_a_daemon_that_ends_by_itself_ends_its_siblings_and_is_named(attempts, tmp_path):
    attempt = attempts()
    daemon(attempt, name="ray-head")
    server = daemon(attempt, name="server")
    os.kill(server.pid, signal.SIGKILL)
    wait_for(lambda: supervisor.read_state(attempt).state == "ended")
    assert supervisor.read_state(attempt).why == "daemon_ended:server"
    states = {d.name: d for d in supervisor.read_daemons(attempt)}
    assert states["server"].signal == signal.SIGKILL
    assert states["ray-head"].why == "sibling_ended"
    assert (tmp_path / "a-ready.json").exists(), "the run goes on, and its later stages read the token"
    assert_all_dead(attempt)


def test_a_command_that_does_not_exist_is_a_daemon_that_never_started(attempts):
    attempt = attempts()
    log = attempt / "server.log"
    state = supervisor.request(attempt, DaemonRequest(name="server", argv=("/no/such/program",), env={}, log=str(log)))
    assert (state.why, state.exit_code) == ("never_started", 127)
    assert "/no/such/program" in log.read_text()


def test_two_deployments_never_hold_the_machine_at_once(attempts):
    first = attempts("first")
    second = attempts("second")
    wait_for(lambda: supervisor.read_state(first).state == "running" or supervisor.read_state(second).state == "running")
    holder, waiter = (first, second) if supervisor.read_state(first).state == "running" else (second, first)
    wait_for(lambda: supervisor.read_state(waiter).state == "waiting")
    assert f"deployment {holder.name}" in supervisor.read_state(waiter).waiting_for
    supervisor.stop(holder, 10)
    wait_for(lambda: supervisor.read_state(waiter).state == "running")


def test_a_waiting_keeper_can_be_stopped(attempts):
    first = attempts("first")
    wait_for(lambda: supervisor.read_state(first).state == "running")
    second = attempts("second")
    assert supervisor.stop(second, 5).why == "stop_requested"
    assert supervisor.is_alive(first)


def test_secrets_come_from_a_file_and_are_in_no_record(attempts, tmp_path):
    secret = tmp_path / "key"
    secret.write_text("s3cr3t-value\n")
    attempt = attempts()
    state = daemon(attempt, secret=secret)
    assert "s3cr3t-value" in Path(state.log).read_text(), "the daemon got it"
    written = [p.read_text() for p in attempt.rglob("*.json")]
    assert written and not any("s3cr3t" in text for text in written)


def test_a_killed_keeper_takes_its_daemons_along_and_leaves_the_rest_findable(attempts):
    attempt = attempts()
    state = daemon(attempt)
    Identity.parse(supervisor.read_state(attempt).identity).signal(signal.SIGKILL)
    wait_for(lambda: Identity.of(state.pid) is None)
    (orphan,) = processes.marked(attempt)
    orphan.kill()
    assert not supervisor.is_alive(attempt)


def test_a_request_to_a_dead_keeper_fails_with_its_log_named(attempts):
    attempt = attempts()
    supervisor.stop(attempt, 10)
    with pytest.raises(TimeoutError, match=r"keeper\.log"):
        supervisor.request(attempt, DaemonRequest(name="late", argv=("true",), env={}, log=str(attempt / "late.log")))


def test_a_stage_that_was_killed_without_a_word_ends_the_deployment(tmp_path, master, attempts):
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
    """A deployment's folder, for what a keeper finds above its attempt."""
    folder = tmp_path / "deployment"
    (folder / "attempts").mkdir(parents=True)
    return folder


def test_the_end_of_the_allocations_time_ends_everything_before_it_is_over(attempts):
    attempt = attempts(ends_at=time.time() + 31.5, end_margin_s=30.0)
    daemon(attempt)
    wait_for(lambda: supervisor.read_state(attempt).state == "ended")
    assert supervisor.read_state(attempt).why == "out_of_time"
    (ended,) = supervisor.read_daemons(attempt)
    assert ended.why == "out_of_time"
    assert_all_dead(attempt)


def test_a_keeper_whose_deployment_was_taken_over_ends(attempts, deployment):
    ownership.write_atomically(deployment / ownership.FILE, "job 7\n")
    attempt = attempts("deployment/attempts/001", owner="job 7")
    daemon(attempt)
    assert supervisor.is_alive(attempt) and supervisor.read_state(attempt).owner == "job 7"
    ownership.write_atomically(deployment / ownership.FILE, "job 7, start 2\n")
    wait_for(lambda: supervisor.read_state(attempt).state == "ended")
    assert supervisor.read_state(attempt).why == "taken_over"
    assert_all_dead(attempt)
    assert (deployment / ownership.FILE).read_text() == "job 7, start 2\n", "the newer one's files are not touched"


def test_an_error_of_the_shared_disk_is_no_reason_to_end(tmp_path, monkeypatch):
    attempt = tmp_path / "attempts" / "001"
    attempt.mkdir(parents=True)
    spec = KeeperSpec(
        deployment="x",
        lifeline=str(processes.myself()),
        machine_lock=None,
        tokens=(),
        scratch="/tmp/abc",
        owner="job 7",
    )
    (attempt / "keeper-spec.json").write_text(spec.model_dump_json())
    kept = Keeper(attempt)
    assert kept._reason_to_end() is None

    def broken(*_, **__):
        raise OSError(108, "Cannot send after transport endpoint shutdown")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", broken)
        patched.setattr(ownership, "owner", broken)
        kept._look_at_owner = 0.0
        assert kept._reason_to_end() is None
    (attempt / "stop").touch()
    assert kept._reason_to_end() == "stop_requested"


def test_a_folder_without_an_owner_is_not_taken_over(attempts, deployment):
    attempt = attempts("deployment/attempts/001", owner="job 7")
    time.sleep(1.2)  # it looks once a second
    assert supervisor.is_alive(attempt)


def test_keepers_with_nodes_of_their_own_wait_for_no_machine(attempts):
    first, second = attempts("first", machine_lock=None), attempts("second", machine_lock=None)
    wait_for(lambda: supervisor.read_state(first).state == supervisor.read_state(second).state == "running")


def leashed(attempt: Path, *arguments: str, **more):
    """A daemon behind a launcher: like srun, a process of its own in front of what it runs."""
    launcher = ("sh", "-c", '"$@"; exit $?', "sh")
    return daemon(attempt, *arguments, launcher=launcher, node="node7", scratch=str(attempt / "s"), grace_s=0.3, **more)


def test_a_daemon_behind_a_launcher_is_ended_by_its_leash_with_its_tree(attempts, tmp_path):
    secret = tmp_path / "key"
    secret.write_text("s3cr3t-value\n")
    attempt = attempts(stop_grace_s=5.0)
    state = leashed(attempt, secret=secret)
    assert state.node == "node7"
    said = Path(state.log).read_text().split()
    assert said[2:] == ["s3cr3t-value", identity.here()], "secret and node are put there on the node"
    place = json.loads((attempt / "requests" / "server.place.json").read_text())
    assert place["host"] == processes.host() and place["pid"] != state.pid, "the daemon itself, behind remote.py"
    assert supervisor.stop(attempt, 10).why == "stop_requested"
    (ended,) = supervisor.read_daemons(attempt)
    assert (ended.why, ended.signal) == ("stop_requested", signal.SIGTERM)
    assert Identity.of(place["pid"]) is None and Identity.of(int(said[1])) is None
    assert_all_dead(attempt)


def test_a_far_end_that_uses_its_whole_grace_is_no_leftover(attempts):
    """servemark gives both the same grace: the far end kills its child when it is over, and only then can the launcher end."""
    attempt = attempts(stop_grace_s=2.0)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    launcher = ("sh", "-c", '"$@"; code=$?; sleep 2; exit $code', "sh")
    request = DaemonRequest(
        name="server", argv=(sys.executable, "-c", stubborn), env={}, log=str(attempt / "server.log"), launcher=launcher,
        node="node7", scratch=str(attempt / "s"), grace_s=2.0,
    )  # fmt: skip
    supervisor.request(attempt, request)
    wait_for(lambda: "deaf" in Path(request.log).read_text())
    assert supervisor.stop(attempt, 15).leftovers == ()
    assert_all_dead(attempt)


def test_a_daemon_behind_a_launcher_that_ends_by_itself_is_named_with_its_signal(attempts):
    attempt = attempts(stop_grace_s=5.0)
    leashed(attempt, name="ray-head")
    leashed(attempt, name="server")
    place = json.loads((attempt / "requests" / "server.place.json").read_text())
    os.kill(place["pid"], signal.SIGKILL)
    wait_for(lambda: supervisor.read_state(attempt).state == "ended")
    assert supervisor.read_state(attempt).why == "daemon_ended:server"
    states = {d.name: d for d in supervisor.read_daemons(attempt)}
    assert (states["server"].signal, states["server"].exit_code) == (signal.SIGKILL, None)
    assert states["ray-head"].why == "sibling_ended"
    assert_all_dead(attempt)


def test_what_is_behind_a_launcher_ends_with_a_killed_keeper(attempts):
    attempt = attempts()
    state = leashed(attempt, "deaf")
    place = json.loads((attempt / "requests" / "server.place.json").read_text())
    child = int(Path(state.log).read_text().split()[1])
    Identity.parse(supervisor.read_state(attempt).identity).signal(signal.SIGKILL)
    wait_for(lambda: Identity.of(place["pid"]) is None and Identity.of(child) is None)
    wait_for(lambda: processes.marked(attempt) == [])


# srun of Slurm 22.05.8 with slurmctld down; it ends with exit code 1 after 9 s.
AWAY = "srun: error: Unable to confirm allocation for job 1: Unable to contact slurm controller (connect failure)"


def behind(attempt: Path, launcher: tuple[str, ...]) -> DaemonRequest:
    """A daemon that is not wanted for itself."""
    log = str(attempt / "server.log")
    return DaemonRequest(name="server", argv=("true",), env={}, log=log, launcher=launcher, node="node7")


def test_a_launcher_that_finds_no_controller_is_started_again(attempts, tmp_path):
    attempt = attempts(stop_grace_s=5.0)
    tries = tmp_path / "tries"
    script = f"echo x >> {tries}; [ $(wc -l < {tries}) -lt 3 ] && {{ echo '{AWAY}' >&2; exit 1; }}; \"$@\"; exit $?"
    daemon(attempt, launcher=("sh", "-c", script, "sh"), node="node7", scratch=str(attempt / "s"), grace_s=0.3)
    assert tries.read_text().split() == ["x"] * 3
    (state,) = supervisor.read_daemons(attempt)
    assert state.ended_at is None and supervisor.is_alive(attempt)
    assert Identity.of(json.loads((attempt / "requests" / "server.place.json").read_text())["pid"])


@pytest.mark.parametrize(
    "words",
    [
        "srun: error: Unable to create step for job 1: Invalid job id specified",
        f"srun: Job 1 step creation still disabled\nconnection refused\n{AWAY.replace('srun: error: ', '')}",
    ],
)
def test_a_launcher_that_is_refused_is_not(attempts, tmp_path, words):
    attempt = attempts(stop_grace_s=5.0)
    launcher = ("sh", "-c", f"echo x >> {tmp_path}/tries; echo '{words}' >&2; exit 1", "sh")
    supervisor.request(attempt, behind(attempt, launcher))
    wait_for(lambda: supervisor.read_state(attempt).state == "ended")
    assert supervisor.read_state(attempt).why == "daemon_ended:server"
    assert (tmp_path / "tries").read_text().split() == ["x"]


def test_a_keeper_that_is_stopped_while_a_launcher_waits_says_that_it_never_started(attempts):
    attempt = attempts(stop_grace_s=5.0)
    supervisor.request(attempt, behind(attempt, ("sh", "-c", f"echo '{AWAY}' >&2; exit 1", "sh")))
    wait_for(lambda: AWAY in supervisor.launcher_log(attempt, "server").read_text())
    time.sleep(0.5)
    assert supervisor.stop(attempt, 10).why == "stop_requested"
    (state,) = supervisor.read_daemons(attempt)
    assert state.ended_at and state.why in ("never_started", "stop_requested")


def test_a_far_end_hears_its_keeper(attempts, tmp_path):
    """With a silence that is shorter than this test it would end, did the keeper not speak to it."""
    attempt = attempts(stop_grace_s=5.0)
    leashed(attempt, silence_s=7.0)
    time.sleep(9.0)
    assert supervisor.is_alive(attempt) and supervisor.read_daemons(attempt)[0].ended_at is None


def test_keeper_of_another_checkout_is_neither_asked_nor_signalled(tmp_path, monkeypatch):
    own, copy, attempt = (tmp_path / name for name in ("own", "copy", "attempt"))
    for folder in (own, copy, attempt):
        folder.mkdir()
    me = str(processes.myself())
    spec = KeeperSpec(deployment="x", lifeline=me, machine_lock=None, tokens=(), scratch="/tmp/abc", checkout=Checkout.of(own))
    state = KeeperState(state="running", identity=me, deployment="x")
    (attempt / "keeper-spec.json").write_text(spec.model_dump_json())
    (attempt / "keeper.json").write_text(state.model_dump_json())
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
