"""Checks of all nodes before a deployment starts: each difference is named with node, expected and found."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from builders.deployed import CONFIG, Deployment, assert_all_gone, stage_context
from builders.launching import plan
from servemark.config.cluster import Site
from servemark.deployment import node_checks
from servemark.deployment.launcher import Launcher, new_scratch, on_node
from servemark.errors import StageFailed
from servemark.nodes import allocation, survey
from servemark.nodes.allocation import Allocation
from servemark.processes import identity
from servemark.records import Node, Topology
from servemark.supervisor.process_request import DaemonRequest, is_plain

# The stand-in of vLLM is one process for any number of ranks; both nodes are this machine.
TWO = Topology(nodes=2, devices_per_node=1, tensor_parallel=1, pipeline_parallel=2, executor="mp")


PLANNED = {"gpu": "H200", "count": 4}


def node(name: str = "node1", **changes) -> Node:
    values = {
        "name": name, "host": name, "address": "10.0.0.1", "interface": "hsn0", "devices": 4, "cpu_count": 8, "memory_gib": 1,
        "shm_gib": 1, "python": "3.12.1", "vllm": "0.25.1", "ray": "2.54.1", "kind": {"gpu": "H200", "count": 4},
    }  # fmt: skip
    return Node(**(values | changes))


def test_equal_nodes_pass():
    node_checks.compare([node("node1"), node("node2")], 4, needs_ray=True)
    node_checks.compare([node("node1", ray=None), node("node2", ray="2.54.1")], 2, needs_ray=False)


@pytest.mark.parametrize(
    ("found", "reason", "lines"),
    [
        (
            [node("node1"), node("node2", devices=3)],
            "devices_missing",
            ["Node node2: expected 4 device(s) for ranks; found 3."],
        ),
        (
            [node("node1"), node("node2", vllm="0.25.0")],
            "versions_differ",
            ["Node node2: expected vLLM 0.25.1, as on node1; found 0.25.0."],
        ),
        (
            [node("node1", python="3.11.9"), node("node2"), node("node3")],
            "versions_differ",
            ["Node node1: expected Python 3.12.1, as on node2; found 3.11.9."],
        ),
        (
            [node("node1"), node("node2", ray=None, devices=0), node("node3", python="3.13.0", ray="2.53.0")],
            "versions_differ",
            [
                "Node node2: expected 4 device(s) for ranks; found 0.",
                "Node node3: expected Python 3.12.1, as on node1; found 3.13.0.",
                "Node node2: expected Ray 2.54.1, as on node1; found None.",
                "Node node3: expected Ray 2.54.1, as on node1; found 2.53.0.",
            ],
        ),
    ],
    ids=["devices", "vllm", "the first one is the odd one", "everything at once"],
)
def test_differing_node_is_named_with_expected_and_found(found, reason, lines):
    with pytest.raises(StageFailed) as refused:
        node_checks.compare(found, 4, needs_ray=True)
    assert sorted(refused.value.what.splitlines()) == sorted(lines)
    assert refused.value.reason == reason and refused.value.do


def test_node_with_too_few_devices_shows_visible_devices():
    with pytest.raises(StageFailed) as refused:
        node_checks.compare([node(devices=1, cuda_visible_devices="3")], 2, needs_ray=False)
    assert refused.value.reason == "devices_missing" and "node1" in refused.value.what
    assert "'3'" in refused.value.what and "CUDA_VISIBLE_DEVICES" in refused.value.do


def test_different_gpus_are_reported_with_visible_devices():
    planned = {"gpus": [["H200", 143771]] * 4, "driver": "580"}
    found = node(kind={"gpus": [["H200", 143771]], "driver": "570"}, cuda_visible_devices="")
    with pytest.raises(StageFailed) as refused:
        node_checks.same_kind([found], planned)
    gpus, driver = refused.value.what.splitlines()
    assert gpus.endswith("found [['H200', 143771]] (CUDA_VISIBLE_DEVICES is '' there).")
    assert "node1" in driver and "580" in driver and "570" in driver
    assert refused.value.reason == "hardware_differs" and "CUDA_VISIBLE_DEVICES" in refused.value.do


def test_nodes_of_another_kind_than_the_planned_one_are_refused():
    node_checks.same_kind([node("node1"), node("node2")], PLANNED)
    with pytest.raises(StageFailed) as refused:
        node_checks.same_kind([node("node1"), node("node2", kind={"gpu": "A100", "count": 4})], PLANNED)
    assert refused.value.what == "Node node2: expected gpu H200 (probed); found A100."
    assert refused.value.reason == "hardware_differs" and "`constraint`" in refused.value.do


def test_one_node_with_another_kernel_or_c_library_is_a_warning():
    planned = {"kernel": "6.1", "glibc": "2.36", "gpu_links": None}
    assert node_checks.same_kind([node(kind=planned | {"gpu_links": ["X NV18", "NV18 X"]})], planned) == ()
    nodes = [node("node1", kind=planned), node("node2", kind=planned | {"kernel": "6.2", "glibc": "2.39"})]
    kernel, library = node_checks.same_kind(nodes, planned)
    assert all(word in kernel for word in ("node2", "6.2", "6.1")) and all(word in library for word in ("node2", "2.39", "2.36"))


def test_kernel_of_the_ledger_key_on_no_node_is_refused():
    with pytest.raises(StageFailed) as refused:
        node_checks.same_kind([node("node1", kind={"kernel": "6.2"}), node("node2", kind={"kernel": "6.3"})], {"kernel": "6.1"})
    assert refused.value.what.splitlines() == [
        "Node node1: expected kernel 6.1 (probed); found 6.2.", "Node node2: expected kernel 6.1 (probed); found 6.3.",
    ]  # fmt: skip


@pytest.mark.parametrize("what", ["torch", "nccl", "packages"])
def test_node_with_another_torch_nccl_or_package_is_refused(what):
    nodes = [node("node1", **{what: "1"}), node("node2", **{what: "2"})]
    packages = {"node1": {"a": "1 (x)", "b": "1 (x)"}, "node2": {"a": "1 (x)", "b": "1 (y)", "c": "3 (z)"}}
    with pytest.raises(StageFailed) as refused:
        node_checks.compare(nodes, 4, needs_ray=False, packages=packages)
    assert refused.value.reason == "versions_differ" and "node2" in refused.value.what
    if what == "packages":
        assert [line.split()[4] for line in refused.value.what.splitlines()] == ["b", "c"]


def test_many_differing_packages_are_counted():
    nodes = [node("node1", packages="1"), node("node2", packages="2")]
    with pytest.raises(StageFailed) as refused:
        node_checks.compare(nodes, 4, needs_ray=False, packages={"node1": {f"p{number}": "1" for number in range(9)}})
    lines = refused.value.what.splitlines()
    assert len(lines) == 6 and " 4 " in lines[-1]
    with pytest.raises(StageFailed):
        node_checks.compare(nodes, 4, needs_ray=False)


def test_node_with_lost_links_is_refused_if_the_probe_saw_them():
    with pytest.raises(StageFailed) as refused:
        node_checks.same_kind([node(kind={"gpu_links": ["X SYS", "SYS X"]})], {"gpu_links": ["X NV18", "NV18 X"]})
    assert refused.value.reason == "hardware_differs" and "SYS" in refused.value.what


@pytest.fixture
def two(deploy, slurm, tmp_path):
    """A deployment over the two nodes of the stand-in's job."""

    def make(**given) -> Deployment:
        scratch = tmp_path / "scratch"
        scratch.mkdir(mode=0o700)
        site = Site.model_construct(scheduler="slurm", interface="lo", scratch=str(scratch))
        return deploy(**({"topology": TWO, "points": 1, "site": site} | given))

    return make


