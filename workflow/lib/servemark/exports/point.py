"""A measurement with the facts of its deployment, as both formats need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from servemark.measurement import key
from servemark.records import Environment, EnvironmentCheck, Manifest, Measurement, Plan, Topology
from servemark.report.gather import RunRecords


@dataclass(frozen=True)
class Point:
    """An accepted measurement. ``topology``: the part of the deployment that serves its requests."""

    record: Measurement
    plan: Plan
    topology: Topology
    model: Manifest | None
    environment: Environment | None
    check: EnvironmentCheck | None
    device: str

    @classmethod
    def of(cls, found: RunRecords, record: Measurement) -> Point:
        """Return a measurement with the records of its deployment."""
        plan = found.plans[record.deployment]
        gpus = found.machine.gpus
        return cls(
            record,
            plan,
            plan.topology.asked(record.load.ask),
            found.manifests.get(plan.model),
            found.environments.get(plan.environment),
            found.checks.get(plan.environment),
            gpus[0].name if gpus else found.machine.cpu_model,
        )

    @property
    def options(self) -> dict[str, Any]:
        """Return the server's options in kebab case."""
        return dict(key.normalise_options(self.plan.options))

    @property
    def expert_parallel(self) -> int:
        """Return the ranks that share the experts; 1: the experts are not distributed."""
        return self.topology.tensor_parallel * self.topology.data_parallel if self.options.get("enable-expert-parallel") else 1

    @property
    def vllm(self) -> str:
        """Return vLLM's version."""
        return self.check.vllm if self.check else "unknown"
