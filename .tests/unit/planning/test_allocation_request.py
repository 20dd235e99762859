"""The requests to Slurm for a deployment and for a short job."""

from __future__ import annotations

import pytest

from servemark.config.cluster import Site
from servemark.config.topology import AskedTopology
from servemark.planning.allocation_request import NEEDS, request, share, small_job
from snakemake_executor_plugin_slurm_guarded.request import Request

TWO = {"nodes": 2, "tensor_parallel": 4, "pipeline_parallel": 2}


def cluster(**keys) -> Site:
    return Site.model_validate({"scheduler": "slurm", **keys})


def test_minimal_cluster_file_requests_whole_nodes():
    assert request("plain", AskedTopology(), cluster(), 0) == Request(name="plain", minutes=20, exclusive=True)


def test_request_has_the_values_of_the_cluster_file():
    keys = {
        "account": "me", "partition": "gpu", "qos": "long", "constraint": "ib", "exclusive": False,
    }  # fmt: skip
    more = {"cpus_per_node": 64, "memory": 100, "reservation": "day", "extra": ("--exclude=n1",)}
    found = request("plain", AskedTopology(**TWO), cluster(**keys, **more), 1)
    assert {key: getattr(found, key) for key in keys} == keys
    assert (found.cpus, found.memory_mb, found.extra) == (64, 102400, "--reservation=day --exclude=n1")


@pytest.mark.parametrize(
    ("missing", "cap", "minutes"),
    [(0, None, 12), (1, None, 17), (30, None, 162), (30, 60, 60), (1, 60, 17), (0, 5, 5)],
)
def test_time_limit_follows_from_missing_points(missing, cap, minutes):
    found = request("plain", AskedTopology(), cluster(minutes_to_start=12, minutes_per_point=5, max_minutes=cap), missing)
    assert found.minutes == minutes


CLIENT = "--constraint=cpu|old"


@pytest.mark.parametrize(
    ("topology", "keys", "nodes", "gres", "constraint", "client"),
    [
        (TWO, {"gpus_per_node": 4}, 2, "gpu:4", None, None),
        (TWO, {"gpus_per_node": 4, "gpu_type": "gh200"}, 2, "gpu:gh200:4", None, None),
        (TWO, {"constraint": "ib"}, 2, None, "ib", None),
        ({"client": "own"}, {"gpus_per_node": 4}, 2, "gpu:4", None, None),
        ({"client": "own"}, {"client_constraint": "cpu|old"}, 1, None, None, f"'{CLIENT}'"),
        (
            {**TWO, "client": "own"},
            {"gpus_per_node": 4, "constraint": "ib&big", "client_constraint": "cpu|old", "client_partition": "c"},
            2,
            "gpu:4",
            "ib&big",
            f"--partition=c '{CLIENT}'",
        ),
        (
            {"client": "own"},
            {"client_partition": "c", "reservation": "day"},
            1,
            None,
            None,
            "--partition=c --reservation=day",
        ),
        (TWO, {"gpus_per_node": 4, "constraint": "a", "client_constraint": "c"}, 2, "gpu:4", "a", None),
    ],
)
def test_nodes_and_gpus(topology, keys, nodes, gres, constraint, client):
    found = request("plain", AskedTopology(**topology), cluster(**keys), 0)
    assert (found.nodes, found.gres, found.constraint, found.second) == (nodes, gres, constraint, client)


def test_client_node_of_another_kind_is_a_component_without_gpus():
    wishes = cluster(account="me", partition="gpu", gpus_per_node=4, client_partition="cpu", extra=("--exclude=n1",))
    found = request("plain", AskedTopology(**TWO, client="own"), wishes, 1).flags("--no-requeue")
    servers, client = " ".join(found).split(" : ")
    common = "--ntasks-per-node=1 --account=me --partition=gpu"
    assert servers == f"--nodes=2 {common} --gres=gpu:4 --time=30 --exclusive --mem=0 --no-requeue --exclude=n1"
    assert client == f"--nodes=1 {common} --time=30 --exclusive --mem=0 --no-requeue --partition=cpu", "the last word counts"


