"""Where deployments ran: nodes and roles, fabric, jobs, and how evenly replicas were used. Empty where there is nothing to say.

A deployment on one machine without a scheduler, with one server, has nothing to say here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from servemark.records import Fabric, JobAccount, Node, Startup, StartupPhase
from servemark.report import formatting
from servemark.report.columns import replicas
from servemark.report.data import PageData
from servemark.report.table import ordered

_EN_DASH = "\N{EN DASH}"


def places(data: PageData) -> list[dict[str, Any]]:
    """Return one entry a deployment: ``nodes`` (rows of the table), ``ray`` (whether Ray reported any) and ``facts`` (term, value)."""
    result = []
    for name in data.deployments:
        startup, fabric, account = data.startups.get(name), data.fabrics.get(name), data.accounts.get(name)
        if startup is None or not startup.nodes:
            continue
        if len(startup.nodes) == 1 and len(startup.placement) < 2 and not (account and account.jobs):
            continue
        facts = [
            ("Fabric", fabric_line(fabric) if fabric else None),
            ("Interfaces", "; ".join(fabric.interfaces) if fabric else None),
            ("Transport", "; ".join(fabric.transport) if fabric else None),
        ]
        nodes = [_node(startup, index) for index in range(len(startup.nodes))]
        result.append(
            {
                "deployment": name,
                "nodes": nodes,
                "ray": bool(startup.ray_nodes),
                "facts": [(term, value) for term, value in facts if value],
            }
        )
    return result


def _node(startup: Startup, index: int) -> dict[str, Any]:
    node = startup.nodes[index]
    ray = [
        f"{formatting.plural(seen.devices, 'device')}, Ray {seen.ray}, Python {seen.python}"
        for seen in startup.ray_nodes
        if seen.address == node.address
    ]
    return {"node": node, "roles": roles(startup, index), "software": _software(node), "ray": ray}


def roles(startup: Startup, index: int) -> list[str]:
    """Return what a node does: for each replica the devices that it has there and whether it is its head; router; client."""
    found = []
    for replica in startup.placement:
        for number, part in enumerate(replica.parts):
            if part.node == index:
                name = replica.name if len(startup.placement) > 1 else "server"
                head = ", head" if number == 0 and len(replica.parts) > 1 else ""
                found.append(f"{name}{head}: {_devices(part.devices)}")
    if startup.router and startup.router.node == startup.nodes[index].name:
        found.append("router")
    if startup.client_node == startup.nodes[index].name:
        found.append("client")
    return found


def _devices(numbers: Sequence[int]) -> str:
    if not numbers:
        return "no device"
    if len(numbers) == 1:
        return f"device {numbers[0]}"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"devices {numbers[0]}{_EN_DASH}{numbers[-1]}"
    return f"devices {', '.join(map(str, numbers))}"


def _software(node: Node) -> str:
    ray = f", Ray {node.ray}" if node.ray else ""
    return f"vLLM {node.vllm}{ray}, Python {node.python}"


def fabric_line(fabric: Fabric) -> str:
    """Return the fabric check in a line."""
    if fabric.failure:
        return f"check failed: {fabric.failure.reason}"
    if fabric.replay:
        return "not checked in this run: nothing was started"
    if not fabric.needed:
        return "one node: not needed"
    milliseconds = formatting.quantity(fabric.seconds * 1000 if fabric.seconds is not None else None, "ms")
    return (
        f"all-reduce of {formatting.size(fabric.bytes)} over {formatting.plural(fabric.ranks, 'rank')} ({fabric.backend}): "
        f"{formatting.quantity(fabric.bus_gib_per_s, 'GiB/s')} bus bandwidth, {milliseconds}"
    )


def jobs(data: PageData) -> list[dict[str, Any]]:
    """Return one entry a deployment that ran in jobs: their accounts, each with its GPU-hours, and the totals."""
    result = []
    for name, account in sorted(data.accounts.items()):
        if not account.jobs:
            continue
        result.append(
            {
                "deployment": name,
                "account": account,
                "lines": [{"job": job, "place": _place(job), "hours": _hours(job)} for job in account.jobs],
                "share": (account.gpu_hours_used / account.gpu_hours_allocated if account.gpu_hours_allocated else None),
            }
        )
    return result


def _place(job: JobAccount) -> str:
    return ", ".join(part for part in (job.partition, job.account, job.qos) if part) or formatting.NOTHING


def _hours(job: JobAccount) -> float | None:
    return None if job.gpus is None or job.elapsed_s is None else job.gpus * job.elapsed_s / 3600


def balance(data: PageData) -> list[dict[str, Any]]:
    """Return one row an accepted measurement of several replicas: requests of each, and the most over the mean (1 is even).

    A load that asks one replica past the router has nothing to say of how the router shares.
    """
    result = []
    for item in ordered(data.measurements):
        counts = replicas(item)
        total = sum(counts.values())
        if item.verdict == "INVALID" or item.load.ask == "replica" or not total:
            continue
        result.append(
            {
                "record": item,
                "load": formatting.load(item.load.concurrency, item.load.request_rate),
                "counts": counts,
                "imbalance": max(counts.values()) * len(counts) / total,
            }
        )
    return result


def replica_startups(data: PageData) -> dict[str, Any]:
    """Return start-up seconds of each replica where a deployment has several: ``phases`` are the columns, ``lines`` the rows."""
    several = [startup for startup in data.startups.values() if startup.replicas]
    phases = list(dict.fromkeys(phase.name for startup in several for start in startup.replicas for phase in start.phases))
    lines = [
        {"deployment": startup.deployment, "start": start, "cells": _cells(start.phases, phases)}
        for startup in several
        for start in startup.replicas
    ]
    return {"phases": phases, "lines": lines}


def _cells(passed: Sequence[StartupPhase], phases: Sequence[str]) -> list[float | None]:
    seconds = {phase.name: phase.seconds for phase in passed}
    return [seconds.get(phase) for phase in phases]
