"""From records to what the template prints: headline figures, medians, clients, memory. No markup here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from servemark.measurement import reasons
from servemark.records import Hardware, Measurement
from servemark.report import formatting
from servemark.report.gather import RunRecords
from servemark.report.table import rows

_OUTPUT = "output_tokens_per_s_median"


def verdicts(data: RunRecords) -> dict[str, int]:
    """Return how many measurements got each verdict."""
    found = [item.verdict for item in data.measurements]
    return {verdict: found.count(verdict) for verdict in ("VALID", "SUSPECT", "INVALID")}


def explained(measurements: Iterable[Measurement]) -> list[reasons.Row]:
    """Return the rows of the table of reasons that these verdicts give, in the order of the table."""
    found = {reason.code for item in measurements for reason in item.reasons}
    return [row for row in reasons.TABLE.values() if row.code in found and row.severities]


def objections(measurements: Iterable[Measurement]) -> list[dict[str, Any]]:
    """Return how many measurements each reason made SUSPECT or INVALID: one row a verdict and reason code, most first."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for item in measurements:
        if item.verdict != "VALID":
            codes = {reason.code for reason in item.reasons} | ({item.failure.reason} if item.failure else set())
            for code in codes or {formatting.NOTHING}:
                found[item.verdict, code].append(item.deployment)
    return [
        {"verdict": verdict, "code": code, "measurements": len(names), "deployments": len(set(names))}
        for (verdict, code), names in sorted(found.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    ]


def medians(aggregated: pd.DataFrame) -> list[dict[str, Any]]:
    """Return one row a deployment, workload and load, with the load in words and a verdict over its accepted repetitions."""
    return [
        {**row, "load": formatting.load(row["concurrency"], row["request_rate_per_s"]), "verdict": _verdict(row)}
        for row in rows(aggregated)
    ]


def _verdict(row: Mapping[str, Any]) -> str:
    if row["repetitions_accepted"] == 0:
        return "INVALID"
    return "SUSPECT" if row["repetitions_suspect"] else "VALID"


def headlines(points: Sequence[Mapping[str, Any]], data: RunRecords) -> list[dict[str, Any]]:
    """Return per workload, the load with the highest accepted median output throughput of each deployment asked to run it (``best``).

    ``share`` is that figure over the best deployment's, ``per_device`` over the ``devices`` that the workload asks, where these differ.
    ``lengths`` are the (input, output) tokens of the workload's requests, ``prefix`` how many all prompts begin with before their own.
    """
    planned = [(plan, load) for plan in data.plans.values() for load in plan.loads]
    asked = [(item.deployment, item.load) for item in data.measurements] + [(plan.deployment, load) for plan, load in planned]
    sizes = {plan.topology.world_size for plan in data.plans.values()}
    sizes |= {plan.topology.asked(load.ask).world_size for plan, load in planned}
    # Ranks on a CPU share it: there, a share of each would mean nothing.
    differ = len(sizes) > 1 and data.machine.accelerator != "cpu"
    best: dict[tuple[str, str], Mapping[str, Any]] = {}
    for point in points:
        key = point["workload"], point["deployment"]
        if point[_OUTPUT] is not None and (key not in best or point[_OUTPUT] > best[key][_OUTPUT]):
            best[key] = point
    result = []
    for workload in sorted({load.workload for _, load in asked}):
        loads = [load for _, load in asked if load.workload == workload]
        top = max((point[_OUTPUT] for (of, _), point in best.items() if of == workload), default=0.0)
        cards = []
        for name in sorted({deployment for deployment, load in asked if load.workload == workload}):
            top_one, plan = best.get((workload, name)), data.plans.get(name)
            devices = plan.asked_by(workload).world_size if plan else None
            share = top_one[_OUTPUT] / top if top_one and top > 0 else None
            each = top_one[_OUTPUT] / devices if differ and top_one and devices else None
            cards.append({"deployment": name, "best": top_one, "share": share, "devices": devices, "per_device": each})
        result.append(
            {
                "workload": workload,
                "cards": cards,
                "lengths": sorted({(load.prompts.input_tokens, load.prompts.output_tokens) for load in loads}),
                "prefix": max(load.prefix_tokens for load in loads),
                "ask": loads[0].ask,
            }
        )
    return result


def hardware_line(hardware: Hardware) -> str:
    """Return the machine in one line."""
    cpus = formatting.plural(hardware.cpu_count, "logical CPU")
    host = f"{cpus} ({hardware.cpu_model}), {formatting.quantity(hardware.memory_gib, 'GiB')}"
    if hardware.accelerator == "cpu":
        return f"No GPU; {host}"
    names = dict.fromkeys(f"{gpu.name}, {formatting.number(gpu.memory_mib / 1024)} GiB" for gpu in hardware.gpus)
    return f"{len(hardware.gpus)} \N{MULTIPLICATION SIGN} {' / '.join(names)}; {host}"


def clients(data: RunRecords) -> list[dict[str, Any]]:
    """Return how each load was made: one row a deployment, workload and load, in the order of the measurements.

    ``cpu`` is what the busiest process used in any accepted repetition, per cent of a core; None where it is not known.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for item in data.measurements:
        load = item.load
        words = formatting.load(load.concurrency, load.request_rate)
        row = {"deployment": item.deployment, "workload": load.workload, "load": words, "clients": load.clients}
        kept = found.setdefault(tuple(row.values()), {**row, "ask": load.ask, "cpu": None})
        if item.client_cpu is not None and item.verdict != "INVALID":
            kept["cpu"] = max(kept["cpu"] or 0.0, 100 * item.client_cpu)
    return list(found.values())
