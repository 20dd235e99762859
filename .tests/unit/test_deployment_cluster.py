"""Ray is started under the keeper and believed only when it says itself that all nodes and devices are there.

The stand-in has no Ray, so these tests put one into a copy of it: a head that lives or dies, and a client that answers.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import site_packages

from servemark import keeper, processes
from servemark.config.model import Timeouts
from servemark.deployment import cluster
from servemark.environment import INSIDE
from servemark.records import Topology

TOPOLOGY = Topology(devices_per_node=2, tensor_parallel=2, executor="ray")
NODE = {
    "Alive": True,
    "NodeManagerHostname": "node01",
    "NodeManagerAddress": "127.0.0.1",
    "Resources": {"CPU": 2.0, "GPU": 2.0},
}
LIVES = "import time; print('Ray runtime started.', flush=True); time.sleep(300)"
DIES = "import sys; print('RuntimeError: the redis port is in use'); sys.exit(4)"


def put_ray(environment, head: str, nodes: str = "[]", connects: str = "") -> None:
    """A Ray whose head runs ``head``, whose nodes are ``nodes`` and whose clients connect after ``connects``."""
    package = site_packages(environment) / "ray"
    (package / "scripts").mkdir()
    (package / "scripts" / "__init__.py").touch()
    record = (
        "import json, os, sys\n"
        "seen = {'env': dict(os.environ), 'argv': sys.argv}\n"
        "json.dump(seen, open(os.environ['RAY_TMPDIR'] + '/seen.json', 'w'))\n"
    )
    (package / "scripts" / "scripts.py").write_text(record + head)
    (package / "__init__.py").write_text(
        f"__version__ = '0.0.0+standin'\nimport time\n_begin = time.monotonic()\n_up = []\n"
        f"def is_initialized(): return bool(_up)\n"
        f"def init(**options):\n    {connects or 'pass'}\n    _up.append(options)\n"
        f"def nodes(): return {nodes}\n"
    )


@pytest.fixture
def ray(deploy, standin_copy):
    """Makes a deployment over a Ray that is given as to :func:`put_ray`."""

    def make(*args, cluster_s=10.0, **given):
        put_ray(standin_copy, *args, **given)
        return deploy(
            environment=standin_copy,
            topology=TOPOLOGY,
            points=1,
            timeouts=Timeouts(cluster=cluster_s, start=20.0, stall=20.0, stop=1.0),
        )

    return make


def test_a_complete_cluster_is_recorded_with_its_nodes(ray):
    plain = ray(LIVES, nodes=f"[{NODE!r}]")
    token = plain.start()
    assert token.failure is None and token.seconds > 0
    assert token.nodes == (
        {
            "host": "node01",
            "address": "127.0.0.1",
            "devices": 2,
            "ray": "0.0.0+standin",
            "python": sys.version.split()[0],
        },
    )
    address, port = token.ray_address.split(":")
    assert address == cluster.ADDRESS
    (head,) = keeper.read_daemons(plain.attempt)
    assert head.name == "ray-head" and f"--port={port}" in head.argv and "--num-gpus=2" in head.argv

    scratch = next(word.removeprefix("--temp-dir=") for word in head.argv if word.startswith("--temp-dir="))
    seen = json.loads((Path(scratch) / "seen.json").read_text())
    secret = Path(seen["env"]["RAY_AUTH_TOKEN_PATH"])
    assert secret == (plain.attempt / "ray-token").absolute() and secret.stat().st_mode & 0o777 == 0o600
    assert seen["env"]["RAY_AUTH_MODE"] == "token" and seen["env"]["RAY_TMPDIR"] == scratch
    assert secret.read_text() not in json.dumps(seen), "the secret itself is in a file only"
    ports = {
        int(port),
        int(next(w for w in head.argv if "client-server" in w).split("=")[1]),
        int(seen["env"]["AUTOSCALER_METRIC_PORT"]),
    }
    assert len(ports) == 3

    endpoint = plain.serve(token)
    request = json.loads((plain.attempt / "requests" / "server.json").read_text())
    assert request["env"]["RAY_ADDRESS"] == token.ray_address
    assert request["env"]["RAY_AUTH_TOKEN_PATH"] == str(secret) and request["env"]["RAY_TMPDIR"] == scratch
    assert "--distributed-executor-backend" in endpoint.argv
    ready, startup = plain.wait(token, endpoint)
    assert ready.failure is None and startup.cluster_seconds == token.seconds
    stopped = plain.stop()
    assert {daemon.name: daemon.why for daemon in stopped.daemons} == {
        "ray-head": "stop_requested",
        "server": "stop_requested",
    }
    assert plain.left == [] and not secret.exists()


def test_a_cluster_that_is_late_is_waited_for(ray):
    plain = ray(LIVES, nodes=f"[{NODE!r}] if time.monotonic() - _begin > 1 else []")
    token = plain.start()
    assert token.failure is None and token.nodes[0]["devices"] == 2
    assert any(text.startswith("waiting for the Ray cluster (1 node, 2 devices)") for text in plain.told.words)


def test_a_head_that_ends_is_a_failure_at_once_with_its_last_words(ray):
    plain = ray(DIES, connects="raise ConnectionError('nobody there')", cluster_s=60.0)
    begin = time.monotonic()
    token = plain.start()
    assert time.monotonic() - begin < 10
    assert token.failure.stage == "start_cluster" and token.failure.log == str(plain.attempt / "ray-head.log")
    assert "Ray did not come up, ray-head (pid" in token.failure.detail and "exited with code 4" in token.failure.detail
    assert any("the redis port is in use" in line for line in token.failure.quote) and token.failure.remedy
    assert plain.left == []
    endpoint = plain.serve(token)
    assert endpoint.failure == token.failure, "no server without its cluster"


def test_an_environment_without_ray_fails_with_pythons_word(deploy):
    plain = deploy(topology=TOPOLOGY, points=1)
    token = plain.start()
    assert token.failure.stage == "start_cluster"
    assert any("ray.scripts" in line for line in token.failure.quote)
    assert plain.left == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nodes": "[]"}, "0 of 1 nodes, 0 of 2 devices"),
        ({"nodes": f"[{NODE | {'Resources': {'CPU': 2.0}}!r}]"}, "1 of 1 nodes, 0 of 2 devices"),
        ({"nodes": f"[{NODE | {'Alive': False}!r}]"}, "0 of 1 nodes, 0 of 2 devices"),
        ({"connects": "raise ConnectionError('no route\\nto it')"}, "cannot connect to 127.0.0.1:"),
    ],
)
def test_a_cluster_that_stays_incomplete_is_a_failure_that_says_what_was_there(ray, given, words):
    plain = ray(LIVES, cluster_s=1.0, **given)
    token = plain.start()
    assert token.failure.reason == "ray_incomplete"
    assert "The Ray cluster was not complete after" in token.failure.detail and words in token.failure.detail
    assert words in token.failure.quote[0] and "timeouts.cluster" in token.failure.remedy
    assert plain.left == []


def test_a_gate_that_never_answers_is_ended(ray, monkeypatch):
    plain = ray(LIVES, connects="time.sleep(300)")
    run = cluster.run_tool
    monkeypatch.setattr(cluster, "run_tool", lambda argv, **given: run(argv, **{**given, "timeout_s": 1.0}))
    token = plain.start()
    assert token.failure.reason == "ray_incomplete" and "timeout after 1 s" in token.failure.detail
    assert plain.left == []


def test_a_raylet_that_dies_later_takes_the_server_along_and_is_named(ray):
    plain = ray(LIVES, nodes=f"[{NODE!r}]")
    ready = plain.up()
    assert ready.failure is None
    (head,) = [daemon for daemon in keeper.read_daemons(plain.attempt) if daemon.name == "ray-head"]
    processes.Identity.of(head.pid).signal(signal.SIGKILL)
    record = plain.measure()
    assert record.verdict == "INVALID" and record.failure.reason == "server_died"
    assert plain.left == []
    daemons = {daemon.name: daemon for daemon in plain.stop().daemons}
    assert daemons["ray-head"].signal == signal.SIGKILL and daemons["server"].why == "sibling_ended"
    assert record.failure.log == str(plain.attempt / "ray-head.log"), "the log of what ended first"


def test_a_keeper_that_ends_before_ray_is_asked_for_is_named(ray, monkeypatch):
    plain = ray(LIVES)

    def killed(manifest):
        identity = processes.Identity.parse(keeper.read_state(plain.attempt).identity)
        identity.signal(signal.SIGKILL)
        assert processes.wait_for_end(identity, 5)

    monkeypatch.setattr(cluster, "verify", killed)
    token = plain.start()
    assert (token.failure.reason, token.failure.log) == ("keeper_ended", str(plain.attempt / "keeper.log"))


def test_the_gate_writes_nothing_before_the_cluster_is_complete(standin_copy, tmp_path):
    put_ray(standin_copy, LIVES, nodes="[]")
    output = tmp_path / "nodes.json"
    argv = [standin_copy.python, str(INSIDE / "ray_gate.py"), "127.0.0.1:1", "1", "2", "0.2", str(output)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (1, "0 of 1 nodes, 0 of 2 devices\n")
    assert not output.exists()
