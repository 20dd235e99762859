"""A run with three repetitions: two equal systems, a slower one, one with an 8-bit KV cache, another model, and a load measured twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from builders import report_data
from builders.report_data import measurement, plan
from servemark import records
from servemark.report.gather import RunRecords

FOUR = records.Topology(devices_per_node=4, tensor_parallel=4)
SPEEDS = {"equal-a": 1.0, "equal-b": 1.004, "slower": 0.86, "fp8-cache": 1.1, "large": 0.15, "large-dp": 0.16}
LOADS = (8, 32, 128)


def measurements() -> list[records.Measurement]:
    """Three repetitions of each load whose logarithms vary by 2 %; two of workload ``twice``."""
    draws = np.random.default_rng(20261125)
    found = []
    for name, speed in SPEEDS.items():
        for load in LOADS:
            for repetition in (1, 2, 3):
                noise = float(np.exp(0.02 * draws.standard_normal()))
                output = 900.0 * load**0.7 * speed * noise
                found.append(measurement(name, load, repetition, output, 20.0 * load**0.4 / speed / noise, 900 * load / output))
    for name in ("equal-a", "slower"):
        for repetition in (1, 2):
            output = 2000.0 * SPEEDS[name] * (1 + repetition / 50)
            found.append(measurement(name, 8, repetition, output, workload="twice"))
    return found


def repeated() -> RunRecords:
    base, items = report_data.demo(), measurements()
    other = report_data.manifest("llama-70b")
    plans = {}
    for name in SPEEDS:
        large = name.startswith("large")
        plans[name] = plan(
            name,
            tuple(item for item in items if item.deployment == name),
            topology=FOUR,
            options={"max-model-len": 4096} | ({"kv-cache-dtype": "fp8"} if name == "fp8-cache" else {}),
            **({"model": "llama-70b", "model_digest": other.digest} if large else {}),
        )
    gpu = records.Gpu(name="NVIDIA H100 80GB HBM3", memory_mib=81559)
    return replace(
        base,
        run="repeated",
        hardware=report_data.hardware(accelerator="cuda", gpus=(gpu,) * 4),
        manifests={**base.manifests, "llama-70b": other},
        plans=plans,
        measurements=items,
        startups={},
        stopped={},
        attempts=[],
        distributions=[],
        timelines={},
        config={"run": "repeated", "deployments": {name: {} for name in SPEEDS}},
    )