def tools(slurm) -> list[str]:
    """Return the calls of srun for short-lived processes."""
    return [call for call in slurm.calls("srun") if "/requests/" not in call]


def test_all_nodes_are_surveyed_at_once_and_swept_at_end(two, slurm):
    plain = two()
    started = plain.start()
    assert started.failure is None and started.job_id == "1" and started.ends_at.endswith("+00:00")
    assert [(each.name, each.address, each.interface) for each in started.nodes] == [
        ("node1", "127.0.0.1", "lo"),
        ("node2", "127.0.0.1", "lo"),
    ]
    assert [[part.node for part in replica.parts] for replica in started.replicas] == [[0, 1]]
    looked, reached = tools(slurm)
    assert "--nodelist=node1,node2" in looked and "--nodelist=node2" in reached
    scratch = new_scratch(plain.config, Path("/unused"), allocation.current()).parent
    assert [(path / ".job").read_text() for path in scratch.iterdir()] == ["1"]
    stopped = plain.stop()
    assert (stopped.failure, stopped.leftovers) == (None, ())
    assert len(tools(slurm)) == 3 and "--nodelist=node1,node2" in tools(slurm)[-1]
    assert list(scratch.iterdir()) == []
    assert_all_gone(plain)


def test_nodes_are_surveyed_for_the_devices_of_the_topology(deploy, monkeypatch):
    specs = []

    def survey(_here, _launcher, spec, *_):
        specs.append(spec)
        raise StageFailed("No more than the survey.", reason="node_silent")

    monkeypatch.setattr(node_checks, "run_on_all", survey)
    deploy(points=1, topology=Topology(tensor_parallel=2, devices_per_node=2)).start()
    assert [spec.devices for spec in specs] == [2]


