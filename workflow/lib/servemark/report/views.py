"""Turn records into the values that the templates print: headline results, medians, clients, nodes, balance of replicas."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from servemark.measurement import reasons, thresholds
from servemark.records import Hardware, Measurement, Startup
from servemark.records.restarts import configured
from servemark.report import comparable, formatting
from servemark.report.columns import STEADY
from servemark.report.gather import RunRecords
from servemark.report.measured import ordered, replicas
from servemark.report.table import rows

_OUTPUT = "output_tokens_per_s_median"


def state(points: Iterable[Mapping[str, Any]]) -> str:
    """Return the beginning of the names of the results that these load points can be compared by: ``STEADY``, or nothing (the whole run).

    The steady state of one is not compared with the whole run of another.
    """
    accepted = [point for point in points if point["repetitions_accepted"]]
    return STEADY if accepted and all(point[STEADY + _OUTPUT] is not None for point in accepted) else ""


def verdicts(data: RunRecords) -> dict[str, int]:
    """Return the number of measurements of each verdict."""
    found = [item.verdict for item in data.measurements]
    return {verdict: found.count(verdict) for verdict in ("VALID", "SUSPECT", "INVALID")}


def loosened(measurements: Iterable[Measurement]) -> str:
    """Return the thresholds of accepted measurements that pass more than the defaults, such as ``min_requests_per_slot=2``."""
    found = (thresholds.looser(item.thresholds) for item in measurements if item.verdict != "INVALID")
    return "; ".join(dict.fromkeys(filter(None, found)))


def explained(measurements: Iterable[Measurement]) -> list[reasons.Row]:
    """Return the rows of the table of reasons for the reasons of these measurements."""
    found = {reason.code for item in measurements for reason in item.reasons}
    return [row for row in reasons.TABLE.values() if row.code in found and row.severities]


def objections(measurements: Iterable[Measurement]) -> list[dict[str, Any]]:
    """Return the number of SUSPECT or INVALID measurements of each verdict and reason code, largest first."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for item in measurements:
        if item.verdict != "VALID":
            codes = {reason.code for reason in item.reasons} | ({item.failure.reason} if item.failure else set())
            for code in codes or {formatting.NOTHING}:
                found[item.verdict, code].append(configured(item.deployment))
    return [
        {"verdict": verdict, "code": code, "measurements": len(names), "deployments": len(set(names))}
        for (verdict, code), names in sorted(found.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    ]


def medians(aggregated: pd.DataFrame) -> list[dict[str, Any]]:
    """Return one row per deployment, workload and load, with the load in words and one verdict for all repetitions."""
    return [
        {**row, "load": formatting.load(row["concurrency"], row["request_rate_per_s"]), "verdict": _verdict(row)}
        for row in rows(aggregated)
    ]


def _verdict(row: Mapping[str, Any]) -> str:
    if row["repetitions_accepted"] == 0:
        return "INVALID"
    return "SUSPECT" if row["repetitions_suspect"] else "VALID"


def headlines(points: Sequence[Mapping[str, Any]], data: RunRecords) -> list[dict[str, Any]]:
    """Return for each workload one card per deployment: its load point with the highest median output throughput (``best``).

    ``state`` begins the names of the results by which the load points of a workload are compared (``state``). ``share`` is this throughput
    over that of the best comparable deployment. ``differs`` states in what a deployment differs from those that it cannot be compared with
    (``comparable``); "" if all can be compared. ``per_device`` is the throughput over ``devices``; it is None where deployments use the
    same number. ``lengths`` are the (input, output) tokens of the requests, ``prefix`` the tokens of a shared prefix.
    """
    planned = [(plan, load) for plan in data.plans.values() for load in plan.loads]
    asked = [(item.deployment, item.load) for item in data.measurements] + [(plan.deployment, load) for plan, load in planned]
    asked = [(configured(name), load) for name, load in asked]
    sizes = {plan.topology.world_size for plan in data.plans.values()}
    sizes |= {plan.topology.asked(load.ask).world_size for plan, load in planned}
    # Ranks on a CPU share it, so a result per rank has no meaning.
    differ = len(sizes) > 1 and data.machine.accelerator != "cpu"
    by_workload: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for point in points:
        by_workload[point["workload"]].append(point)
    identities = comparable.identities(data)
    result = []
    for workload in sorted({load.workload for _, load in asked}):
        loads = [load for _, load in asked if load.workload == workload]
        prefix = state(by_workload[workload])
        output = prefix + _OUTPUT
        best: dict[str, Mapping[str, Any]] = {}
        for point in by_workload[workload]:
            name = point["deployment"]
            if point[output] is not None and (name not in best or point[output] > best[name][output]):
                best[name] = point
        differences, tops = comparable.differences(data, sorted(name for name in best if name in data.plans)), dict[Any, float]()
        for name, point in best.items():
            tops[identities.get(name)] = max(tops.get(identities.get(name), 0.0), point[output])
        cards = []
        for name in sorted({deployment for deployment, load in asked if load.workload == workload}):
            top_one, plan = best.get(name), data.plans.get(name)
            devices = plan.asked_by(workload).world_size if plan else None
            identity = identities.get(name)
            share = top_one[output] / tops[identity] if top_one and tops[identity] > 0 else None
            each = top_one[output] / devices if differ and top_one and devices else None
            card = {"deployment": name, "best": top_one, "share": share, "devices": devices, "per_device": each}
            cards.append(card | {"differs": differences.get(identity, "") if identity else ""})
        result.append(
            {
                "workload": workload,
                "state": prefix,
                "cards": cards,
                "comparable": not any(card["differs"] for card in cards),
                "lengths": sorted({(load.prompts.input_tokens, load.prompts.output_tokens) for load in loads}),
                "prefix": max(load.prefix_tokens for load in loads),
                "ask": loads[0].ask,
            }
        )
    return result


def hardware_line(hardware: Hardware) -> str:
    """Return one line about GPUs, CPUs and memory."""
    cpus = formatting.plural(hardware.cpu_count, "logical CPU")
    host = f"{cpus} ({hardware.cpu_model}), {formatting.quantity(hardware.memory_gib, 'GiB')}"
    if hardware.accelerator == "cpu":
        return f"No GPU; {host}"
    names = dict.fromkeys(f"{gpu.name}, {formatting.number(gpu.memory_mib / 1024)} GiB" for gpu in hardware.gpus)
    return f"{len(hardware.gpus)} \N{MULTIPLICATION SIGN} {' / '.join(names)}; {host}"


def clients(data: RunRecords) -> list[dict[str, Any]]:
    """Return the client processes of each deployment, workload and load, in the order of the measurements.

    ``cpu`` is the CPU time of the busiest process in any accepted repetition, in per cent of a core; None if it was not recorded.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for item in data.measurements:
        load = item.load
        words = formatting.load(load.concurrency, load.request_rate)
        row = {"deployment": configured(item.deployment), "workload": load.workload, "load": words, "clients": load.clients}
        kept = found.setdefault(tuple(row.values()), {**row, "ask": load.ask, "cpu": None})
        if item.client_cpu is not None and item.verdict != "INVALID":
            kept["cpu"] = max(kept["cpu"] or 0.0, 100 * item.client_cpu)
    return list(found.values())


def places(data: RunRecords) -> list[dict[str, Any]]:
    """Return nodes, start-up record and fabric check of each deployment with several nodes or replicas or with a Slurm job."""
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
    """Return the roles of a node: the devices of each replica, whether it is the replica's head, router, client."""
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
    """Return the requests of each replica for each accepted measurement through the router.

    ``imbalance`` is the largest number over the mean: 1 is even.
    """
    result = []
    for item in ordered(data.measurements):
        counts = replicas(item)
        if item.verdict != "INVALID" and item.load.ask != "replica" and (total := sum(counts.values())):
            load = formatting.load(item.load.concurrency, item.load.request_rate)
            place = {
                "deployment": configured(item.deployment),
                "workload": item.load.workload,
                "load": load,
                "repetition": item.load.repetition,
            }
            result.append({**place, "counts": counts, "imbalance": max(counts.values()) * len(counts) / total})
    return result
