"""What the nodes reported during a load point: GPUs, or other processes' use of the CPU."""

from typing import Self

from pydantic import Field, FiniteFloat, model_validator

from servemark.records.base import Strict


class GpuTelemetry(Strict):
    """One GPU during a load point. A null was not reported by the GPU (``not_reported``), or not by two samples."""

    position: int = Field(description="position in the node's list of visible GPUs")
    uuid: str
    name: str
    replica: str | None = Field(default=None, description="replica with ranks on it; null: allocated, but without ranks")
    mig: bool = Field(default=False, description="divided (MIG): power and energy of the whole GPU are not this deployment's")
    samples: int = Field(description="samples during the load")
    energy_j: FiniteFloat | None = Field(default=None, description="joules, from the GPU's energy counter, interpolated at both ends")
    power_w: FiniteFloat | None = Field(default=None, description="watts, mean of the samples")
    sm_clock_mhz: FiniteFloat | None = Field(default=None, description="mean of the samples")
    sm_clock_min_mhz: FiniteFloat | None = None
    temperature_max_c: FiniteFloat | None = None
    busy: FiniteFloat | None = Field(default=None, description="0 to 1: share of time with a running kernel, mean of the samples")
    busy_max: FiniteFloat | None = None
    idle_samples: int | None = Field(default=None, description="samples without a running kernel; null: not reported, or an older file")
    memory_max_mib: FiniteFloat | None = None
    clock_events: dict[str, int] = Field(default={}, description="reason of reduced clocks -> number of samples with it")
    foreign_processes: tuple[int, ...] = Field(default=(), description="process ids of others, seen in two samples")
    unattributed_processes: int = Field(default=0, description="most processes at once whose ids this node's processes cannot see")
    not_reported: tuple[str, ...] = Field(default=(), description="values that the GPU never reported")


class NodeTelemetry(Strict):
    """One node of the servers during a load point."""

    node: str
    fault: str | None = Field(default=None, description="why nothing is sampled there")
    samples: int = Field(default=0, description="samples during the load")
    longest_gap_s: FiniteFloat = Field(default=0.0, description="longest time without a sample, during or next to the load")
    gpus: tuple[GpuTelemetry, ...] = ()
    cores: int | None = Field(default=None, description="CPU cores of the deployment there; null: not sampled, as with GPUs")
    busy_cores: FiniteFloat | None = Field(default=None, description="mean use of these cores by all processes")
    foreign_cores: FiniteFloat | None = Field(default=None, description="mean use of these cores by processes of others")
    cpu_mhz: FiniteFloat | None = Field(default=None, description="mean frequency of some of the cores")


class Telemetry(Strict):
    """All nodes of the servers during a load, from the start of the first request to the end of the last."""

    begin: FiniteFloat = Field(description="seconds since 1970, clock of the client's node")
    end: FiniteFloat
    interval_s: FiniteFloat = Field(description="time between two samples, seconds")
    nodes: tuple[NodeTelemetry, ...] = ()

    @property
    def gpus(self) -> tuple[GpuTelemetry, ...]:
        """All sampled GPUs: those with ranks, and in a job the others of the allocation."""
        return tuple(gpu for node in self.nodes for gpu in node.gpus)

    @property
    def energy_j(self) -> float | None:
        """Joules of all GPUs; None if one of them is not known, or there is none."""
        return _sum([gpu.energy_j for gpu in self.gpus]) if self._complete else None

    @property
    def power_w(self) -> float | None:
        """Watts of all GPUs; None if one of them is not known, or there is none."""
        return _sum([gpu.power_w for gpu in self.gpus]) if self._complete else None

    @property
    def sm_clock_mhz(self) -> float | None:
        """Mean clock of the GPUs with ranks."""
        clocks = [gpu.sm_clock_mhz for gpu in self.gpus if gpu.replica is not None]
        total = _sum(clocks)
        return None if total is None else total / len(clocks)

    @property
    def foreign_cores(self) -> float | None:
        """Cores that processes of others used on all nodes; None if that is not known of a node."""
        return _sum([node.foreign_cores for node in self.nodes])

    @property
    def _complete(self) -> bool:
        return all(node.gpus for node in self.nodes)


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


class TelemetryTimeline(Strict):
    """A load point second by second; entry i of each list belongs to ``seconds[i]``. No result depends on it."""

    seconds: tuple[FiniteFloat, ...] = Field(description="as in the lists of the servers")
    power_w: tuple[FiniteFloat | None, ...] = Field(default=(), description="sum of all GPUs; empty: no GPUs")
    sm_clock_mhz: tuple[FiniteFloat | None, ...] = Field(default=(), description="mean of the GPUs with ranks; empty: no GPUs")
    foreign_cores: tuple[FiniteFloat | None, ...] = Field(default=(), description="sum of all nodes; empty: not sampled")

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        if any(len(values) not in (0, len(self.seconds)) for values in (self.power_w, self.sm_clock_mhz, self.foreign_cores)):
            raise ValueError("the lists have different lengths")
        return self
