"""How much of what the hardware could give at most a deployment reached, where that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servemark.errors import ServemarkError
from servemark.planning.lengths import own_tokens
from servemark.planning.roofline import DEVICES, Bound, Device, bound
from servemark.records import Plan
from servemark.report.gather import RunRecords
from servemark.weights.architecture import Architecture

TOO_GOOD = 0.85
"""Share of the bound above which the server cannot have done all the work that the bound counts. Copies alone reach a little more
(``memory_copy_share`` in planning/advice.yaml), and a step is never copies alone."""


@dataclass(frozen=True)
class Share:
    """A load point (of ``views.medians``) against its bound: output tokens/s of the whole deployment."""

    point: Mapping[str, Any]
    bound: Bound

    @property
    def part(self) -> float:
        """Return measured over bound."""
        return float(self.point["output_tokens_per_s_median"] / self.bound.output_tokens_per_s)

    @property
    def doubtful(self) -> bool:
        """Return whether this is more than software reaches: see TOO_GOOD."""
        return self.part > TOO_GOOD


def shares(points: Sequence[Mapping[str, Any]], data: RunRecords) -> tuple[list[Share], list[str]]:
    """Return the share of every accepted load point (of ``views.medians``), and why others have none, a sentence each."""
    try:
        device = _device(data)
    except ServemarkError as error:
        return [], [error.what]
    found: list[Share] = []
    missing: dict[str, None] = {}
    for point in points:
        if point["output_tokens_per_s_median"] is None:
            continue
        if point["concurrency"] is None or point["request_rate_per_s"] is not None:
            missing[f"Workload {point['workload']}: its load is a rate of requests, for which no bound is worked out."] = None
            continue
        try:
            found.append(Share(point, _bound(data, data.plans.get(point["deployment"]), point, device)))
        except ServemarkError as error:
            missing[f"Deployment {point['deployment']}: {error.what}"] = None
    return found, list(missing)


def _device(data: RunRecords) -> Device:
    if data.machine.accelerator == "cpu":
        raise ServemarkError("The deployments ran on a CPU, whose memory bandwidth and arithmetic peak are not probed.")
    names = sorted({gpu.name for gpu in data.machine.gpus})
    if len(names) != 1:
        raise ServemarkError(f"The GPUs are not of one kind: {', '.join(names) or 'none was found'}.")
    if names[0] not in DEVICES:
        raise ServemarkError(f"The peaks of {names[0]} are not in servemark's list.")
    return DEVICES[names[0]]


def _bound(data: RunRecords, plan: Plan | None, point: Mapping[str, Any], device: Device) -> Bound:
    if plan is None or plan.model not in data.manifests:
        raise ServemarkError("its plan or its model's manifest is not there.")
    load = plan.load_of(point["workload"])
    if load is None:
        raise ServemarkError(f"the lengths of workload {point['workload']} are not planned.")
    return bound(
        Architecture.from_config(data.manifests[plan.model].config),
        plan.asked_by(point["workload"]),
        device,
        concurrency=point["concurrency"],
        input_tokens=own_tokens(load, plan.options),
        output_tokens=load.prompts.output_tokens,
        kv_element_bytes=1 if str(plan.options.get("kv-cache-dtype", "")).startswith("fp8") else None,
    )
