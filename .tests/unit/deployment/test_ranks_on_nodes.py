"""The start-up record keeps nodes and servers from the live records, also after a failed start."""

from __future__ import annotations

import pytest

from builders import report_data, report_data_cluster
from builders.deployed import stage_context
from servemark.deployment.readiness import Waiting
from servemark.records import Cluster, Endpoint, Failure, Startup

FAILURE = Failure(stage="serve_model", reason="port_taken", detail="The port is taken.")
SPANNING = report_data_cluster.spanning_startup("x")


@pytest.mark.parametrize(
    ("topology", "nodes", "client"),
    [
        (report_data.SPANNING, SPANNING.nodes, "client1"),
        (report_data.SPANNING.model_copy(update={"client": "head"}), SPANNING.nodes[:2], "node1"),
        (report_data.SPANNING, (), None),
    ],
    ids=["a node of its own", "next to the server", "before the survey"],
)
def test_failed_start_keeps_nodes_and_servers(tmp_path, told, topology, nodes, client):
    cluster = Cluster(deployment="x", attempt="a", nodes=nodes, replicas=SPANNING.placement, ray_nodes=SPANNING.ray_nodes)
    endpoint = Endpoint(deployment="x", attempt="a", failure=FAILURE, servers=SPANNING.servers)
    plan = report_data.plan("x", topology=topology)
    _, startup = Waiting(stage_context(tmp_path, told, plan), cluster, endpoint).run()
    assert startup == Startup(
        deployment="x",
        failure=FAILURE,
        attempt="a",
        nodes=nodes,
        placement=SPANNING.placement,
        ray_nodes=SPANNING.ray_nodes,
        servers=SPANNING.servers,
        client_node=client,
    )
