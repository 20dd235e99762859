"""The samples of the nodes (in_model_env/gpu_watch.py): read, and reduced to the time of a load.

Samples have the wall clock of their node, the load that of the client's node. If two clocks differ by d seconds, the window is off by d:
the error of the energy is d times the difference of the power before and after the load. NTP keeps nodes within milliseconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError

from servemark.records import GpuTelemetry, NodeTelemetry, Telemetry, TelemetryTimeline

INTERVAL_S = 1.0
"""Time between two samples."""
EVENTS = {
    0x1: "gpu_idle",
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons (nvidia-ml-py 13.615)."""
# The names in in_model_env/gpu_watch.py, in its order.
_GPU_VALUES = ("power_w", "energy_j", "sm_mhz", "events", "temperature_c", "busy_percent", "memory_mib")
_CPU_VALUES = ("busy_s", "own_s", "mhz")


class _Gpu(BaseModel):
    position: int
    uuid: str
    name: str
    replica: str | None
    mig: bool


class Header(BaseModel):
    """The first line of a node's samples."""

    node: str
    started: float
    interval_s: float
    fault: str | None = None
    gpus: tuple[_Gpu, ...] = ()
    cores: int | None = None


@dataclass(frozen=True)
class NodeSamples:
    """The samples of a node.

    Attributes:
        header: None if the node wrote none.
        times: seconds since 1970, ascending.
        gpus: for each GPU and value a list in the order of ``times``; NaN: not reported.
        others: for each GPU the (process ids of others, number that cannot be attributed) of each sample.
        cpu: ``busy_s``, ``own_s`` and ``mhz``, as ``gpus``.
    """

    node: str
    header: Header | None
    times: np.ndarray
    gpus: tuple[dict[str, np.ndarray], ...] = ()
    others: tuple[list[tuple[list[int], int]], ...] = ()
    cpu: Mapping[str, np.ndarray] | None = None


def read(node: str, path: Path) -> NodeSamples:
    """Return the samples in a node's file. A missing or damaged one has no header; a damaged line is left out."""
    try:
        lines = [found for found in map(_parsed, path.read_text(encoding="utf-8", errors="replace").splitlines()) if found]
        header = Header.model_validate(lines[0])
    except (OSError, IndexError, ValidationError):
        return NodeSamples(node, None, np.array([]))
    samples = [line for line in lines[1:] if _is_sample(line, len(header.gpus))]
    times = np.array([line["t"] for line in samples], dtype=float)
    if header.gpus:
        by_gpu = [[line["gpus"][number] for line in samples] for number in range(len(header.gpus))]
        values = tuple({name: _column(rows, index) for index, name in enumerate(_GPU_VALUES)} for rows in by_gpu)
        return NodeSamples(node, header, times, values, tuple([(row[7], row[8]) for row in rows] for rows in by_gpu))
    return NodeSamples(node, header, times, cpu={name: _column(samples, name) for name in _CPU_VALUES})


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _is_sample(line: dict[str, Any], gpus: int) -> bool:
    """Return whether a line has the form of a sample of this many GPUs, or of CPUs if there are none. An archive may hold anything."""
    if not isinstance(line.get("t"), int | float):
        return False
    if gpus == 0:
        return all(isinstance(line.get(name), int | float) or (name == "mhz" and line.get(name, 0) is None) for name in _CPU_VALUES)
    rows = line.get("gpus")
    return isinstance(rows, list) and len(rows) == gpus and all(map(_is_gpu, rows))


def _is_gpu(row: Any) -> bool:
    count = len(_GPU_VALUES)
    if (
        not isinstance(row, list)
        or len(row) != count + 2
        or not all(value is None or isinstance(value, int | float) for value in row[:count])
    ):
        return False
    return isinstance(row[count], list) and all(isinstance(pid, int) for pid in row[count]) and isinstance(row[count + 1], int)


def _column(rows: Sequence[Any], key: Any) -> np.ndarray:
    return np.array([row[key] for row in rows], dtype=float)


@dataclass(frozen=True)
class Window:
    """The time of a load, seconds since 1970.

    Attributes:
        since: a moment before ``begin`` at which sampling was on: the start of the client.
        now: when the files were read.
    """

    since: float
    begin: float
    end: float
    now: float


def telemetry(nodes: Sequence[NodeSamples], window: Window) -> Telemetry:
    """Return what the nodes reported during a load."""
    return Telemetry(begin=window.begin, end=window.end, interval_s=INTERVAL_S, nodes=tuple(_node(one, window) for one in nodes))


def _node(samples: NodeSamples, window: Window) -> NodeTelemetry:
    header = samples.header
    if header and header.fault:
        return NodeTelemetry(node=samples.node, fault=header.fault)
    inside = (samples.times >= window.begin) & (samples.times <= window.end)
    found = NodeTelemetry(node=samples.node, samples=int(inside.sum()), longest_gap_s=round(_longest_gap(samples.times, window), 2))
    if header is None:
        return found
    if samples.cpu is None:
        gpus = tuple(_gpu(samples, number, inside, window) for number in range(len(header.gpus)))
        return found.model_copy(update={"gpus": gpus})
    busy, own = (_used(samples.times, samples.cpu[name], window) for name in ("busy_s", "own_s"))
    seconds = window.end - window.begin
    return found.model_copy(
        update={
            "cores": header.cores,
            "busy_cores": None if busy is None else round(busy / seconds, 3),
            # Jiffies are counted per core and per process, so the difference of idle nodes may be below 0.
            "foreign_cores": None if busy is None or own is None else round(max(0.0, busy - own) / seconds, 3),
            "cpu_mhz": _of(np.mean, samples.cpu["mhz"][inside]),
        }
    )