def test_recorded_topology_gives_the_same_request():
    topology = AskedTopology(**TWO, client="own")
    wishes = cluster(gpus_per_node=4)
    assert request("plain", topology.record(), wishes, 3) == request("plain", topology, wishes, 3)


@pytest.mark.parametrize(
    ("small", "cap", "asked"),
    [
        ({}, None, ("me", "gpu", "long", 15)),
        ({"partition": "debug", "minutes": 5}, None, ("me", "debug", "long", 5)),
        ({"account": "free", "qos": "debug"}, 10, ("free", "gpu", "debug", 10)),
    ],
)
def test_short_job_requests_a_part_of_a_node_of_the_same_kind(small, cap, asked):
    wishes = cluster(account="me", partition="gpu", qos="long", gpus_per_node=4, constraint="ib", small_jobs=small, max_minutes=cap)
    found = small_job("probe_hardware", wishes)
    assert (found.account, found.partition, found.qos, found.minutes) == asked
    assert (found.nodes, found.gres, found.constraint, found.exclusive) == (1, "gpu:1", "ib", False)
    assert found.flags()[-2:] == ["--cpus-per-task=1", "--mem=2048M"]


@pytest.mark.parametrize(
    ("rule", "gres", "cpus", "gib"),
    [
        ("probe_hardware", "gpu:h100:1", 1, 2),
        ("check_environment", "gpu:h100:1", 2, 8),
        ("build_environment", None, 4, 8),
        ("stage_weights", None, 4, 8),
    ],
)
def test_short_job_requests_the_needs_of_its_rule(rule, gres, cpus, gib):
    found = small_job(rule, cluster(gpus_per_node=8, gpu_type="h100"))
    assert (found.gres, found.exclusive, found.cpus, found.memory_mb) == (gres, False, cpus, gib * 1024)
    less = small_job(rule, cluster(gpus_per_node=8, cpus_per_node=2, memory=3))
    assert less.cpus == min(cpus, 2) and less.memory_mb == min(gib, 3) * 1024
    assert small_job(rule, cluster(), gpus_there=False).gres is None


@pytest.mark.parametrize(
    ("site", "rules"),
    [
        ({"gpus_per_node": 4}, set()),
        ({"gpus_per_node": 4, "exclusive": False, "cpus_per_node": 8}, set()),
        # Slurm chooses the cores, perhaps by the number of GPUs.
        ({"gpus_per_node": 4, "exclusive": False}, {"probe_hardware"}),
        # An exclusive job gets all GPUs of its nodes, whatever it requests.
        ({}, {"probe_hardware", "check_environment"}),
        ({"gpus_per_node": 4, "small_jobs": {"whole_node": True}}, set(NEEDS)),
    ],
)
def test_short_jobs_that_request_a_deployments_share(site, rules):
    wishes = cluster(**site)
    like = request("x", AskedTopology(), wishes, 0)
    asked = {rule: small_job(rule, wishes) for rule in NEEDS}
    what = [(found.gres, found.exclusive, found.cpus, found.memory_mb) for found in asked.values()]
    whole = (like.gres, like.exclusive, like.cpus, like.memory_mb)
    assert {rule for rule, found in zip(asked, what, strict=True) if found == whole} == rules


@pytest.mark.parametrize(
    ("site", "found"),
    [
        ({"gpus_per_node": 4}, {"exclusive": True, "gpus": 4, "cpus": None}),
        ({}, {"exclusive": True, "gpus": 0, "cpus": None}),
        ({"exclusive": False, "cpus_per_node": 8}, {"exclusive": False, "gpus": 0, "cpus": 8}),
        ({"gpus_per_node": 4, "exclusive": False}, None),
        ({"gpus_per_node": 4, "small_jobs": {"whole_node": True}}, None),
    ],
)
def test_share_follows_from_the_cluster_file(site, found):
    worked_out = share(cluster(**site))
    assert (worked_out and worked_out.model_dump()) == found
