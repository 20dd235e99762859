"""Faults of nodes, networks and processes on real vLLM and Ray over two nodes: named, bounded, cleaned up, completed by a rerun."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fault_table import Injury
from real_checkout import NODES, RealCheckout, tiny
from sandbox import Sandbox

from integration.harness import SNAKEMAKE, Running, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

# From a fault in a live deployment to the end of the run: no_progress, stop, report and archive.
LIVE_END_S = 150.0
# From the start of the run, for a fault that start_cluster finds: job, survey of nodes, report.
EARLY_END_S = 240.0
# A loaded machine ends twenty processes on two nodes within this time.
GONE_S = 45.0


@pytest.fixture
def checkout(real_checkouts: Callable[[], RealCheckout]) -> RealCheckout:
    """Return a checkout with two ranks on two nodes by Ray: a short point first, then one long enough to be disturbed."""
    made = real_checkouts()
    made.config["deployments"] = {"a": tiny(nodes=2, tensor_parallel=2, executor="ray")}
    one = made.config["workloads"]["chat"]
    made.config["workloads"] = {"brief": one | {"requests": 8, "concurrency": 2}, "long": one | {"requests": 400}}
    return made


def forget_rejections(checkout: RealCheckout) -> None:
    """Delete rejected records, so that two faults with one reason at the same point do not count as a permanent gap."""
    shutil.rmtree(checkout.results / "rejected", ignore_errors=True)


@contextmanager
def another_version(cluster: Sandbox, node: str, metadata: Path, version: str, folder: Path) -> Iterator[None]:
    """Show another version of a package on one node, without a change on the disk.

    Args:
        folder: one that the node sees (it does not see this machine's /tmp).
    """
    other = folder / "METADATA"
    other.write_text(re.sub(r"^Version: .*$", f"Version: {version}", metadata.read_text(), count=1, flags=re.MULTILINE))
    cluster.run(["mount", "--bind", str(other), str(metadata)], node=node, check=True)
    try:
        yield
    finally:
        cluster.run(["umount", str(metadata)], node=node, check=True)


def site_packages(checkout: RealCheckout) -> Path:
    python = Path(checkout.record("environments/cpu/environment.json")["python"])
    (found,) = python.parents[1].glob("lib/python3.*/site-packages")
    return found


def test_faulty_nodes_are_found_before_a_model_is_loaded(checkout: RealCheckout, new_injury: Callable[[], Injury]) -> None:
    def found(fault: str, pattern: str) -> None:
        injury = new_injury()
        injury.of(fault, pattern)
        forget_rejections(checkout)
        before = len(checkout.progress())
        running = checkout.start()
        done = injury.ends(checkout, running, EARLY_END_S, since=time.monotonic(), gone_s=GONE_S)
        assert done.rc == 1
        lines = [line for line in checkout.progress()[before:] if line["subject"] == "a"]
        begin = next(line["time"] for line in lines if line["stage"] == "start_cluster")
        end = next(line["time"] for line in lines if "not measured" in line["text"])
        print(
            f"{fault}: {end - begin:.1f} s from the look at the nodes to the verdict; {done.seconds:.0f} s in all",
            file=sys.stderr,
        )
        assert end - begin < 60
        assert not any(line["stage"] == "serve_model" for line in lines), "nothing was loaded"

    checkout.site["interface"] = "ib0"
    found(
        "no such interface",
        r"Node node[12]: expected an interface ib0, with an IPv4 address; found .*hsn0 \(10\.77\.0\.1[12]\)",
    )
    checkout.site["interface"] = "eth0"
    found(
        "an interface that leads nowhere",
        r"Node node2: expected a connection between 10\.78\.0\.12 \(eth0\) and 10\.78\.0\.11[^;]*; found: [^\n]+",
    )
    del checkout.site["interface"]
    packages = site_packages(checkout)
    with another_version(checkout.cluster, "node2", next(packages.glob("ray-*.dist-info/METADATA")), "2.59.1", checkout.path):
        found("another Ray on one node", r"Node node2: expected Ray [\d.]+, as on node1; found 2\.59\.1")
    with another_version(checkout.cluster, "node2", next(packages.glob("vllm-*.dist-info/METADATA")), "0.31.9", checkout.path):
        found("another vLLM on one node", r"Node node2: expected (?i:vllm) [\w.+]+, as on node1; found 0\.31\.9")
    assert checkout.results.joinpath("ledger").is_dir() is False or not list(checkout.results.glob("ledger/*/*.json"))


def test_missing_nodes_or_devices_are_refused_before_submission(checkout: RealCheckout, new_injury: Callable[[], Injury]) -> None:
    jobs = len(checkout.cluster.jobs())
    for fault, pattern, change in (
        (
            "GPUs that no node has",
            r"Slurm refuses the request \(see [^)]*gpus_per_node[^)]*\): [^\n]+",
            {"gpus_per_node": 8},
        ),
        ("more nodes than there are", r"Slurm refuses the request \(see [^)]*topology.nodes[^)]*\): [^\n]+", {}),
    ):
        injury = new_injury()
        injury.of(fault, pattern)
        before = dict(checkout.site)
        checkout.site |= change
        if not change:
            checkout.config["deployments"]["a"] = tiny(nodes=3, replicas=3)
        done = injury.ends(checkout, checkout.start(), 60, since=time.monotonic(), gone_s=GONE_S)
        assert done.rc == 2
        checkout.site = before
    assert len(checkout.cluster.jobs()) == jobs, "nothing was submitted"


def test_too_small_allocation_is_named(checkout: RealCheckout, new_injury: Callable[[], Injury]) -> None:
    """A run by hand inside a job that is smaller than the topology; then servemark submits nothing itself."""
    over_two = {"nodes": 2, "tensor_parallel": 2, "executor": "ray"}
    cases = (
        ("a node too few", r"The allocation has 1 node\(s\), node1; expected 2\.", 4, over_two),
        (
            "a GPU too few",
            r"Node node1: expected 2 device\(s\) for ranks; found 1 \(CUDA_VISIBLE_DEVICES is '0' there\)\.",
            1,
            {"tensor_parallel": 2},
        ),
    )
    for fault, pattern, gpus, topology in cases:
        injury = new_injury()
        injury.of(fault, pattern)
        forget_rejections(checkout)
        checkout.config["deployments"]["a"] = tiny(**topology)
        checkout.write()
        output = checkout.path.parent / "by-hand.txt"
        output.unlink(missing_ok=True)
        argv = [str(SNAKEMAKE), "--profile", "profiles/local", "--configfile", "my.yaml"]
        begin = time.monotonic()
        done = checkout.cluster.run(
            ["sbatch", "--wait", "--nodelist=node1", f"--gres=gpu:{gpus}", "--mem=0", f"--output={output}", "--wrap", " ".join(argv)],
            cwd=checkout.path, timeout=EARLY_END_S,
        )  # fmt: skip
        injury.end_s = time.monotonic() - begin
        assert done.returncode == 1, (done, output.read_text())
        injury.check_reason(output.read_text())
        checkout.assert_nothing_left(GONE_S)
        injury.left = "nothing"


def test_ranks_that_cannot_connect_are_explained(checkout: RealCheckout, new_injury: Callable[[], Injury]) -> None:
    """First without the variables of the sandbox's cluster file, then with a separate /dev/shm on each node, as on real nodes."""
    injury = new_injury()
    injury.of(
        "nodes that share /dev/shm and no folder of sockets",
        r"The ranks did not connect to each other\.[^\n]+VLLM_RPC_BASE_PATH[^\n]+",
    )
    variables = checkout.site.pop("variables")
    checkout.config["timeouts"]["stall"] = 60.0
    done = injury.ends(checkout, checkout.start(), 400, since=time.monotonic(), gone_s=GONE_S)
    assert done.rc == 1
    failure = checkout.failure("a")
    assert failure and failure["reason"] == "ranks_not_connected", failure

    injury = new_injury()
    injury.of(
        "nodes with a /dev/shm each, ranks on CPU",
        r"A rank on CPU did not find the shared memory of another rank\.[^\n]+",
    )
    forget_rejections(checkout)
    checkout.site["variables"] = variables
    checkout.cluster.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], node="node2", check=True)
    try:
        done = injury.ends(checkout, checkout.start(), 400, since=time.monotonic(), gone_s=GONE_S)
    finally:
        checkout.cluster.run(["umount", "--lazy", "/dev/shm"], node="node2", check=True)
    assert done.rc == 1
    failure = checkout.failure("a")
    assert failure and failure["reason"] == "cpu_ranks_without_shared_memory", failure