def _longest_gap(times: np.ndarray, window: Window) -> float:
    """Return the longest time without a sample: between two samples of which one is in the window, or which enclose its ends."""
    before, after = times[times < window.begin], times[times > window.end]
    moments = [
        before[-1] if len(before) else window.since,
        *times[(times >= window.begin) & (times <= window.end)],
        after[0] if len(after) else window.now,
    ]
    return float(np.diff(moments).max())


def _used(times: np.ndarray, counter: np.ndarray, window: Window) -> float | None:
    """Return by how much a counter grew during the load; None if the samples do not enclose it, or the counter was reset.

    At both ends the counter is interpolated between two samples.
    """
    known = ~np.isnan(counter)
    times, counter = times[known], counter[known]
    if not len(times) or times[0] > window.begin or times[-1] < window.end:
        return None
    enclosing = slice(np.searchsorted(times, window.begin, side="right") - 1, np.searchsorted(times, window.end) + 1)
    if (np.diff(counter[enclosing]) < 0).any():
        return None
    first, last = np.interp([window.begin, window.end], times, counter)
    return float(last - first)


def _gpu(samples: NodeSamples, number: int, inside: np.ndarray, window: Window) -> GpuTelemetry:
    assert samples.header
    described, values, others = samples.header.gpus[number], samples.gpus[number], samples.others[number]
    energy = _used(samples.times, values["energy_j"], window)
    within = {name: column[inside] for name, column in values.items()}
    events = within["events"][~np.isnan(within["events"])].astype(int)
    counted = {name: int(((events & bit) > 0).sum()) for bit, name in EVENTS.items()}
    present = [others[index] for index in np.flatnonzero(inside)]
    pids = [pid for foreign, _ in present for pid in foreign]
    busy = within["busy_percent"] / 100
    return GpuTelemetry(
        **described.model_dump(),
        samples=int(inside.sum()),
        energy_j=None if energy is None else round(energy, 3),
        power_w=_of(np.mean, within["power_w"]),
        sm_clock_mhz=_of(np.mean, within["sm_mhz"]),
        sm_clock_min_mhz=_of(np.min, within["sm_mhz"]),
        temperature_max_c=_of(np.max, within["temperature_c"]),
        busy=_of(np.mean, busy),
        busy_max=_of(np.max, busy),
        idle_samples=None if np.isnan(busy).all() else int((busy == 0).sum()),
        memory_max_mib=_of(np.max, within["memory_mib"]),
        clock_events={name: count for name, count in counted.items() if count},
        # A process that is being started, or that just ended, may look like another's for a moment.
        foreign_processes=tuple(sorted({pid for pid in pids if pids.count(pid) > 1})),
        unattributed_processes=max((count for _, count in present), default=0),
        not_reported=tuple(name for name, column in values.items() if len(column) and np.isnan(column).all()),
    )


def _of(statistic: Any, values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return round(float(statistic(known)), 3) if len(known) else None


def timeline(nodes: Sequence[NodeSamples], zero: float, end: float) -> TelemetryTimeline | None:
    """Return the samples of all nodes, interpolated at whole seconds after ``zero`` up to ``end``; None if there are none."""
    seconds = np.arange(0.0, math.ceil(max(0.0, end - zero)) + 1.0)
    at = zero + seconds
    with_gpus = [node for node in nodes if node.gpus and len(node.times)]
    with_cpu = [node for node in nodes if node.cpu and len(node.times) > 1]
    if not (with_gpus or with_cpu):
        return None
    ranks = [
        _at(at, node.times, gpu["sm_mhz"])
        for node in with_gpus
        if node.header
        for gpu, described in zip(node.gpus, node.header.gpus, strict=True)
        if described.replica is not None
    ]
    power = [_at(at, node.times, gpu["power_w"]) for node in with_gpus for gpu in node.gpus]
    others = [_at(at, node.times, _foreign(node.times, node.cpu)) for node in with_cpu if node.cpu]
    return TelemetryTimeline(
        seconds=tuple(seconds.tolist()),
        power_w=_listed(power, np.sum, 1),
        sm_clock_mhz=_listed(ranks, np.mean, 0),
        foreign_cores=_listed(others, np.sum, 2),
    )


def _foreign(times: np.ndarray, cpu: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the cores that others used before each sample; NaN for the first."""
    used = np.diff(cpu["busy_s"] - cpu["own_s"]) / np.diff(times)
    return np.concatenate([[math.nan], np.maximum(0.0, used)])


def _at(moments: np.ndarray, times: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return values interpolated at moments; NaN where no sample is within two intervals."""
    known = ~np.isnan(values)
    if not known.any():
        return np.full(len(moments), math.nan)
    times = times[known]
    after = np.searchsorted(times, moments).clip(max=len(times) - 1)
    nearest = np.minimum(np.abs(times[after] - moments), np.abs(times[np.maximum(0, after - 1)] - moments))
    return np.where(nearest <= 2 * INTERVAL_S, np.interp(moments, times, values[known]), math.nan)


def _listed(columns: Sequence[np.ndarray], statistic: Any, digits: int) -> tuple[float | None, ...]:
    if not columns:
        return ()
    merged = statistic(np.stack(columns), axis=0)
    return tuple(None if math.isnan(value) else round(float(value), digits) for value in merged)
