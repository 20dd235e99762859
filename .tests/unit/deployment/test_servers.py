"""serve_model with one process, with several replicas and a router, and with a server on several nodes."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from builders import report_data
from builders.deployed import CONFIG, HARDWARE, stage_context
from servemark import supervisor
from servemark.deployment import attempts, server
from servemark.deployment.server import Serving
from servemark.environments import model_classes
from servemark.launch import command_lines
from servemark.launch import compile_cache as compiled
from servemark.nodes import allocation, port_plan
from servemark.nodes.allocation import Allocation
from servemark.planning.placement import place
from servemark.processes import identity
from servemark.records import Cluster, DaemonState, Fabric, Failure, Node, Topology


def node(number: int, topology: Topology, first: int = 20000) -> Node:
    return Node(
        name=f"node{number}",
        host=f"n{number}",
        address=f"10.0.0.{number}",
        interface="hsn0",
        devices=topology.devices_per_node,
        cpu_count=8,
        memory_gib=1,
        shm_gib=1,
        python="3.12.1",
        vllm="1",
        ports=tuple(range(first, first + port_plan.needed(topology))),
    )


@pytest.fixture
def serve(tmp_path, told, monkeypatch):
    """Runs serve_model for a topology with a supervisor that only records requests."""
    attempt = tmp_path / "attempts" / "001"
    attempt.mkdir(parents=True)
    spec = supervisor.SupervisorSpec(deployment="x", lifeline="1:1", machine_lock=None, tokens=(), scratch="/tmp/abc")
    (attempt / "supervisor-spec.json").write_text(spec.model_dump_json())

    def run(
        topology: Topology,
        port: int | None = None,
        ray: bool = False,
        caches: Path | None = None,
        bytecode=None,
        hardware=HARDWARE,
        **changes,
    ):
        nodes = tuple(node(number + 1, topology) for number in range(topology.all_nodes))
        names = tuple(each.name for each in nodes)
        monkeypatch.setattr(allocation, "current", lambda: Allocation("7", names, cpus=dict.fromkeys(names, 4)))
        asked = []

        def request(where, daemon):
            assert where == attempt
            asked.append(daemon)
            return DaemonState(name=daemon.name, argv=daemon.argv, log=daemon.log)

        monkeypatch.setattr(supervisor, "request", request)
        replicas = place(topology)
        if ray:
            replicas = tuple(r.model_copy(update={"ray_address": f"10.0.0.1:{i}"}) for i, r in enumerate(replicas))
        started = Cluster(deployment="x", attempt=str(attempt), nodes=nodes, replicas=replicas)
        plan = report_data.plan("x", topology=topology, modules=("cuda/13",), **{"variables": {}, "options": {}, **changes})
        environment = SimpleNamespace(python="py", bytecode=bytecode, container=None)
        context = stage_context(tmp_path, told, plan, environment=environment, hardware=hardware, caches=caches)
        return Serving(context, started, port).run(Fabric(deployment="x")), asked, nodes

    return run


def option(argv, name: str) -> str | None:
    return dict(pairwise(argv)).get(name)


def test_single_process_has_the_public_address(serve):
    endpoint, asked, (first,) = serve(Topology(devices_per_node=2, tensor_parallel=2, executor="mp"))
    (place_,) = endpoint.servers
    assert (place_.daemon, place_.node, endpoint.url, endpoint.router) == ("server", "node1", place_.url, None)
    (request,) = asked
    assert place_.argv == request.argv and request.node == "node1" and request.devices == (0, 1)
    assert request.modules == ("cuda/13",) and request.grace_s == CONFIG.timeouts.stop and request.launcher[0] == "srun"
    assert endpoint.url == f"http://10.0.0.1:{option(request.argv, '--port')}"
    key = request.secret_env[command_lines.API_KEY]
    assert endpoint.key_file == key and Path(key).read_text() not in request.model_dump_json()
    assert "--headless" not in request.argv and "--nnodes" not in request.argv
    assert int(option(request.argv, "--port")) in first.ports


def test_replicas_have_own_devices_ports_names_and_one_router(serve):
    topology = Topology(nodes=2, devices_per_node=4, tensor_parallel=2, replicas=4, executor="mp", client="own")
    endpoint, asked, nodes = serve(topology)
    assert [(r.name, r.node, r.devices) for r in asked] == [
        ("server-r0", "node1", (0, 1)),
        ("server-r1", "node1", (2, 3)),
        ("server-r2", "node2", (0, 1)),
        ("server-r3", "node2", (2, 3)),
    ]
    assert [(s.replica, s.daemon, s.node) for s in endpoint.servers] == [
        (f"r{index}", f"server-r{index}", request.node) for index, request in enumerate(asked)
    ]
    urls = [s.url for s in endpoint.servers]
    assert len(set(urls)) == 4 and all(r.env["SERVEMARK_HEALTH_WITHOUT_KEY"] == "1" for r in asked)
    router = endpoint.router
    assert (router.daemon, router.node, router.replica, endpoint.url) == ("router", "node1", "", router.url)
    assert router.argv[router.argv.index("--worker-urls") + 1 :] == tuple(urls)
    used = [url.rpartition(":")[2] for url in (*urls[:2], router.url)] + [option(router.argv, "--prometheus-port")]
    assert len(set(used)) == 4 and set(map(int, used)) <= set(nodes[0].ports)
    assert "router" not in [r.name for r in asked], "await_ready starts it after the replicas"


@pytest.mark.parametrize("variables", [{}, {"VLLM_CACHE_ROOT": "/mine"}, {"XDG_CACHE_HOME": "/mine"}])
@pytest.mark.parametrize("caches", [None, Path("/kept")])
def test_each_server_gets_the_descriptions_of_its_environment(serve, monkeypatch, tmp_path, variables, caches):
    """On every node, with kept and with empty compile caches, but never in a folder that the user names."""
    monkeypatch.chdir(tmp_path)
    digest = report_data.plan("x").environment_digest
    described = model_classes.folder(CONFIG.cache, digest) / "A" / "modelinfos" / "a.json"
    described.parent.mkdir(parents=True)
    described.touch()
    topology = Topology(nodes=2, devices_per_node=2, tensor_parallel=2, pipeline_parallel=2, executor="mp")
    _, asked, _ = serve(topology, caches=caches, variables=variables)
    expected = {} if variables else {f"{caches or '/tmp/abc/compiled'}/vllm/modelinfos/a.json": str(described)}
    assert [one.copies for one in asked] == [expected] * 2


def test_server_over_nodes_starts_its_followers_first(serve):
    topology = Topology(nodes=3, devices_per_node=2, tensor_parallel=2, pipeline_parallel=3, executor="mp")
    endpoint, asked, nodes = serve(topology)
    assert [(r.name, r.node) for r in asked] == [("server-n2", "node3"), ("server-n1", "node2"), ("server", "node1")]
    assert [option(r.argv, "--node-rank") for r in asked] == ["2", "1", "0"]
    assert ["--headless" in r.argv for r in asked] == [True, True, False]
    assert {option(r.argv, "--master-addr") for r in asked} == {"10.0.0.1"}
    (together,) = {option(r.argv, "--master-port") for r in asked}
    assert int(together) in nodes[0].ports and together != option(asked[-1].argv, "--port")
    assert [option(r.argv, "--host") for r in asked] == ["10.0.0.3", "10.0.0.2", "10.0.0.1"]
    assert [r.env["VLLM_HOST_IP"] for r in asked] == ["10.0.0.3", "10.0.0.2", "10.0.0.1"]
    (place_,) = endpoint.servers
    assert place_.daemon == "server" and place_.argv == asked[-1].argv, "the head's start is the server's"


def test_each_node_of_engines_has_its_own_first_rank(serve):
    _, asked, _ = serve(Topology(nodes=2, devices_per_node=2, data_parallel=4, executor="mp"))
    assert [option(r.argv, "--data-parallel-start-rank") for r in asked] == ["2", None]
    assert {option(r.argv, "--data-parallel-size-local") for r in asked} == {"2"}


def test_each_replica_over_nodes_has_its_own_followers(serve):
    topology = Topology(nodes=4, devices_per_node=2, tensor_parallel=2, pipeline_parallel=2, replicas=2, executor="mp")
    _, asked, _ = serve(topology)
    assert [(r.name, r.node) for r in asked] == [
        ("server-r0-n1", "node2"), ("server-r0", "node1"), ("server-r1-n1", "node4"), ("server-r1", "node3")
    ]  # fmt: skip
    assert [option(r.argv, "--master-addr") for r in asked] == ["10.0.0.1", "10.0.0.1", "10.0.0.3", "10.0.0.3"]


def test_only_the_head_gets_the_number_of_api_servers(serve):
    _, asked, _ = serve(Topology(nodes=2, devices_per_node=2, data_parallel=4, executor="mp"), options={"api-server-count": 2})
    assert [option(r.argv, "--api-server-count") for r in asked] == [None, "2"]


def test_each_rank_on_cpu_has_its_own_core(serve):
    _, asked, _ = serve(Topology(devices_per_node=4, tensor_parallel=2, replicas=2, executor="mp"))
    assert [r.env["VLLM_CPU_OMP_THREADS_BIND"] for r in asked] == ["0|1", "2|3"]


@pytest.mark.parametrize(
    ("executor", "variables", "interface"),
    [
        ("ray", {}, None),
        ("ray", {"NCCL_SOCKET_IFNAME": "ib"}, "ib"),
        ("mp", {}, "=hsn0"),
        ("mp", {"NCCL_SOCKET_IFNAME": "ib"}, "ib"),
    ],
)
def test_ray_workers_do_not_inherit_heads_interface(serve, executor, variables, interface):
    topology = Topology(nodes=2, devices_per_node=2, tensor_parallel=4, executor=executor)
    cuda = report_data.hardware(accelerator="cuda")
    _, asked, _ = serve(topology, ray=executor == "ray", variables=variables, hardware=cuda)
    assert {request.env.get("NCCL_SOCKET_IFNAME") for request in asked} == {interface}


def test_ray_server_is_started_on_head_only(serve):
    topology = Topology(nodes=2, devices_per_node=2, tensor_parallel=2, pipeline_parallel=2, executor="ray")
    _, (request,), _ = serve(topology, ray=True)
    assert (request.node, request.env["RAY_ADDRESS"]) == ("node1", "10.0.0.1:0")
    assert request.env["RAY_AUTH_TOKEN_PATH"].endswith("ray-token") and "--nnodes" not in request.argv


@pytest.mark.parametrize("replicas", [1, 2])
def test_configured_port_is_the_port_of_the_public_address(serve, replicas):
    endpoint, asked, _ = serve(Topology(devices_per_node=2, replicas=replicas), port=8123)
    assert endpoint.url == "http://10.0.0.1:8123"
    assert [option(r.argv, "--port") == "8123" for r in asked] == ([True] if replicas == 1 else [False, False])


@pytest.mark.parametrize("replicas", [1, 2])
def test_router_balances_engines_behind_one_address(serve, replicas):
    topology = Topology(devices_per_node=4, data_parallel=4 // replicas, replicas=replicas, balancing="router", executor="mp")
    endpoint, asked, _ = serve(topology, port=8123)
    assert endpoint.url == endpoint.router.url == "http://10.0.0.1:8123"
    assert option(endpoint.router.argv, "--intra-node-data-parallel-size") == str(4 // replicas)
    assert len(asked) == replicas and "8123" not in [option(r.argv, "--port") for r in asked]
    assert {r.env["SERVEMARK_HEALTH_WITHOUT_KEY"] for r in asked} == {"1"}


@pytest.mark.parametrize(("here", "reason"), [(True, "port_taken"), (False, None)])
def test_taken_port_is_detected_on_this_machine_only(serve, monkeypatch, here, reason):
    monkeypatch.setattr(server.network, "is_taken", lambda host, port: True)
    monkeypatch.setattr(identity, "host", lambda: "n1" if here else "elsewhere")
    monkeypatch.setattr(attempts, "fail", lambda attempt, failure, stop_s: failure)
    endpoint, _, _ = serve(Topology(), port=8123)
    assert (endpoint.failure and endpoint.failure.reason) == reason


def test_a_failed_fabric_starts_nothing(serve, monkeypatch):
    failure = Failure(stage="check_fabric", reason="fabric_failed", detail="x")
    run = Serving.run
    monkeypatch.setattr(Serving, "run", lambda self, fabric: run(self, Fabric(deployment="x", failure=failure)))
    endpoint, asked, _ = serve(Topology())
    assert (endpoint.failure, endpoint.url, asked) == (failure, None, [])


def test_request_file_contains_the_whole_request(serve):
    _, asked, _ = serve(Topology())
    assert json.loads(asked[0].model_dump_json())["scratch"] == "/tmp/abc"


@pytest.mark.parametrize(("before", "found"), [(False, "empty"), (True, "filled")])
def test_servers_share_compile_cache_and_record_its_state(serve, tmp_path, before, found):
    folder = tmp_path / "cache" / "compiled" / "abc"
    if before:
        compiled.came_up(folder, report_data.plan())
    endpoint, asked, _ = serve(Topology(nodes=2, devices_per_node=1, replicas=2), caches=folder)
    assert {request.env["VLLM_CACHE_ROOT"] for request in asked} == {str(folder / "vllm")}
    assert (endpoint.compile_cache, endpoint.compile_cache_folder) == (found, str(folder))


@pytest.mark.parametrize(
    ("kept", "variables", "found"),
    [
        ("/cache/bytecode", {}, ("/cache/bytecode", "")),
        ("/cache/bytecode", {"PYTHONPYCACHEPREFIX": "/own"}, ("/own", "")),
        (None, {}, (None, None)),
    ],
)
def test_bytecode_cache_follows_environment_or_variables(serve, kept, variables, found):
    _, asked, _ = serve(Topology(devices_per_node=2, replicas=2), bytecode=kept, variables=variables)
    names = ("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE")
    assert [tuple(map(request.env.get, names)) for request in asked] == [found] * 2


def test_cold_start_uses_attempts_own_cache_on_each_node(serve):
    endpoint, asked, _ = serve(Topology(nodes=2, devices_per_node=1, replicas=2))
    assert {request.env["TRITON_CACHE_DIR"] for request in asked} == {"/tmp/abc/compiled/triton"}
    assert (endpoint.compile_cache, endpoint.compile_cache_folder) == ("none", None)


def test_unusable_cache_folder_is_refused_with_remedies(serve, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file in the way")
    monkeypatch.setattr(attempts, "fail", lambda attempt, failure, stop_s: failure)
    endpoint, asked, _ = serve(Topology(), caches=tmp_path / "cache" / "compiled")
    assert asked == [] and endpoint.failure.reason == "compile_cache"
    assert "compile_cache: none" in endpoint.failure.remedy
