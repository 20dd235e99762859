"""How much of what the hardware could give at most a deployment reached, where that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servemark.errors import ServemarkError
from servemark.planning.lengths import own_tokens
from servemark.planning.roofline import DEVICES, Bound, Device, bound
from servemark.records import Plan
from servemark.report.data import PageData
from servemark.weights.architecture import Architecture

TOO_GOOD = 0.85
"""Share of the bound above which the server cannot have done all the work that the bound counts. Copies alone reach a little more
(``memory_copy_share`` in planning/advice.yaml), and a step is never copies alone."""


@dataclass(frozen=True)
class Share:
    """A load point against its bound: output tokens/s of the whole deployment."""

    deployment: str
    workload: str
    load: str
    verdict: str
    measured: float
    bound: Bound

    @property
    def part(self) -> float:
        """Measured over bound."""
        return self.measured / self.bound.output_tokens_per_s

    @property
    def doubtful(self) -> bool:
        """More than software reaches: see TOO_GOOD."""
        return self.part > TOO_GOOD


def shares(points: Sequence[Mapping[str, Any]], data: PageData) -> tuple[list[Share], list[str]]:
    """Return the share of every accepted load point, and why others have none, a sentence each.

    Args:
        points: the medians of every load point (``views.medians``).
    """
    device = _device(data)
    if isinstance(device, str):
        return [], [device]
    found: list[Share] = []
    missing: dict[str, None] = {}
    for point in points:
        if point["output_tokens_per_s_median"] is None:
            continue
        name, workload = point["deployment"], point["workload"]
        if point["concurrency"] is None or point["request_rate_per_s"] is not None:
            missing[f"Workload {workload}: its load is a rate of requests, for which no bound is worked out."] = None
            continue
        made = _bound(data, data.plans.get(name), workload, point["concurrency"], device)
        if isinstance(made, str):
            missing[f"Deployment {name}: {made}"] = None
            continue
        found.append(Share(name, workload, point["load"], point["verdict"], point["output_tokens_per_s_median"], made))
    return found, list(missing)


def _device(data: PageData) -> Device | str:
    if data.hardware.accelerator == "cpu":
        return "The deployments ran on a CPU, whose memory bandwidth and arithmetic peak are not probed."
    names = sorted({gpu.name for gpu in data.hardware.gpus})
    if len(names) != 1:
        return f"The GPUs are not of one kind: {', '.join(names) or 'none was found'}."
    return DEVICES.get(names[0]) or f"The peaks of {names[0]} are not in servemark's list."


def _bound(data: PageData, plan: Plan | None, workload: str, concurrency: int, device: Device) -> Bound | str:
    if plan is None or plan.model not in data.manifests:
        return "its plan or its model's manifest is not there."
    load = plan.load_of(workload)
    if load is None:
        return f"the lengths of workload {workload} are not planned."
    try:
        return bound(
            Architecture.from_config(data.manifests[plan.model].config),
            plan.asked_by(workload),
            device,
            concurrency=concurrency,
            input_tokens=own_tokens(load, plan.options),
            output_tokens=load.prompts.output_tokens,
            kv_element_bytes=1 if str(plan.options.get("kv-cache-dtype", "")).startswith("fp8") else None,
        )
    except ServemarkError as error:
        return error.what
