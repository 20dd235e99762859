"""Wait until the Ray cluster has the requested nodes and devices, then write its nodes. The model environment's interpreter runs this.

usage: python ray_cluster_check.py ADDRESS EXPECTED DEADLINE_S OUTPUT

EXPECTED is a JSON list of {name, address, devices}. OUTPUT gets {"nodes": [...]}, or {"missing": [sentences]} at the deadline, and
"state": resources, demands and failures as `ray status` would print them. `ray status` itself needs Ray's monitor, which servemark does not
start.
"""

import contextlib
import json
import platform
import sys
import time
from typing import Any

Node = dict[str, Any]


def compare(expected: list[Node], alive: list[Node]) -> list[str]:
    """Return one sentence for everything that differs. ``alive``: Ray's nodes, as ray.nodes() gives them."""
    there = {address(node, expected): int(node["Resources"].get("GPU", 0)) for node in alive}
    found = []
    for node in expected:
        where = f"Node {node['name']}: expected to join Ray from {node['address']} with {node['devices']} device(s)"
        if node["address"] not in there:
            found.append(f"{where}; found no such node (there are {', '.join(sorted(there)) or 'none'}).")
        elif there[node["address"]] != node["devices"]:
            found.append(f"{where}; found it with {there[node['address']]}.")
    strangers = sorted(set(there) - {node["address"] for node in expected})
    return found + [f"A node with the address {stranger} joined Ray, but it does not belong to this deployment." for stranger in strangers]


def address(node: Node, expected: list[Node]) -> str:
    """Return a node's address as in ``expected``. Ray replaces loopback by the machine's (services.py, resolve_ip_for_localhost)."""
    alone = len(expected) == 1 and expected[0]["address"].startswith("127.")
    return str(expected[0]["address"] if alone else node["NodeManagerAddress"])


def state() -> dict[str, Any]:
    """Return resources, waiting placement groups and failed nodes of the connected cluster."""
    import ray
    from ray.util.placement_group import placement_group_table

    groups = [group for group in placement_group_table().values() if group["state"] == "PENDING"]
    return {
        # Each node also has a resource with its address as the name.
        "total": {name: amount for name, amount in ray.cluster_resources().items() if not name.startswith("node:")},
        "free": {name: amount for name, amount in ray.available_resources().items() if not name.startswith("node:")},
        "waiting": [", ".join(map(str, group["bundles"].values())) for group in groups],
        "failed": [_end(node) for node in ray.nodes() if not node["Alive"]],
    }


def _end(node: Node) -> str:
    """Return the address of a node that Ray lists as dead, with Ray's reason if it states one."""
    why = node.get("DeathReasonMessage") or ""
    return f"{node['NodeManagerAddress']}: {why}" if why else str(node["NodeManagerAddress"])


def main(cluster: str, expected: list[Node], deadline_s: float, output: str) -> int:
    """Wait for the cluster and write its nodes; return the exit code."""
    import ray

    order = [node["address"] for node in expected]
    deadline = time.monotonic() + deadline_s
    missing = ["no connection"]
    while missing and time.monotonic() < deadline:
        try:
            if not ray.is_initialized():
                ray.init(address=cluster, log_to_driver=False, logging_level="ERROR")
            alive = [node for node in ray.nodes() if node["Alive"]]
            missing = compare(expected, alive)
        except (ConnectionError, RuntimeError) as error:
            # Ray raises a ConnectionError without a message while the head's own raylet has not joined yet.
            words = str(error).strip().splitlines() or [type(error).__name__]
            missing = [f"cannot connect to {cluster}: {words[0]}"]
        if missing:
            time.sleep(0.3)
    facts: dict[str, Any] = {"missing": missing} if missing else {
        "nodes": [
            {"host": n["NodeManagerHostname"], "address": n["NodeManagerAddress"], "devices": int(n["Resources"].get("GPU", 0)),
             "ray": ray.__version__, "python": platform.python_version()}
            for n in sorted(alive, key=lambda node: order.index(address(node, expected)))
        ]
    }  # fmt: skip
    if ray.is_initialized():
        # The cluster may end meanwhile. Its state is a record; it decides nothing.
        with contextlib.suppress(ConnectionError, RuntimeError):
            facts["state"] = state()
    with open(output, "w") as stream:
        json.dump(facts, stream)
    sys.stdout.writelines(f"{sentence}\n" for sentence in missing)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3]), sys.argv[4]))
