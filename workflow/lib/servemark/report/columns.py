"""Define the columns of all tables of measurements. CSV and Parquet have all of them, terminal and report some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from servemark.measurement import telemetry
from servemark.records import LoadPoint, Measurement, Telemetry, Topology
from servemark.report import formatting

_TEXT, _WHOLE, _NUMBER = "string", "Int64", "float64"
STATISTICS = {
    "mean": "mean",
    "std": "standard deviation",
    "p50": "median",
    "p95": "95th percentile",
    "p99": "99th percentile",
    "max": "largest value",
}
_LATENCIES = {
    "ttft": "time to first token",
    "tpot": "mean time per output token after the first, of each request",
    "itl": "time between two chunks of a response stream",
    "e2el": "time from the start of a request to its last token",
}
_TERMINAL = ("TTFT mean", "TTFT p50", "TTFT p95", "TTFT p99", "TPOT p50", "E2EL p50")


@dataclass(frozen=True)
class Row:
    """A measurement, the topology in its ledger key (or None), and its Slurm job."""

    item: Measurement
    shape: Topology | None
    job_id: str | None = None

    @property
    def load(self) -> LoadPoint:
        """Return the measurement's load point."""
        return self.item.load


@dataclass(frozen=True)
class Group:
    """Columns under one heading in the report's table of medians."""

    label: str
    title: str = ""
    unit: str = ""

    @property
    def columns(self) -> list[Column]:
        """Return the columns of this group, in the order of ``COLUMNS``."""
        return [column for column in COLUMNS if column.group is self]


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        meaning: description for docs/reference/columns.md.
        figure: the column is a result, so it is empty for INVALID measurements.
        label, unit: full heading in the report. Results with a label have median and range over the repetitions of a load point.
        group, heading: group and heading in the report's table of medians.
        verdicts: whether the report's table of verdicts has the column.
        terminal: heading in the terminal's table, its last word on a second line; empty if that table lacks the column.
    """

    name: str
    meaning: str
    dtype: str
    read: Callable[[Row], Any]
    figure: bool = False
    label: str = ""
    unit: str = ""
    group: Group | None = None
    heading: str = ""
    verdicts: bool = False
    terminal: str = ""

    def value(self, row: Row) -> Any:
        """Return the value of one measurement. Every result of an INVALID one is None."""
        return None if self.figure and row.item.verdict == "INVALID" else self.read(row)


THROUGHPUT = Group("Throughput per second")
LATENCIES = {metric: Group(metric.upper(), title, "ms") for metric, title in formatting.METRICS.items()}


def topology(item: Measurement) -> Topology | None:
    """Return the topology in a measurement's ledger key, or None.

    Raises:
        ValueError, TypeError, AttributeError: the ledger key contains something else.
    """
    parts = item.key_parts.get("deployment", {}).get("topology")
    return Topology.model_validate(parts) if parts else None


def replicas(item: Measurement) -> dict[str, int]:
    """Return the requests of each replica, r2 before r10; empty for one replica."""
    counts = item.replica_requests if len(item.replica_requests) > 1 else {}
    return dict(sorted(counts.items(), key=lambda pair: (len(pair[0]), pair[0])))


def _of_topology(name: str, meaning: str, dtype: str) -> Column:
    return Column(name, meaning, dtype, lambda row: getattr(row.shape, name, None))


def _of_telemetry(name: str, meaning: str, read: Callable[[Telemetry], Any], label: str, unit: str = "") -> Column:
    def value(row: Row) -> Any:
        return None if row.item.telemetry is None else read(row.item.telemetry)

    return Column(name, meaning, _NUMBER, value, figure=True, label=label, unit=unit)


def _energy(row: Row, factor: float) -> float | None:
    joules = telemetry.energy_per_token(row.item)
    return None if joules is None else factor * joules


def _idle(row: Row) -> str | None:
    return " ".join(telemetry.idle(row.item.telemetry)) or None if row.item.telemetry else None


def _latency(metric: str, statistic: str) -> Column:
    def read(row: Row) -> Any:
        return getattr(getattr(row.item, f"{metric}_ms"), statistic, None)

    if statistic == "count":
        return Column(f"{metric}_count", f"{_LATENCIES[metric]}: number of values", _WHOLE, read, figure=True)
    label = f"{metric.upper()} {statistic}"
    return Column(
        f"{metric}_{statistic}_ms", f"{_LATENCIES[metric]}: {STATISTICS[statistic]}", _NUMBER, read, figure=True, label=label, unit="ms",
        group=LATENCIES[metric] if statistic in ("p50", "p95", "p99") else None, heading=statistic,
        verdicts=label == "TTFT p99", terminal=label if label in _TERMINAL else "",
    )  # fmt: skip


COLUMNS: tuple[Column, ...] = (
    Column("deployment", "name of the deployment", _TEXT, lambda row: row.item.deployment),
    Column("workload", "name of the workload", _TEXT, lambda row: row.load.workload),
    Column("point", "name of the load point", _TEXT, lambda row: row.load.name),
    _of_topology("nodes", "number of nodes of the servers", _WHOLE),
    Column("devices", "ranks over all nodes and replicas", _WHOLE, lambda row: row.shape and row.shape.world_size),
    _of_topology("tensor_parallel", "ranks that share every layer", _WHOLE),
    _of_topology("pipeline_parallel", "ranks that each hold some layers", _WHOLE),
    _of_topology("data_parallel", "engines of one server", _WHOLE),
    _of_topology("replicas", "servers behind one address", _WHOLE),
    _of_topology("balancing", "process that distributes requests over the engines of a server: `server` or `router`", _TEXT),
    Column("routing", "policy of the router; empty without a router",
           _TEXT, lambda row: row.shape.routing if row.shape and row.shape.routed else None),
    _of_topology("executor", "executor of the ranks: `single`, `mp` or `ray`", _TEXT),
    _of_topology("client", "node of the client: `head` or `own`", _TEXT),
    Column("concurrency", "maximum of in-flight requests; empty if only a rate limits them", _WHOLE, lambda row: row.load.concurrency),
    Column("request_rate_per_s", "requests per second that the client sends; empty without a request rate",
           _NUMBER, lambda row: row.load.request_rate),
    Column("repetition", "number of the repetition, from 1", _WHOLE, lambda row: row.load.repetition),
    Column("seed", "seed of the prompts", _WHOLE, lambda row: row.load.seed),
    Column("input_tokens", "tokens of each prompt, without a shared prefix",
           _WHOLE, lambda row: row.load.prompts.input_tokens),
    Column("output_tokens", "output tokens of each request", _WHOLE, lambda row: row.load.prompts.output_tokens),
    Column("clients", "number of client processes", _WHOLE, lambda row: row.load.clients),
    Column("ask", "target of the requests: `endpoint`, or `replica` without the router", _TEXT, lambda row: row.load.ask),
    Column("verdict", "VALID, SUSPECT or INVALID", _TEXT, lambda row: row.item.verdict),
    Column("reasons", "codes of the [reasons](reasons.md), separated by spaces",
           _TEXT, lambda row: " ".join(reason.code for reason in row.item.reasons) or None),
    Column("failure", "code of the failure that prevented the measurement",
           _TEXT, lambda row: row.item.failure and row.item.failure.reason),
    Column("requests_asked", "requests of the load point", _WHOLE, lambda row: row.load.requests),
    Column("requests_completed", "requests that completed", _WHOLE, lambda row: row.item.completed),
    Column("requests_failed", "requests that failed", _WHOLE, lambda row: row.item.failed),
    Column("duration_s", "duration of the measurement; see [numbers](../explanation/numbers.md#from-requests-to-results)",
           _NUMBER, lambda row: row.item.duration_s, figure=True),
    Column("total_input_tokens", "input tokens of all completed requests, including a shared prefix",
           _WHOLE, lambda row: row.item.total_input_tokens, figure=True),
    Column("total_output_tokens", "output tokens of all completed requests", _WHOLE, lambda row: row.item.total_output_tokens, figure=True),
    Column("output_tokens_per_s", "output tokens per second",
           _NUMBER, lambda row: row.item.output_throughput, figure=True, label="Output tokens/s", group=THROUGHPUT,
           heading="output tokens", verdicts=True, terminal="out tok/s"),
    Column("total_tokens_per_s", "input and output tokens per second",
           _NUMBER, lambda row: row.item.total_throughput, figure=True, label="Total tokens/s", group=THROUGHPUT,
           heading="all tokens"),
    Column("requests_per_s", "completed requests per second",
           _NUMBER, lambda row: row.item.request_throughput, figure=True, label="Requests/s", group=THROUGHPUT,
           heading="requests"),
    *(_latency(metric, statistic) for metric in formatting.METRICS for statistic in STATISTICS),
    *(_latency(metric, "count") for metric in formatting.METRICS),
    Column("replica_requests", "requests of each replica, such as `r0=64 r1=66`; empty for one replica",
           _TEXT, lambda row: " ".join(f"{name}={count}" for name, count in replicas(row.item).items()) or None),
    Column("client_cpu_cores", "CPU time of the busiest client process, in cores", _NUMBER, lambda row: row.item.client_cpu, figure=True),
    Column("gpu_energy_j_per_output_token", "GPU energy: joules of all allocated GPUs, idle ones included, per output token; see "
           "[numbers](../explanation/numbers.md#gpu-energy)",
           _NUMBER, lambda row: _energy(row, 1.0), figure=True, label="GPU energy per output token", unit="J"),
    Column("gpu_kwh_per_million_tokens", "the same in kWh per million output tokens",
           _NUMBER, lambda row: _energy(row, 1e6 / telemetry.JOULES_PER_KWH), figure=True, label="GPU energy per million output tokens",
           unit="kWh"),
    _of_telemetry("gpu_power_w", "mean power of all allocated GPUs", lambda found: found.power_w, "GPU power", "W"),
    _of_telemetry("gpu_sm_clock_mhz", "mean SM clock of the GPUs with ranks", lambda found: found.sm_clock_mhz, "SM clock", "MHz"),
    Column("gpus_allocated", "number of GPUs whose energy is counted",
           _WHOLE, lambda row: len(row.item.telemetry.gpus) or None if row.item.telemetry else None),
    Column("gpus_idle", "those that did no work, as NODE:POSITION, separated by spaces", _TEXT, _idle),
    _of_telemetry("foreign_cpu_cores", "CPU cores of the deployment that other processes used; empty with GPUs",
                  lambda found: found.foreign_cores, "Cores used by others"),
    Column("started_at", "start of the measurement, UTC", _TEXT, lambda row: row.item.started_at),
    Column("client_node", "node of the client", _TEXT, lambda row: row.item.client_node),
    Column("job_id", "Slurm job of the measurement; empty without one", _TEXT, lambda row: row.job_id),
    Column("attempt", "folder of the attempt that measured the point", _TEXT, lambda row: row.item.attempt),
    Column("key", "ledger key", _TEXT, lambda row: row.item.key),
    Column("raw", "file of the per-request results", _TEXT, lambda row: row.item.raw),
    Column("raw_sha256", "sha256 of that file", _TEXT, lambda row: row.item.raw_sha256),
)  # fmt: skip

GROUPS = (THROUGHPUT, *LATENCIES.values())
MEDIANS = tuple(column for group in GROUPS for column in group.columns)
VERDICTS = tuple(column for column in COLUMNS if column.verdicts)
TERMINAL = tuple(column for column in COLUMNS if column.terminal)
