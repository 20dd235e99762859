"""Where deployments ran: nodes and roles, fabric, jobs, and how evenly replicas were used. Empty where there is nothing to show.

A deployment on one machine without a scheduler, with one server, has nothing to show here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from servemark.records import Startup
from servemark.report import formatting
from servemark.report.columns import replicas
from servemark.report.gather import RunRecords
from servemark.report.table import ordered


def places(data: RunRecords) -> list[dict[str, Any]]:
    """Return one entry a deployment: its start-up record, ``nodes`` (rows of the table) and its fabric check."""
    result = []
    for name in data.deployments:
        startup, account = data.startups.get(name), data.accounts.get(name)
        if startup is None or not startup.nodes:
            continue
        if len(startup.nodes) == 1 and len(startup.placement) < 2 and not (account and account.jobs):
            continue
        nodes = [
            {"node": node, "roles": roles(startup, index), "ray": [seen for seen in startup.ray_nodes if seen.address == node.address]}
            for index, node in enumerate(startup.nodes)
        ]
        result.append({"deployment": name, "startup": startup, "nodes": nodes, "fabric": data.fabrics.get(name)})
    return result


def roles(startup: Startup, index: int) -> list[str]:
    """Return what a node does: for each replica the devices that it has there and whether it is its head; router; client."""
    found = []
    for replica in startup.placement:
        for number, part in enumerate(replica.parts):
            if part.node == index:
                name = replica.name if len(startup.placement) > 1 else "server"
                head = ", head" if number == 0 and len(replica.parts) > 1 else ""
                found.append(f"{name}{head}: {_devices(part.devices)}")
    node = startup.nodes[index].name
    if startup.router and startup.router.node == node:
        found.append("router")
    return [*found, "client"] if startup.client_node == node else found


def _devices(numbers: Sequence[int]) -> str:
    if len(numbers) < 2:
        return f"device {numbers[0]}" if numbers else "no device"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"devices {numbers[0]}\N{EN DASH}{numbers[-1]}"
    return f"devices {', '.join(map(str, numbers))}"


def balance(data: RunRecords) -> list[dict[str, Any]]:
    """Return one row an accepted measurement of several replicas: requests of each, and the most over the mean (1 is even).

    A load that asks one replica past the router does not show how the router shares.
    """
    result = []
    for item in ordered(data.measurements):
        counts = replicas(item)
        if item.verdict != "INVALID" and item.load.ask != "replica" and (total := sum(counts.values())):
            load = formatting.load(item.load.concurrency, item.load.request_rate)
            result.append({"record": item, "load": load, "counts": counts, "imbalance": max(counts.values()) * len(counts) / total})
    return result
