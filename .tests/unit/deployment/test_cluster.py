"""Ray starts under the supervisor, and is used only after it reports all nodes and devices."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from builders.places import described
from builders.standin_ray import DIES, NODE, put_ray
from servemark import supervisor
from servemark.config.cluster import Site
from servemark.config.model import Timeouts
from servemark.deployment import cluster, launcher
from servemark.deployment.executors import ray as ray_executor
from servemark.deployment.telemetry import SAMPLER
from servemark.nodes import port_plan
from servemark.processes import identity as processes
from servemark.records import RayNode, Topology

TOPOLOGY = Topology(devices_per_node=2, tensor_parallel=2, executor="ray")
THERE = f"[{NODE!r}]"
NONE = "Node {host}: expected to join Ray from 127.0.0.1 with 2 device(s); found no such node (there are none)."


def without_samplers(plain):
    return [daemon for daemon in supervisor.read_daemons(plain.attempt) if not daemon.name.startswith(SAMPLER)]


@pytest.fixture
def ray(deploy, standin_copy):
    """Makes a deployment on the stand-in Ray of :func:`put_ray`."""

    def make(*args, cluster_s=60.0, topology=TOPOLOGY, site=None, **given):
        put_ray(standin_copy, *args, **given)
        return deploy(
            environment=described(standin_copy),
            topology=topology,
            site=site,
            points=1,
            timeouts=Timeouts(cluster=cluster_s, start=90.0, stall=60.0, stop=1.0),
        )

    return make


def test_a_complete_cluster_is_recorded_with_its_nodes(ray):
    plain = ray(nodes=THERE)
    started = plain.start()
    assert started.failure is None and started.seconds > 0
    python = started.nodes[0].python
    assert started.ray_nodes == (RayNode(host="node01", address="127.0.0.1", devices=2, ray="0.0.0+standin", python=python),)
    (state,) = started.ray_states
    assert (state.total, state.free) == ({"CPU": 4, "GPU": 2}, {"CPU": 4})
    assert (len(state.waiting), state.failed) == (1, ())
    (replica,) = started.replicas
    address, port = replica.ray_address.split(":")
    assert (address, int(port)) == ("127.0.0.1", port_plan.of_executor(TOPOLOGY, started.nodes[0], 0)[0])
    (head,) = without_samplers(plain)
    assert head.name == "ray-head" and f"--port={port}" in head.argv and "--num-gpus=2" in head.argv

    scratch = next(word.removeprefix("--temp-dir=") for word in head.argv if word.startswith("--temp-dir="))
    seen = json.loads((Path(scratch) / "seen.json").read_text())
    secret = Path(seen["env"]["RAY_AUTH_TOKEN_PATH"])
    assert secret == (plain.attempt / "ray-token").absolute() and secret.stat().st_mode & 0o777 == 0o600
    assert seen["env"]["RAY_AUTH_MODE"] == "token" and seen["env"]["RAY_TMPDIR"] == scratch
    assert secret.read_text() not in json.dumps(seen), "the secret stands only in its file"

    endpoint = plain.serve(started)
    request = json.loads((plain.attempt / "requests" / "server.json").read_text())
    assert request["env"]["RAY_ADDRESS"] == replica.ray_address
    assert request["env"]["RAY_AUTH_TOKEN_PATH"] == str(secret) and request["env"]["RAY_TMPDIR"] == scratch
    assert "--distributed-executor-backend" in endpoint.servers[0].argv
    ready, startup = plain.wait(started, endpoint)
    assert ready.failure is None and startup.cluster_seconds == started.seconds
    stopped = plain.stop()
    assert {daemon.name: daemon.why for daemon in stopped.daemons} == {
        SAMPLER: "stop_requested",
        "ray-head": "stop_requested",
        "server": "stop_requested",
    }
    assert plain.left == [] and not secret.exists()


def test_start_waits_for_a_late_ray_node(ray):
    plain = ray(nodes=f"{THERE} if time.monotonic() - _begin > 1 else []")
    started = plain.start()
    assert started.failure is None and started.ray_nodes[0].devices == 2
    assert any("(1 node(s), 2 devices)" in text for text in plain.told.words)


def test_ended_ray_head_fails_at_once_with_its_error(ray):
    plain = ray(DIES, connects="raise ConnectionError('nobody there')", cluster_s=60.0)
    begin = time.monotonic()
    started = plain.start()
    assert time.monotonic() - begin < 60
    assert started.failure.stage == "start_cluster" and started.failure.log == str(plain.attempt / "ray-head.log")
    assert "ray-head (pid" in started.failure.detail and "code 4" in started.failure.detail
    assert any("the redis port is in use" in line for line in started.failure.quote) and started.failure.remedy
    assert plain.left == []
    endpoint = plain.serve(started)
    assert endpoint.failure == started.failure, "no server without its cluster"


def test_environment_without_ray_fails_with_the_error_of_python(deploy):
    plain = deploy(topology=TOPOLOGY, points=1)
    started = plain.start()
    assert started.failure.stage == "start_cluster"
    assert any("ray.scripts" in line for line in started.failure.quote)
    assert plain.left == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nodes": "[]"}, NONE),
        ({"nodes": f"[{NODE | {'Resources': {'CPU': 2.0}}!r}]"}, "with 2 device(s); found it with 0."),
        ({"nodes": f"[{NODE | {'Alive': False}!r}]"}, NONE),
        ({"connects": "raise ConnectionError('no route\\nto it')"}, "cannot connect to 127.0.0.1:"),
    ],
)
def test_incomplete_ray_cluster_failure_lists_nodes_found(ray, monkeypatch, given, words):
    # By default the Ray cluster check gets at least 5 s, because an interpreter on a shared disk starts slowly.
    monkeypatch.setattr(ray_executor, "CHECK_S", 1.0)
    # The head has the time that it needs. The check that follows has 1 s.
    listens = ray_executor.Ray._await_head
    monkeypatch.setattr(ray_executor.Ray, "_await_head", lambda self, replica, _: listens(self, replica, time.monotonic() + 60.0))
    plain = ray(cluster_s=1.0, **given)
    started = plain.start()
    words = words.format(host=processes.host())
    assert started.failure.reason == "ray_incomplete"
    assert words in started.failure.detail
    assert words in started.failure.quote[0] and "timeouts.cluster" in started.failure.remedy
    assert plain.left == []


def test_hanging_ray_cluster_check_is_ended(ray, monkeypatch):
    plain = ray(connects="time.sleep(300)")
    run = launcher.run_tool
    monkeypatch.setattr(launcher, "run_tool", lambda argv, **given: run(argv, **{**given, "timeout_s": 1.0}))
    started = plain.start()
    assert started.failure.reason == "ray_incomplete" and "timeout after 1 s" in started.failure.detail
    assert plain.left == []


def test_broken_ray_cluster_check_is_quoted(ray):
    plain = ray(connects="raise TypeError('what it says')")
    failure = plain.start().failure
    assert failure.reason == "ray_gate_failed" and "code 1" in failure.detail
    assert failure.quote[-1].startswith("TypeError")
    assert plain.left == []


def test_raylet_that_dies_later_ends_server_and_is_named(ray):
    plain = ray(nodes=THERE)
    ready = plain.up()
    assert ready.failure is None
    (head,) = [daemon for daemon in supervisor.read_daemons(plain.attempt) if daemon.name == "ray-head"]
    processes.Identity.of(head.pid).signal(signal.SIGKILL)
    record = plain.measure()
    assert record.verdict == "INVALID" and record.failure.reason == "server_died"
    assert plain.left == []
    daemons = {daemon.name: daemon for daemon in plain.stop().daemons}
    assert daemons["ray-head"].signal == signal.SIGKILL and daemons["server"].why == "sibling_ended"
    assert record.failure.log == str(plain.attempt / "ray-head.log"), "the log of what ended first"


def test_supervisor_ended_before_ray_start_is_named(ray, monkeypatch):
    plain = ray()

    def killed(manifest, hashes):
        identity = processes.Identity.parse(supervisor.read_state(plain.attempt).identity)
        identity.signal(signal.SIGKILL)
        assert processes.wait_for_end(identity, 60)

    monkeypatch.setattr(cluster, "verify", killed)
    started = plain.start()
    assert (started.failure.reason, started.failure.log) == ("keeper_ended", str(plain.attempt / "supervisor.log"))


def test_ray_head_that_never_listens_is_a_failure(ray, monkeypatch):
    plain = ray("import time; time.sleep(300)", cluster_s=0.5)
    failure = plain.start().failure
    assert failure.reason == "ray_incomplete" and " 127.0.0.1:" in failure.detail
    assert failure.log == str(plain.attempt / "ray-head.log")
    assert plain.left == []


@pytest.fixture
def site(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir(mode=0o700)
    return Site.model_construct(scheduler="slurm", interface="lo", scratch=str(scratch))


def options(argv) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in argv)


def test_ray_over_two_nodes_has_head_and_worker(ray, slurm, site):
    spans = Topology(nodes=2, devices_per_node=1, pipeline_parallel=2, executor="ray")
    one = NODE | {"Resources": {"GPU": 1.0}}
    plain = ray(nodes=f"[{one!r}]", topology=spans, site=site)
    started = plain.start()
    assert started.failure is None, started.failure
    head, worker = without_samplers(plain)
    assert [(each.name, each.node) for each in (head, worker)] == [("ray-head", "node1"), ("ray-n1", "node2")]
    assert options(worker.argv)["--address"] == started.replicas[0].ray_address
    assert options(head.argv)["--num-gpus"] == options(worker.argv)["--num-gpus"] == "1"
    for each in (head, worker):
        request = json.loads((plain.attempt / "requests" / f"{each.name}.json").read_text())
        assert request["keep"] == list(ray_executor.KEPT), "its logs go with the scratch folder"
    seen = sorted(path.name for path in next(Path(site.scratch).glob("servemark-*/*/")).glob("seen-*"))
    assert seen == ["seen-head-node1.json", "seen-worker-node2.json"]
    assert len([call for call in slurm.calls("srun") if "ray-head-gate.json" in call and "--nodelist=node1 " in call]) == 1
    assert plain.stop().leftovers == () and plain.left == []


# A Ray whose raylet crashes: its error is only in the scratch folder.
CRASHES = """
logs = os.path.join(os.environ['RAY_TMPDIR'], 'session_1', 'logs')
os.makedirs(logs)
open(os.path.join(logs, 'raylet.err'), 'w').write('*** SIGSEGV received at time=1 on cpu 0 ***')
print('Ray runtime started.'); sys.exit(1)
"""


def test_failure_quotes_kept_logs_of_dead_ray_node(ray, slurm, site):
    spans = Topology(nodes=2, devices_per_node=1, pipeline_parallel=2, executor="ray")
    plain = ray(CRASHES, topology=spans, site=site)
    failure = plain.start().failure
    place = json.loads((plain.attempt / "requests" / "ray-head.place.json").read_text())
    assert f"ray-head on node1 (pid {place['pid']})" in failure.detail and "code 1" in failure.detail
    assert failure.quote[-1] == "raylet.err: *** SIGSEGV received at time=1 on cpu 0 ***"
    assert (plain.attempt / "ray-head.kept" / "raylet.err").exists()
    assert list(Path(site.scratch).glob("servemark-*/*/session_1")) == [] and plain.left == []


def test_each_replica_has_its_own_ray_cluster_and_ports(ray, slurm, site):
    slurm.devices(node1="GPU-a,GPU-b", node2="GPU-c,GPU-d")
    two = Topology(nodes=2, devices_per_node=2, replicas=4, executor="ray")
    one = NODE | {"Resources": {"GPU": 1.0}}
    plain = ray(nodes=f"[{one!r}]", topology=two, site=site)
    started = plain.start()
    assert started.failure is None, started.failure
    heads = without_samplers(plain)
    assert {head.name: head.node for head in heads} == {
        "ray-r0-head": "node1", "ray-r1-head": "node1", "ray-r2-head": "node2", "ray-r3-head": "node2"
    }  # fmt: skip
    addresses = [replica.ray_address for replica in started.replicas]
    assert len(set(addresses)) == 4 and len(started.ray_nodes) == 4
    for node in ("node1", "node2"):
        given = [
            value
            for head in heads
            for name, value in options(head.argv).items()
            if (head.node == node and name.endswith("-port") and value != "0") or (name == "--port" and head.node == node)
        ]
        assert len(given) == 12 == len(set(given))
    devices = {
        name: json.loads((plain.attempt / "requests" / f"{name}.json").read_text())["devices"] for name in (head.name for head in heads)
    }
    assert devices == {"ray-r0-head": [0], "ray-r1-head": [1], "ray-r2-head": [0], "ray-r3-head": [1]}
    assert plain.stop().leftovers == () and plain.left == []