def finished(checkout: RealCheckout, since: int) -> int:
    """Return the number of finished requests of the long point in the last line of progress."""
    states = [line["point"] for line in checkout.progress()[since:] if "point" in line]
    return max((state["finished"] for state in states if state["name"] == "long-c4-r1" and state["phase"] == "measuring"), default=0)


def measuring(checkout: RealCheckout) -> Running:
    """Start a run and wait until the long point generates tokens."""
    since = len(checkout.progress())
    running = checkout.start()

    def busy() -> bool:
        assert running.process.poll() is None, running.text
        return finished(checkout, since) > 8

    wait_until(busy, 500, "the long point generates tokens")
    return running


def one_of(checkout: RealCheckout, node: str, kind: str):
    found = checkout.kinds(node)
    assert found.get(kind), f"no {kind} on {node}; there are { ({k: len(v) for k, v in found.items()}) }"
    return found[kind][0]


def kill(node: str, kind: str) -> Callable[[RealCheckout], None]:
    return lambda checkout: one_of(checkout, node, kind).kill()


DIED = r"The server died during long-c4-r1: {} [^\n]*exited with code \d+: [^\n]+"
# Fault, action, the measurement's reason, what the run must print.
LIVE = (
    ("Ray's head loses its raylet", kill("node1", "raylet"), "server_died", DIED.format("ray-head")),
    ("the other node loses its raylet", kill("node2", "raylet"), "server_died", DIED.format("ray-n1")),
    ("a rank is killed", kill("node2", "worker"), "server_died", DIED.format("server")),
    ("the engine is killed", kill("node1", "engine"), "server_died", DIED.format("server")),
    (
        "the network between the nodes is cut",
        lambda checkout: checkout.cluster.cut_network(*NODES),
        "server_hung|server_died",
        r"The server (hung|died) during long-c4-r1: [^\n]+",
    ),
)


