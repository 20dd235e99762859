"""Builders of other parts of a report: latency bins, timelines, attempts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from servemark import records
from servemark.report.attempts import Attempt
from servemark.report.distributions import Distribution, bins


def samples(summary: records.Summary) -> np.ndarray:
    """Return as many values as the summary counts, densest at its median; every call returns the same ones."""
    steps = (np.arange(summary.count) + 0.5) / summary.count
    return summary.p50 * np.exp(0.12 * np.log(steps / (1 - steps)))


def distributions(measurements: Sequence[records.Measurement]) -> list[Distribution]:
    """Return the bins of every load, as if from per-request results with these latencies."""
    loads: dict[tuple, list[records.Measurement]] = {}
    for item in measurements:
        if item.verdict != "INVALID":
            loads.setdefault((item.load.workload, item.load.concurrency, item.load.request_rate), []).append(item)
    found = []
    for load, items in loads.items():
        metrics = {}
        for metric in ("ttft", "tpot", "itl", "e2el"):
            by_name: dict[str, list[np.ndarray]] = {}
            for item in items:
                by_name.setdefault(item.deployment, []).append(samples(getattr(item, f"{metric}_ms")))
            metrics[metric] = bins({name: np.concatenate(parts) for name, parts in by_name.items()})
        found.append(Distribution(*load, metrics))
    return found


def timeline(item: records.Measurement, servers: int = 1, seconds: int = 24) -> records.Timeline:
    """A batch that fills, stays full and empties; a queue at its beginning; a cache that follows."""
    most = (item.load.concurrency or 4) / servers
    times = tuple(float(second) for second in range(seconds))
    shape = [max(0.0, min(1.0, second / 4, (seconds - 2 - second) / 4)) for second in times]
    return records.Timeline(
        deployment=item.deployment,
        point=item.load.name,
        started_at=item.started_at or "",
        interval_s=1.0,
        servers=tuple(
            records.ServerTimeline(
                replica=f"r{number}",
                seconds=times,
                running=tuple(float(math.floor(most * part)) for part in shape),
                waiting=tuple(float(math.floor(most * 0.5)) if 2 < second < 6 else 0.0 for second in times),
                kv_cache_usage=tuple(0.6 * part for part in shape),
            )
            for number in range(servers)
        ),
    )


def gpu_telemetry(begin: float = 0.0, seconds: float = 100.0, gpus: int = 1, **changes: object) -> records.Telemetry:
    """GPUs of 400 W each on one node."""
    values: dict = {
        "uuid": "GPU-a", "name": "NVIDIA H200", "replica": "r0", "samples": int(seconds), "energy_j": 400.0 * seconds, "power_w": 400.0,
        "sm_clock_mhz": 1500.0, "sm_clock_min_mhz": 1400.0, "temperature_max_c": 60, "busy": 0.9, "busy_max": 1.0, "memory_max_mib": 1000,
    }  # fmt: skip
    every = tuple(records.GpuTelemetry(position=number, **(values | changes)) for number in range(gpus))
    node = records.NodeTelemetry(node="gn01", samples=int(seconds), longest_gap_s=1.0, gpus=every)
    return records.Telemetry(begin=begin, end=begin + seconds, interval_s=1.0, nodes=(node,))


def cpu_telemetry(foreign: float) -> records.Telemetry:
    """A node of 8 cores, of which others used ``foreign``."""
    node = records.NodeTelemetry(node="n", samples=100, longest_gap_s=1.0, cores=8, busy_cores=4.0 + foreign, foreign_cores=foreign)
    return records.Telemetry(begin=0.0, end=100.0, interval_s=1.0, nodes=(node,))


def timelines(measurements: Sequence[records.Measurement], servers: int = 1) -> dict[tuple[str, str], records.Timeline]:
    """One for every accepted measurement."""
    accepted = [item for item in measurements if item.verdict != "INVALID"]
    return {(item.deployment, item.load.name): timeline(item, servers) for item in accepted}


def attempt(deployment: str, number: int = 1, failure: records.Failure | None = None, **changes: object) -> Attempt:
    """One start that ended as planned, or failed."""
    values: dict = {
        "outcome": "failed" if failure else "ended as planned",
        "how": f"{failure.stage}: {failure.reason}" if failure else "stopped after its last point",
        "started_at": "2026-03-04T10:10:02.120+00:00",
        "ended_at": "2026-03-04T10:19:40.870+00:00",
        "nodes": ("node01",),
        "failure": failure,
    }
    return Attempt(deployment=deployment, number=f"{number:03d}", **(values | changes))
