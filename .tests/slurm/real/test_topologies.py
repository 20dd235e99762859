"""Every topology over two nodes, on real vLLM and Ray, through ``snakemake --profile slurm``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from real_checkout import NODES, RealCheckout, tiny

from servemark import verification
from servemark.weights import builtin

# Time until Ray's cluster check has passed, on an idle machine; printed, not asserted.
RAY_CHECKED_TARGET_S = 15.0
MODELS = {"tiny": {"source": "builtin:tiny-dense"}}

# Kinds of processes that each node must run while points are measured.
ESSENTIAL: dict[str, tuple[dict[str, Any], dict[str, set[str]]]] = {
    "ray-tp2": (
        tiny(nodes=2, tensor_parallel=2, executor="ray"),
        {"node1": {"gcs", "raylet", "worker", "server", "engine"}, "node2": {"raylet", "worker"}},
    ),
    "replicas": (
        tiny(nodes=2, replicas=2),
        {"node1": {"server", "engine"}, "node2": {"server", "engine"}},
    ),
    # Three layers over two stages: two and one.
    "mp-pp2-uneven": (
        tiny(nodes=2, pipeline_parallel=2) | {"model": "three-layers"},
        {"node1": {"server", "worker"}, "node2": {"server", "worker"}},
    ),
}
REST: dict[str, tuple[dict[str, Any], dict[str, set[str]]]] = {
    "mp-tp2": (
        tiny(nodes=2, tensor_parallel=2),
        {"node1": {"server", "worker"}, "node2": {"server", "worker"}},
    ),
    "ray-pp2": (
        tiny(nodes=2, pipeline_parallel=2, executor="ray"),
        {"node1": {"gcs", "raylet", "worker"}, "node2": {"raylet", "worker"}},
    ),
    "mp-dp2": (
        tiny(nodes=2, data_parallel=2),
        {"node1": {"server", "engine"}, "node2": {"server", "engine"}},
    ),
    "ray-dp2": (
        tiny(nodes=2, data_parallel=2, executor="ray"),
        {"node1": {"gcs", "raylet", "worker"}, "node2": {"raylet", "worker"}},
    ),
    "single": (tiny(), {"node1": {"server", "engine"}, "node2": set()}),
}


def three_layers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the tiny model with a number of layers that two stages cannot share evenly."""
    monkeypatch.setitem(builtin.CONFIGS, "tiny-three", builtin.CONFIGS["tiny-dense"] | {"num_hidden_layers": 3})
    builtin.make("tiny-three", folder)
    return {"source": str(folder)}


class Seen:
    """The processes on each node while a deployment is measured, and missing kinds."""

    def __init__(self, checkout: RealCheckout, wanted: dict[str, dict[str, set[str]]]):
        self.checkout, self.wanted = checkout, wanted
        self.kinds: dict[str, dict[str, set[str]]] = {}

    def __call__(self) -> None:
        """Inspect the deployment that is ready now, repeatedly, until every required kind has been seen."""
        for name in self.wanted:
            if not (self.checkout.results / "deployments" / name / "ready.json").exists():
                continue
            if self.kinds.get(name) and not self.lacks(name):
                continue
            found = {node: set(self.checkout.kinds(node)) for node in NODES}
            if name not in self.kinds or sum(map(len, found.values())) > sum(map(len, self.kinds[name].values())):
                self.kinds[name] = found

    def lacks(self, name: str) -> dict[str, set[str]]:
        """Return the required kinds that were not seen on a node."""
        found = self.kinds.get(name, {})
        return {node: kinds - found.get(node, set()) for node, kinds in self.wanted[name].items() if kinds - found.get(node, set())}


def measure(checkout: RealCheckout, cases: dict[str, Any], seconds: float) -> None:
    """Measure all deployments in one run; check the results and processes of each."""
    checkout.config["deployments"] = {name: deployment for name, (deployment, _) in cases.items()}
    seen = Seen(checkout, {name: wanted for name, (_, wanted) in cases.items()})
    running = checkout.start()
    deadline = time.monotonic() + seconds
    while running.process.poll() is None and time.monotonic() < deadline:
        seen()
        time.sleep(1.0)
    done = running.wait(5)
    print(f"{len(cases)} deployments in {done.seconds:.0f} s", file=sys.stderr)
    rows = checkout.rows()
    for name, (deployment, _) in cases.items():
        assert rows[name, "chat-c4-r1"]["verdict"] in ("VALID", "SUSPECT"), (rows, done.text)
        assert float(rows[name, "chat-c4-r1"]["output_tokens_per_s"]) > 0
        assert not seen.lacks(name), f"{name}: not seen {seen.lacks(name)}; seen {seen.kinds.get(name)}"
        assert_over_nodes(checkout, name, deployment["topology"])
    assert done.rc == 0, done.text
    assert all(node in checkout.report() for node in NODES), "the page says where it was measured"
    assert [verification.verify(path).wrong for path in checkout.results.glob("archive/*.tar.zst")] == [()]
    checkout.assert_nothing_left()


