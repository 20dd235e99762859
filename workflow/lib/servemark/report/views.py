"""From records to what the template prints: headline figures, medians, start-up, memory, setup. No markup here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from servemark.machine import visible_gpus
from servemark.measurement import reasons
from servemark.records import Hardware, Manifest, Measurement
from servemark.report import formatting, starting
from servemark.report.data import PageData
from servemark.report.table import rows


def verdicts(data: PageData) -> dict[str, int]:
    """Return how many measurements got each verdict."""
    counts = {"VALID": 0, "SUSPECT": 0, "INVALID": 0}
    for item in data.measurements:
        counts[item.verdict] += 1
    return counts


def explained(measurements: Iterable[Measurement]) -> list[reasons.Row]:
    """Return the rows of the table of reasons that these verdicts give, in the order of the table."""
    found = {reason.code for item in measurements for reason in item.reasons}
    return [row for row in reasons.TABLE.values() if row.code in found and row.severities]


def objections(measurements: Iterable[Measurement]) -> list[dict[str, Any]]:
    """Return how many measurements each reason made SUSPECT or INVALID: one row a verdict and reason code, most first."""
    found: dict[tuple[str, str], set[str]] = {}
    counts: dict[tuple[str, str], int] = {}
    for item in measurements:
        if item.verdict == "VALID":
            continue
        codes = {reason.code for reason in item.reasons} | ({item.failure.reason} if item.failure else set())
        for code in codes or {formatting.NOTHING}:
            counts[item.verdict, code] = counts.get((item.verdict, code), 0) + 1
            found.setdefault((item.verdict, code), set()).add(item.deployment)
    return [
        {"verdict": verdict, "code": code, "measurements": count, "deployments": len(found[verdict, code])}
        for (verdict, code), count in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
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


def headlines(points: Sequence[Mapping[str, Any]], data: PageData) -> list[dict[str, Any]]:
    """Return per workload, the load with the highest accepted median output throughput of each deployment asked to run it.

    ``share`` is that figure over the best deployment's; ``best`` is None where a deployment has no accepted figure.
    ``per_device`` is that figure over the ``devices`` that the workload asks, where they are not as many everywhere.
    ``lengths`` are the (input, output) tokens of the workload's requests, ``prefix`` how many all prompts begin with before their own,
    ``ask`` whom they ask.
    """
    planned = [(plan, load) for plan in data.plans.values() for load in plan.loads]
    asked = [(item.deployment, item.load) for item in data.measurements]
    asked += [(plan.deployment, load) for plan, load in planned]
    sizes = {plan.topology.world_size for plan in data.plans.values()}
    sizes |= {plan.topology.asked(load.ask).world_size for plan, load in planned}
    # Ranks on a CPU share it: there, a share of each would say nothing.
    differ = len(sizes) > 1 and data.hardware.accelerator != "cpu"
    result = []
    for workload in sorted({load.workload for _, load in asked}):
        best: dict[str, Mapping[str, Any]] = {}
        for point in points:
            value = point["output_tokens_per_s_median"]
            if point["workload"] != workload or value is None:
                continue
            known = best.get(point["deployment"])
            if known is None or value > known["output_tokens_per_s_median"]:
                best[point["deployment"]] = point
        devices = {name: plan.asked_by(workload).world_size for name, plan in data.plans.items()}
        top = max((point["output_tokens_per_s_median"] for point in best.values()), default=0.0)
        cards = [
            {
                "deployment": name,
                "best": best.get(name),
                "share": best[name]["output_tokens_per_s_median"] / top if name in best and top > 0 else None,
                "devices": devices.get(name),
                "per_device": (
                    best[name]["output_tokens_per_s_median"] / devices[name] if differ and name in best and name in devices else None
                ),
            }
            for name in sorted({deployment for deployment, load in asked if load.workload == workload})
        ]
        loads = [load for _, load in asked if load.workload == workload]
        lengths = sorted({(load.prompts.input_tokens, load.prompts.output_tokens) for load in loads})
        prefix, ask = max(load.prefix_tokens for load in loads), loads[0].ask
        result.append({"workload": workload, "cards": cards, "lengths": lengths, "prefix": prefix, "ask": ask})
    return result


def summary(data: PageData, headline: Sequence[Mapping[str, Any]], gap_count: int) -> str:
    """Return the run in a sentence or two."""
    models = formatting.plural(len({plan.model for plan in data.plans.values()} or data.manifests), "model")
    count = verdicts(data)
    accepted = count["VALID"] + count["SUSPECT"]
    text = (
        f"{formatting.plural(len(data.deployments), 'deployment')} of {models}: "
        f"{accepted} of {formatting.plural(len(data.measurements), 'measurement')} accepted"
    )
    text += f", {count['SUSPECT']} of them SUSPECT" if count["SUSPECT"] else ""
    text += f"; {formatting.plural(gap_count, 'gap')}." if gap_count else "; no gaps."
    for group in headline:
        tops = [card for card in group["cards"] if card["share"] == 1.0]
        if tops and len(headline) == 1:
            best = tops[0]["best"]
            figure = formatting.quantity(best["output_tokens_per_s_median"], "output tokens/s")
            mark = " (SUSPECT)" if best["verdict"] == "SUSPECT" else ""
            text += f" Highest throughput: {figure} from {tops[0]['deployment']} at {best['load']}{mark}."
    return text


def hardware_line(hardware: Hardware) -> str:
    """Return the machine in one line."""
    cpus = formatting.plural(hardware.cpu_count, "logical CPU")
    host = f"{cpus} ({hardware.cpu_model}), {formatting.quantity(hardware.memory_gib, 'GiB')}"
    if hardware.accelerator == "cpu":
        return f"No GPU; {host}"
    names = dict.fromkeys(f"{gpu.name}, {formatting.number(gpu.memory_mib / 1024)} GiB" for gpu in hardware.gpus)
    return f"{len(hardware.gpus)} \N{MULTIPLICATION SIGN} {' / '.join(names)}; {host}"


def hardware_facts(hardware: Hardware) -> list[tuple[str, str]]:
    """Return the machine in detail: (name, value)."""
    facts = [
        ("Host", hardware.host),
        ("Accelerator", "none (CPU)" if hardware.accelerator == "cpu" else "CUDA"),
        ("GPUs", ", ".join(f"{gpu.name} ({formatting.number(gpu.memory_mib / 1024)} GiB)" for gpu in hardware.gpus)),
        ("Hidden", visible_gpus.hiding(hardware)),
        ("Worked out", "; ".join(f"{what}: {source}" for what, source in hardware.worked_out.items())),
        ("Driver", hardware.driver),
        ("Highest CUDA version", hardware.cuda),
        (
            "CPU",
            f"{hardware.cpu_model}, {formatting.plural(hardware.cpu_count, 'logical CPU')}, {hardware.architecture}",
        ),
        ("Memory", formatting.quantity(hardware.memory_gib, "GiB")),
        ("/dev/shm", formatting.quantity(hardware.shm_gib, "GiB")),
        ("System", f"{hardware.os}, kernel {hardware.kernel}, glibc {hardware.glibc}"),
        ("Interfaces", ", ".join(f"{item.name} {item.address}" for item in hardware.interfaces)),
        ("Limits", f"{hardware.nofile} open files, {hardware.nproc} processes"),
        ("Probed", hardware.probed_at),
    ]
    return [(name, value) for name, value in facts if value]


def model_line(manifest: Manifest) -> str:
    """Return parameters, weight size and architecture of a model."""
    kind = ", ".join(str(item) for item in manifest.config.get("architectures") or ())
    weights = "random weights (speed only)" if manifest.weight_bytes is None else f"{formatting.size(manifest.weight_bytes)} of weights"
    parts = [f"{formatting.amount(manifest.parameters)} parameters", weights, kind]
    return ", ".join(part for part in parts if part)


def clients(data: PageData) -> list[dict[str, Any]]:
    """Return how each load was made: one row a deployment, workload and load, in the order of the measurements.

    ``cpu`` is what the busiest process used in any accepted repetition, per cent of a core; None where it is not known.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for item in data.measurements:
        load = item.load
        words = formatting.load(load.concurrency, load.request_rate)
        row: dict[str, Any] = {"deployment": item.deployment, "workload": load.workload, "load": words}
        row["clients"] = load.clients
        row = found.setdefault(tuple(row.values()), {**row, "ask": load.ask, "cpu": None})
        if item.client_cpu is not None and item.verdict != "INVALID":
            row["cpu"] = max(row["cpu"] or 0.0, 100 * item.client_cpu)
    return list(found.values())


def startup_table(data: PageData) -> dict[str, Any]:
    """Return start-up seconds per deployment, one column a segment, in the order of the plot."""
    startups = list(data.startups.values())
    phases = starting.phases(startups)
    lines = []
    for startup in startups:
        segments = dict(starting.segments(startup))
        lines.append({"startup": startup, "cells": [segments.get(phase) for phase in phases], "caches": starting.caches(startup)})
    return {"phases": phases, "lines": lines}


def memory(data: PageData) -> list[dict[str, Any]]:
    """Return planned against observed memory: one row a deployment and figure; ``ratio`` is observed over planned."""
    result = []
    for name in data.deployments:
        plan, startup = data.plans.get(name), data.startups.get(name)
        estimate = plan.estimate if plan else None
        for figure, label in formatting.MEMORY.items():
            planned = getattr(estimate, figure) if estimate else None
            observed = startup.observed.get(figure) if startup else None
            if planned is None and observed is None:
                continue
            ratio = startup.differences.get(figure) if startup else None
            result.append({"deployment": name, "label": label, "planned": planned, "observed": observed, "ratio": ratio})
    return result