def test_client_node_of_another_kind_is_surveyed_in_its_own_step(two, slurm):
    slurm.heterogeneous("node1,node2", "client1")
    slurm.devices(node1="0", node2="0", client1="")
    plain = two(topology=TWO.model_copy(update={"client": "own"}))
    started = plain.start()
    assert started.failure is None, started.failure
    assert [each.name for each in started.nodes] == ["node1", "node2", "client1"]
    steps = {(call.split("--het-group=")[1][0], call.split("--nodelist=")[1].split()[0]) for call in tools(slurm)}
    assert steps == {("0", "node1,node2"), ("1", "client1"), ("0", "node2")}, "surveyed, then connected to the first node"
    assert [part.node for part in started.replicas[0].parts] == [0, 1]


def test_node_that_does_not_respond_is_named(two, slurm):
    slurm.lose("node2")
    failure = two().start().failure
    assert failure.reason == "node_silent" and failure.stage == "start_cluster"
    assert "node2" in failure.detail and "node1" not in failure.detail and "scontrol" in failure.remedy


def test_silent_nodes_are_all_named_with_srun_errors(two, slurm):
    plain = two()
    plain.timeouts = plain.timeouts.model_copy(update={"cluster": 1.0})
    script = slurm.folder / "bin" / "srun"
    script.write_text("#!/bin/sh\necho 'srun: error: Unable to create step for job 1' >&2\nsleep 30\n")
    failure = plain.start().failure
    assert failure.reason == "node_silent"
    assert "node1, node2" in failure.detail
    assert failure.quote[-1].startswith("srun: error:")


def test_failure_on_a_node_has_the_name_of_the_node(two, slurm):
    site = Site.model_construct(scheduler="slurm", interface="ib*", scratch=str(slurm.folder))
    failure = two(site=site).start().failure
    assert failure.reason == "wrong_interface"
    assert [line.split(":")[0] for line in failure.detail.splitlines()] == ["Node node1", "Node node2"]
    assert "lo (127.0.0.1)" in failure.detail


@pytest.mark.parametrize(
    ("names", "words"),
    [(("node1",), "The allocation has 1 node(s), node1; expected 2."), (("node2", "node1"), None)],
)
def test_an_allocation_with_too_few_nodes_is_refused(two, slurm, names, words):
    slurm.nodes(*names)
    failure = two().start().failure
    assert (failure and failure.reason) == (words and "nodes_missing")
    assert words is None or (words in failure.detail and "cluster file" in failure.remedy)


def test_several_nodes_without_scheduler_are_refused(deploy):
    failure = deploy(topology=TWO, points=1).start().failure
    assert failure.reason == "nodes_missing" and "snakemake --profile slurm" in failure.remedy


def launcher(tmp_path: Path, job: str | None = "1", names: tuple[str, ...] = ("node1", "node2")) -> Launcher:
    attempt = tmp_path / "attempts" / "001"
    attempt.mkdir(parents=True)
    return Launcher(Allocation(job, names, cpus={"node2": 4}), attempt, tmp_path / "runtime" / "abc")


REQUEST = DaemonRequest(name="check", argv=("python", "check.py"), env={"A": "b"}, log="x.log", devices=(1,))


def test_tool_on_this_machine_runs_without_a_launcher(tmp_path, nowhere):
    tool = launcher(tmp_path, None, (identity.host(),)).tool(identity.host(), REQUEST)
    assert tool.argv == ["python", "check.py"] and not tool.launched
    assert (tool.env["A"], tool.env[identity.NODE_VARIABLE]) == ("b", identity.host())