def test_faults_of_a_live_deployment(checkout: RealCheckout, new_injury: Callable[[], Injury]) -> None:
    """Disturb successive starts of one deployment; then a plain run measures only the missing points."""
    brief: dict[str, str] = {}
    for fault, disturb, reason, pattern in LIVE:
        injury = new_injury()
        injury.of(fault, pattern)
        forget_rejections(checkout)
        running = measuring(checkout)
        disturb(checkout)
        try:
            done = injury.ends(checkout, running, LIVE_END_S, since=time.monotonic(), gone_s=GONE_S)
        finally:
            checkout.cluster.restore_network()
        print(f"{fault}: {injury.end_s:.0f} s to the end; {injury.seen}", file=sys.stderr)
        assert done.rc == 1
        rejected = checkout.rejected()
        assert set(rejected) == {"a/long-c4-r1.1"}, "what was finished is kept"
        codes = {found["code"] for found in rejected["a/long-c4-r1.1"]["reasons"]}
        assert any(re.fullmatch(reason, code) for code in codes), codes
        assert rejected["a/long-c4-r1.1"]["failure"]["detail"]
        started = {name: when for name, when in checkout.started_at("a").items() if name.startswith("brief")}
        assert started == (brief or started), "a finished point is not measured again"
        brief = started

    injury = new_injury()
    injury.of("scancel while the model is loaded", r"cancelled[^\n]*")
    forget_rejections(checkout)
    since = len(checkout.progress())
    running = checkout.start()
    wait_until(lambda: any(line["stage"] == "await_ready" for line in checkout.progress()[since:]), 300, "vLLM starts")
    checkout.cluster.run(["scancel", checkout.job()["job_id"]], check=True)
    done = injury.ends(checkout, running, 90, since=time.monotonic(), gone_s=GONE_S)
    assert done.rc == 1

    again = checkout.run(seconds=700)
    injury.completed_by(again)
    assert checkout.points("a")["brief-c2-r1"]["started_at"] == brief["brief-c2-r1"]
    assert checkout.rows()["a", "long-c4-r1"]["verdict"] in ("VALID", "SUSPECT")
    checkout.assert_nothing_left()
