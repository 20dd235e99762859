"""Daemons that start through a launcher: they end with the heartbeat pipe, and are retried while slurmctld does not respond."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from builders.supervised import assert_all_dead, daemon, wait_for
from servemark import supervisor
from servemark.processes import identity
from servemark.processes import identity as processes
from servemark.processes.identity import Identity
from servemark.supervisor.process_request import DaemonRequest

pytestmark = pytest.mark.live


def launched(attempt: Path, *arguments: str, **more):
    """Start a daemon behind a launcher with its own process, like srun."""
    launcher = ("sh", "-c", '"$@"; exit $?', "sh")
    state = daemon(attempt, *arguments, launcher=launcher, node="node7", scratch=str(attempt / "s"), grace_s=0.3, **more)
    # The daemon may print before the remote agent writes where it runs.
    wait_for((attempt / "requests" / f"{state.name}.place.json").exists)
    return state


def test_end_of_heartbeat_pipe_ends_launched_daemon_and_tree(attempts, tmp_path):
    secret = tmp_path / "key"
    secret.write_text("s3cr3t-value\n")
    attempt = attempts(stop_grace_s=5.0)
    state = launched(attempt, secret=secret)
    assert state.node == "node7"
    said = Path(state.log).read_text().split()
    assert said[2:] == ["s3cr3t-value", identity.here()], "the remote agent sets secret and node"
    place = json.loads((attempt / "requests" / "server.place.json").read_text())
    assert place["host"] == processes.host() and place["pid"] != state.pid, "the daemon itself, behind remote.py"
    assert supervisor.stop(attempt, 60).why == "stop_requested"
    (ended,) = supervisor.read_daemons(attempt)
    assert (ended.why, ended.signal) == ("stop_requested", signal.SIGTERM)
    assert Identity.of(place["pid"]) is None and Identity.of(int(said[1])) is None
    assert_all_dead(attempt)


def test_remote_agent_that_uses_its_whole_grace_is_no_leftover(attempts):
    """Supervisor and remote agent have the same grace. The agent kills its child after it, and the launcher ends later."""
    attempt = attempts(stop_grace_s=2.0)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    launcher = ("sh", "-c", '"$@"; code=$?; sleep 2; exit $code', "sh")
    request = DaemonRequest(
        name="server", argv=(sys.executable, "-c", stubborn), env={}, log=str(attempt / "server.log"), launcher=launcher,
        node="node7", scratch=str(attempt / "s"), grace_s=2.0,
    )  # fmt: skip
    supervisor.request(attempt, request)
    wait_for(lambda: "deaf" in Path(request.log).read_text())
    assert supervisor.stop(attempt, 60).leftovers == ()
    assert_all_dead(attempt)


def test_launched_daemon_that_dies_is_named_with_its_signal(attempts):
    attempt = attempts(stop_grace_s=5.0)
    launched(attempt, name="ray-head")
    launched(attempt, name="server")
    place = json.loads((attempt / "requests" / "server.place.json").read_text())
    os.kill(place["pid"], signal.SIGKILL)
    wait_for(lambda: supervisor.read_state(attempt).state == "ended")
    assert supervisor.read_state(attempt).why == "daemon_ended:server"
    states = {d.name: d for d in supervisor.read_daemons(attempt)}
    assert (states["server"].signal, states["server"].exit_code) == (signal.SIGKILL, None)
    assert states["ray-head"].why == "sibling_ended"
    assert_all_dead(attempt)


def test_launched_process_ends_with_killed_supervisor(attempts):
    attempt = attempts()
    state = launched(attempt, "deaf")
    place = json.loads((attempt / "requests" / "server.place.json").read_text())
    child = int(Path(state.log).read_text().split()[1])
    Identity.parse(supervisor.read_state(attempt).identity).signal(signal.SIGKILL)
    wait_for(lambda: Identity.of(place["pid"]) is None and Identity.of(child) is None)
    wait_for(lambda: processes.marked(attempt) == [])


# srun of Slurm 22.05.8 with slurmctld down; it ends with exit code 1 after 9 s.
AWAY = "srun: error: Unable to confirm allocation for job 1: Unable to contact slurm controller (connect failure)"


def behind(attempt: Path, launcher: tuple[str, ...]) -> DaemonRequest:
    """Return a request for a trivial program behind a launcher."""
    log = str(attempt / "server.log")
    return DaemonRequest(name="server", argv=("true",), env={}, log=log, launcher=launcher, node="node7")


def test_launcher_without_slurmctld_is_started_again(attempts, tmp_path):
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
def test_refused_launcher_is_not_started_again(attempts, tmp_path, words):
    attempt = attempts(stop_grace_s=5.0)
    launcher = ("sh", "-c", f"echo x >> {tmp_path}/tries; echo '{words}' >&2; exit 1", "sh")
    supervisor.request(attempt, behind(attempt, launcher))
    wait_for(lambda: supervisor.read_state(attempt).state == "ended")
    assert supervisor.read_state(attempt).why == "daemon_ended:server"
    assert (tmp_path / "tries").read_text().split() == ["x"]


def test_daemon_waiting_for_slurm_is_never_started_after_stop(attempts):
    attempt = attempts(stop_grace_s=5.0)
    supervisor.request(attempt, behind(attempt, ("sh", "-c", f"echo '{AWAY}' >&2; exit 1", "sh")))
    log = supervisor.launcher_log(attempt, "server")
    wait_for(lambda: log.exists() and AWAY in log.read_text())
    time.sleep(0.5)
    assert supervisor.stop(attempt, 60).why == "stop_requested"
    (state,) = supervisor.read_daemons(attempt)
    assert state.ended_at and state.why in ("never_started", "stop_requested")


def test_remote_agent_receives_heartbeats(attempts, tmp_path):
    """Without heartbeats the remote agent would end after ``silence_s``, within this test."""
    attempt = attempts(stop_grace_s=5.0)
    launched(attempt, silence_s=7.0)
    time.sleep(9.0)
    assert supervisor.is_alive(attempt) and supervisor.read_daemons(attempt)[0].ended_at is None
