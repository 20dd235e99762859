"""The all-reduce before a model is loaded: its record, and the failure if it does not work."""

from __future__ import annotations

import json

import pytest

from builders.deployed import assert_all_gone
from builders.places import described
from builders.standin_torch import put_torch
from servemark.config.cluster import Site
from servemark.deployment import fabric
from servemark.records import Cluster, Fabric, Failure, Topology


@pytest.mark.parametrize(
    ("size", "ranks", "seconds", "expected"),
    [(2**30, 2, 1.0, 1.0), (2**30, 8, 0.5, 3.5), (256 * 2**20, 4, 0.25, 1.5)],
)
def test_the_bus_bandwidth_is_that_of_nccl_tests(size, ranks, seconds, expected):
    assert fabric.bus_bandwidth(size, ranks, seconds) == pytest.approx(expected)


FAILURE = Failure(stage="start_cluster", reason="node_silent", detail="x")


@pytest.mark.parametrize(
    ("started", "expected"),
    [
        (Cluster(deployment="plain", replay=True), Fabric(deployment="plain", replay=True)),
        (
            Cluster(deployment="plain", failure=FAILURE, attempt="a"),
            Fabric(deployment="plain", failure=FAILURE, attempt="a"),
        ),
        (Cluster(deployment="plain", attempt="a"), Fabric(deployment="plain", attempt="a")),
    ],
    ids=["replay", "failed before", "one node"],
)
def test_single_node_replay_and_failure_skip_check(deploy, started, expected):
    assert deploy().check(started) == expected


def test_replay_keeps_records_of_attempt_that_served(deploy):
    plain = deploy()
    kept = Fabric(deployment="plain", needed=True, attempt="attempts/001", ranks=4, backend="nccl")
    for number in ("001", "002"):
        (plain.folder / "attempts" / number).mkdir(parents=True)
    kept.write(plain.folder / "attempts" / "001" / fabric.KEPT)
    assert plain.check(Cluster(deployment="plain", replay=True)) == kept


@pytest.fixture
def spanning(deploy, slurm, standin_copy, tmp_path):
    """A started deployment with two ranks on each of two nodes, on a stand-in that can all-reduce."""

    def make(fault: str = "", require: str = "any"):
        put_torch(standin_copy)
        slurm.devices(node1="0,1", node2="0,1")
        scratch = tmp_path / "scratch"
        scratch.mkdir(mode=0o700)
        plain = deploy(
            environment=described(standin_copy),
            topology=Topology(nodes=2, devices_per_node=2, tensor_parallel=2, pipeline_parallel=2, executor="mp"),
            site=Site.model_construct(scheduler="slurm", interface="lo", scratch=str(scratch), require_transport=require),
            points=1,
            variables={"STANDIN_TORCH": fault},
        )
        started = plain.start()
        assert started.failure is None, started.failure
        return plain, started

    return make


def test_all_reduce_uses_servers_variables(spanning, tmp_path):
    plain, started = spanning()
    found = plain.check(started)
    assert found.failure is None, found.failure
    assert (found.needed, found.backend, found.ranks, found.bytes) == (True, "gloo", 4, fabric.BYTES["gloo"])
    assert (found.transport, found.transport_kind, found.slow) == (("gloo over TCP",), "tcp", None)
    assert found.interfaces == ("node1: lo (127.0.0.1)", "node2: lo (127.0.0.1)")
    assert found.bus_gib_per_s == round(fabric.bus_bandwidth(found.bytes, 4, found.seconds), 3)
    said = (tmp_path / "fabric.log").read_text()
    assert sorted(line for line in said.splitlines() if line.startswith("interface")) == [
        f"interface lo =lo rank {rank}" for rank in range(4)
    ]
    assert Fabric.read(plain.attempt / fabric.KEPT) == found
    spec = json.loads((plain.attempt / "all-reduce-spec.json").read_text())
    assert [(each["name"], each["devices"]) for each in spec["nodes"]] == [("node1", [0, 1]), ("node2", [0, 1])]
    assert spec["port"] in started.nodes[0].ports
    assert any("4 ranks" in words and "node1, node2 (gloo)" in words for words in plain.told.words)

    aside = {"NCCL_DEBUG_FILE": str(tmp_path / "nccl.log"), "NCCL_DEBUG_SUBSYS": "GRAPH"}
    own = plain.plan.variables | {"GLOO_SOCKET_IFNAME": "eth7", "NCCL_SOCKET_IFNAME": "ib"} | aside
    plain.plan = plain.plan.model_copy(update={"variables": own})
    assert plain.check(started).failure is None
    assert (tmp_path / "fabric.log").read_text().count("interface eth7 ib rank") == 4, "the user's own interface wins"
    request = json.loads((plain.attempt / "tools" / "fabric.json").read_text())
    assert request["env"]["NCCL_DEBUG"] == "INFO" and not request["env"].keys() & aside.keys()
    plain.stop()
    assert_all_gone(plain)


def test_transport_that_cluster_file_does_not_allow_ends_deployment(spanning):
    plain, started = spanning(require="ib")
    failure = plain.check(started).failure
    assert (failure.stage, failure.reason, failure.quote) == ("check_fabric", "wrong_transport", ("gloo over TCP",))
    assert "require_transport" in failure.detail and "require_transport" in failure.remedy
    assert_all_gone(plain)


@pytest.mark.parametrize(
    ("fault", "words", "quote"),
    [
        ("dies:3", "a rank failed", "stand-in fault of rank 3 (gloo)"),
        ("wrong", "a rank failed", "rank 0: the all-reduce gives 11.0, not 10.0"),
        ("hangs:2", "a rank failed", None),
    ],
)
def test_failed_all_reduce_ends_deployment_and_names_nodes(spanning, tmp_path, fault, words, quote):
    plain, started = spanning(fault)
    # The other ranks wait for a missing one until the deadline. On a busy machine ranks may start seconds apart.
    plain.timeouts = plain.timeouts.model_copy(update={"cluster": {"hangs:2": 1.0, "dies:3": 5.0}.get(fault, 60.0)})
    failure = plain.check(started).failure
    assert (failure.stage, failure.reason) == ("check_fabric", "fabric_failed")
    expected = f"The all-reduce over 4 ranks on node1 (lo, 127.0.0.1), node2 (lo, 127.0.0.1) failed: {words}"
    assert failure.detail == expected and failure.log == str(tmp_path / "fabric.log")
    assert "`interface`" in failure.remedy
    if quote:
        assert quote in (tmp_path / "fabric.log").read_text() and failure.quote
    assert_all_gone(plain)
    assert plain.serve(started.model_copy(update={"failure": failure})).failure == failure, "no server without its fabric"


def test_failed_all_reduce_has_the_cause_in_its_log(tmp_path):
    log = tmp_path / "log"
    log.write_text("torch.distributed.DistBackendError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)\n")
    error = fabric._failed(4, ["node1 (ib0, 10.0.0.1)"], None, log)
    assert error.look == str(log) and error.do and error.quote
    assert "node1 (ib0, 10.0.0.1)" in error.what
    assert "timeout after 30 s" in fabric._failed(4, ["n"], "timeout after 30 s", log).what