def assert_over_nodes(checkout: RealCheckout, name: str, topology: dict[str, Any]) -> None:
    """Assert that the records name both nodes."""
    wide = topology.get("nodes", 1) == 2
    startup, accounting = checkout.facts(name, "startup.json"), checkout.facts(name, "accounting.json")
    stopped = checkout.facts(name, "stopped.json")
    assert stopped["failure"] is None and stopped["leftovers"] == [], stopped
    assert [node["name"] for node in startup["nodes"]] == list(NODES if wide else NODES[:1])
    [job] = accounting["jobs"]
    assert (job["source"], job["state"], job["nodes"]) == ("sacct", "COMPLETED", list(NODES if wide else NODES[:1]))
    assert accounting["gpu_hours_allocated"] > accounting["gpu_hours_used"] > 0
    fabric = checkout.facts(name, "fabric.json")
    assert fabric["failure"] is None and fabric["needed"] == wide
    if wide:
        assert fabric["backend"] == "gloo" and fabric["ranks"] == 2 and fabric["bus_gib_per_s"] > 0
        assert fabric["interfaces"] == ["node1: hsn0 (10.77.0.11)", "node2: hsn0 (10.77.0.12)"]
    if topology.get("executor") == "ray":
        assert [(node["host"], node["devices"]) for node in startup["ray_nodes"]] == [("node1", 1), ("node2", 1)]
        print(f"{name}: {ray_checked_s(checkout, name, job):.1f} s from the allocation to the passed Ray cluster check "
              f"(target {RAY_CHECKED_TARGET_S:.0f} s on an idle machine)", file=sys.stderr)  # fmt: skip
    requests = checkout.points(name)["chat-c4-r1"]["replica_requests"]
    if topology.get("replicas", 1) > 1:
        assert set(requests) == {"r0", "r1"} and abs(requests["r0"] - requests["r1"]) <= 1, requests
        assert {server["node"] for server in startup["servers"]} == set(NODES) and startup["router"]["node"] == "node1"
    print(f"{name}: ready after {startup['seconds_to_first_token']:.0f} s", file=sys.stderr)


def ray_checked_s(checkout: RealCheckout, name: str, job: dict[str, Any]) -> float:
    """Return the seconds from the job's start in Slurm to the message that every node has joined Ray."""
    passed = next(
        line for line in checkout.progress()
        if line["stage"] == "start_cluster" and line["subject"] == name and "node(s) checked and ready in" in line["text"]
    )  # fmt: skip
    return float(passed["time"]) - datetime.fromisoformat(job["started_at"]).timestamp()


@pytest.mark.real_slurm
@pytest.mark.timeout(1500)
def test_ray_replicas_and_uneven_stages_over_two_nodes(
    real_checkouts: Callable[[], RealCheckout],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkout = real_checkouts()
    checkout.config["models"] = MODELS | {"three-layers": three_layers(checkout.path.parent / "three-layers", monkeypatch)}
    measure(checkout, ESSENTIAL, 1400)
    log = checkout.log("ray-tp2", "server.log")
    assert "Connected to Ray cluster" in log and "world_size=2" in log, "the real Ray executor, two ranks"


@pytest.mark.full
@pytest.mark.real_slurm
@pytest.mark.timeout(900)
def test_two_nodes_by_ray_with_the_cluster_file_of_slurm_sandbox(real_checkouts: Callable[[], RealCheckout]) -> None:
    """As with ``make slurm-sandbox``: only the cluster file that ``sandbox start`` writes, by its path."""
    checkout = real_checkouts()
    checkout.config["cluster"] = str(checkout.cluster.cluster_file)
    del checkout.config["timeouts"]
    measure(checkout, {"ray-tp2": ESSENTIAL["ray-tp2"]}, 800)


@pytest.mark.real_slurm_full
@pytest.mark.timeout(2400)
def test_every_other_topology(real_checkouts: Callable[[], RealCheckout]) -> None:
    measure(real_checkouts(), REST, 2300)