def test_local_tool_in_special_folder_gets_plain_name(tmp_path, nowhere):
    python = tmp_path / "my env/bin/python"
    made = launcher(tmp_path, None, (identity.host(),))
    tool = made.tool(identity.host(), REQUEST.model_copy(update={"argv": (str(python), "check.py")}))
    assert is_plain(tool.argv[0]) and os.path.realpath(tool.argv[0]) == str(python)


@pytest.mark.parametrize(
    ("names", "nodelist", "cpus"),
    [(["node2"], "--nodelist=node2", True), (["node1", "node2"], "--nodelist=node1,node2", False)],
)
def test_tool_on_other_nodes_gets_srun_and_heartbeat_pipe(tmp_path, names, nodelist, cpus):
    made = launcher(tmp_path)
    tool = made.tool(names, REQUEST)
    path = made.attempt / "tools" / "check.json"
    assert tool.launched and tool.argv[-1] == str(path) and nodelist in tool.argv
    assert ("--cpus-per-task=4" in tool.argv) is cpus
    assert tool.env[identity.MARK_VARIABLE] == str(made.attempt) and "A" not in tool.env
    asked = DaemonRequest.model_validate_json(path.read_text())
    assert path.stat().st_mode & 0o777 == 0o600 and asked.scratch == str(made.scratch) and asked.devices == (1,)


def test_scratch_folder_is_short_and_where_site_sets_it(monkeypatch, tmp_path):
    here = Allocation(None, ("here",))
    job = Allocation("1", ("node1",))
    monkeypatch.setenv("LOCAL", "/nvme/alice")
    site = CONFIG.model_copy(update={"cluster": Site(scheduler="slurm", scratch="$LOCAL/x")})
    assert new_scratch(CONFIG, tmp_path, here).parent == tmp_path
    assert new_scratch(CONFIG, tmp_path, job).parent == tmp_path
    found = new_scratch(site, tmp_path, job)
    assert found.parent == Path(f"/nvme/alice/x/servemark-{os.getuid()}") and len(found.name) == 8
    assert found != new_scratch(site, tmp_path, job)


def test_node_folder_with_unset_variable_is_refused(monkeypatch):
    monkeypatch.setenv("OF_THE_NODE", "/local")
    assert on_node("local_models", "$OF_THE_NODE/models") == Path(f"/local/models/servemark-{os.getuid()}")
    monkeypatch.delenv("OF_THE_NODE")
    with pytest.raises(StageFailed, match=r"`local_models: \$OF_THE_NODE/models`") as failed:
        on_node("local_models", "$OF_THE_NODE/models")
    assert failed.value.reason == "variable_not_set"


def test_sweep_returns_each_ended_process_with_its_node(slurm, tmp_path, wait_for):
    made = launcher(tmp_path)
    left = subprocess.Popen(["sleep", "300"], env={**os.environ, **identity.mark(made.attempt)})
    try:
        wait_for(lambda: [p.pid for p in identity.marked(made.attempt)] == [left.pid])
        found = node_checks.sweep(made, 120, tmp_path / "stop.log")
        # Both nodes are this machine, so one or both find the process; the second may find it ended, without arguments.
        assert any(words.endswith(f": {left.pid} sleep 300") for words in found)
        assert all(words.split(": ", 1)[1].startswith(f"{left.pid} sleep") for words in found)
        assert {words.split(":")[0] for words in found} <= {"node1", "node2"}
        assert left.wait(60) == -9
    finally:
        left.kill()
        left.wait()


def test_failed_connection_names_the_node_that_tried_it(slurm, tmp_path, told, monkeypatch):
    made = launcher(tmp_path)
    every = [node("node1", address="127.0.0.1"), node("node2", address="127.0.0.1")]
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()
    reached = []

    def ask(launcher, spec, *rest, **_):
        with socket.create_connection(spec.reach):
            reached.append(spec.reach)
        return [survey.run_task(spec.model_copy(update={"reach": closed}))], [], ""

    asked = survey.Spec(task="look", attempt=str(made.attempt), scratch=str(made.scratch), interface="lo")
    monkeypatch.setattr(node_checks, "_run_task", ask)
    monkeypatch.setenv("SLURMD_NODENAME", "node2")
    with pytest.raises(StageFailed) as failed:
        node_checks._check_reach(stage_context(tmp_path, told, plan()), made, asked, every)
    assert failed.value.reason == "wrong_interface" and reached
    assert "node2" in failed.value.what and "node1" not in failed.value.what
