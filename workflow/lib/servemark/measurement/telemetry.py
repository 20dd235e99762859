"""Verdict reasons from what the nodes reported during a load (:class:`servemark.records.Telemetry`).

A power cap (``sw_power_cap``) is no reason. NVML's reference describes it as clocks "optimized to ensure not to exceed currently set power
limits", and a GPU at full load reaches its limit. It is in the record. Heat, a power brake and a slowdown of the hardware mean that the
node cannot run the GPU as specified.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from servemark.measurement.reasons import reason
from servemark.measurement.thresholds import Verdict
from servemark.records import GpuTelemetry, LoadPoint, Measurement, Reason, Telemetry

JOULES_PER_KWH = 3.6e6

THROTTLED = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake")
SHARE = 0.01
"""Share of the samples with reduced clocks that counts; p99, the finest percentile in a record, leaves out the same share. One sample never
counts: NVML may also report ``hw_slowdown`` while the clock changes (nvml.h)."""
GAP_S = 3.0
"""Longest time without samples: two are missing. A GPU's own values are means of up to a second."""
WAITED = 0.02
"""Share of the samples without a kernel from which on the GPUs waited; as ``stalls.SHARE``.

A step takes milliseconds, and a sample is the use in a sixth of a second or more (nvml.h, nvmlUtilization_t). So each sample of a GPU with
work shows a kernel. Seen on an H100 with a concurrency of 8 to 192: none of 16 to 52 samples, and 4 of 20 to 29 of 65 where the server
compiled kernels meanwhile.
"""
LEAST_SAMPLES = 2
"""Fewer samples do not show that a GPU was idle: the first one reports on the second before it."""


def reasons(telemetry: Telemetry | None, load: LoadPoint, thresholds: Verdict, empty: float = 0.0) -> Iterator[Reason]:
    """Yield the reasons for a measurement; none without telemetry.

    Args:
        empty: share of the time without a request in flight.
    """
    if telemetry is None:
        return
    for node in telemetry.nodes:
        if node.fault is None and node.longest_gap_s > GAP_S:
            detail = f"{node.node} has no telemetry for {node.longest_gap_s:.1f} s, so what happened then is not known."
            yield reason("telemetry_gap", detail)
        if node.cores and node.foreign_cores is not None and node.foreign_cores > thresholds.max_foreign_cpu * node.cores:
            detail = (
                f"Other processes used {node.foreign_cores:.2f} of the {node.cores} cores on {node.node}; "
                f"`verdict.max_foreign_cpu` allows {thresholds.max_foreign_cpu * node.cores:.2f}."
            )
            yield reason("foreign_load", detail)
    named = [(f"GPU {gpu.position} on {node.node}", gpu) for node in telemetry.nodes for gpu in node.gpus if gpu.replica is not None]
    if throttled := [f"{name} ({_events(gpu)})" for name, gpu in named if _events(gpu)]:
        yield reason("throttled", f"Reduced clocks, with the number of samples: {'; '.join(throttled)}.")
    asked = asked_replicas(telemetry, load)
    if unused := [name for name, gpu in named if gpu.replica in asked and is_idle(gpu)]:
        yield reason("idle_gpus", f"No kernel ran during the load on: {', '.join(unused)}.")
    yield from _waited([gpu for _, gpu in named if gpu.replica in asked and not is_idle(gpu)], empty)
    if others := [f"{name} (process {', '.join(map(str, gpu.foreign_processes))})" for name, gpu in named if gpu.foreign_processes]:
        yield reason("foreign_process", f"Processes of others used {'; '.join(others)}.")


def _waited(gpus: Sequence[GpuTelemetry], empty: float) -> Iterator[Reason]:
    """Yield ``gpus_waited`` if even the busiest GPU often had nothing to do while requests were in flight."""
    known = [(gpu.idle_samples, gpu.samples) for gpu in gpus if gpu.idle_samples is not None and gpu.samples >= LEAST_SAMPLES]
    idle_samples, every = min(known, key=lambda counts: counts[0] / counts[1], default=(0, 1))
    if idle_samples > max(1.0, (WAITED + empty) * every):
        detail = (
            f"No kernel ran on the busiest GPU in {idle_samples} of {every} samples, although requests were in flight for "
            f"{1 - empty:.0%} of the time."
        )
        yield reason("gpus_waited", detail)


def asked_replicas(telemetry: Telemetry, load: LoadPoint) -> set[str]:
    """Return the replicas that the requests went to: with ``ask: replica`` only the first."""
    every = sorted({gpu.replica for gpu in telemetry.gpus if gpu.replica is not None}, key=lambda name: (len(name), name))
    return set(every[:1] if load.ask == "replica" else every)


def energy_per_token(record: Measurement) -> float | None:
    """Return joules of all GPUs per output token; None if the energy of a GPU is not known."""
    energy = record.telemetry.energy_j if record.telemetry else None
    return energy / record.total_output_tokens if energy is not None and record.total_output_tokens else None


def idle(telemetry: Telemetry) -> list[str]:
    """Return NODE:POSITION of each GPU that did no work. Their energy is counted as well."""
    return [f"{node.node}:{gpu.position}" for node in telemetry.nodes for gpu in node.gpus if is_idle(gpu)]


def is_idle(gpu: GpuTelemetry) -> bool:
    """Return whether no sample shows a running kernel."""
    return gpu.samples >= LEAST_SAMPLES and gpu.busy_max == 0


def _events(gpu: GpuTelemetry) -> str:
    counted = {name: count for name, count in gpu.clock_events.items() if name in THROTTLED and count > max(1.0, SHARE * gpu.samples)}
    return ", ".join(f"{name} {count} of {gpu.samples}" for name, count in counted.items())
