"""The columns of all tables of measurements: CSV and Parquet have all of them, the terminal and the report some.

A new column is one entry of ``COLUMNS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from servemark.records import LoadPoint, Measurement, Topology
from servemark.report import formatting

_TEXT, _WHOLE, _NUMBER = "string", "Int64", "float64"
STATISTICS = ("mean", "std", "p50", "p95", "p99", "max")


@dataclass(frozen=True)
class Row:
    """A measurement, the topology in its ledger key (None where the key holds none) and the scheduler's job that it ran in."""

    item: Measurement
    shape: Topology | None
    job_id: str | None = None

    @property
    def load(self) -> LoadPoint:
        """Return the load point of the measurement."""
        return self.item.load


@dataclass(frozen=True)
class Group:
    """Columns that stand under one heading in the report's table of medians."""

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
        figure: a measured value, which INVALID measurements do not have.
        label, unit: full heading in the report. Figures with a label are summarised over the repetitions of a load point.
        group, heading: the report's table of medians has the column under ``heading`` in this group; such a figure has a label.
        verdicts: the report's table of verdicts has it.
        terminal: heading in the terminal, whose table has the columns with one.
    """

    name: str
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
        """Return the value of one measurement; None for every figure of an INVALID one, whatever its record holds."""
        return None if self.figure and row.item.verdict == "INVALID" else self.read(row)


THROUGHPUT = Group("Throughput per second")
LATENCIES = {metric: Group(metric.upper(), title, "ms") for metric, title in formatting.METRICS.items()}


def topology(item: Measurement) -> Topology | None:
    """Return the topology in a measurement's ledger key; None where the key holds none.

    Raises:
        ValueError, TypeError, AttributeError: what stands there is no topology.
    """
    parts = item.key_parts.get("deployment", {}).get("topology")
    return Topology.model_validate(parts) if parts else None


def replicas(item: Measurement) -> dict[str, int]:
    """Return the requests of each replica, r2 before r10; none where there is only one replica."""
    counts = item.replica_requests if len(item.replica_requests) > 1 else {}
    return dict(sorted(counts.items(), key=lambda pair: (len(pair[0]), pair[0])))


def _of_topology(name: str, dtype: str) -> Column:
    return Column(name, dtype, lambda row: getattr(row.shape, name, None))


def _latency(metric: str, statistic: str) -> Column:
    def read(row: Row) -> Any:
        return getattr(getattr(row.item, f"{metric}_ms"), statistic, None)

    if statistic == "count":
        return Column(f"{metric}_count", _WHOLE, read, figure=True)
    label = f"{metric.upper()} {statistic}"
    return Column(
        f"{metric}_{statistic}_ms", _NUMBER, read, figure=True, label=label, unit="ms",
        group=LATENCIES[metric] if statistic in ("p50", "p95", "p99") else None, heading=statistic,
        verdicts=label == "TTFT p99", terminal=label if label in ("TTFT p50", "TTFT p99", "TPOT p50", "E2EL p50") else "",
    )  # fmt: skip


COLUMNS: tuple[Column, ...] = (
    Column("deployment", _TEXT, lambda row: row.item.deployment),
    Column("workload", _TEXT, lambda row: row.load.workload),
    Column("point", _TEXT, lambda row: row.load.name),
    # Of the servers; devices are ranks over all nodes.
    _of_topology("nodes", _WHOLE),
    Column("devices", _WHOLE, lambda row: row.shape and row.shape.world_size),
    *(_of_topology(name, _WHOLE) for name in ("tensor_parallel", "pipeline_parallel", "data_parallel", "replicas")),
    # Who spreads requests over the data parallel engines of a server, and how the router spreads them.
    _of_topology("balancing", _TEXT),
    Column("routing", _TEXT, lambda row: row.shape.routing if row.shape and row.shape.routed else None),
    _of_topology("executor", _TEXT),
    # Where the load comes from.
    _of_topology("client", _TEXT),
    Column("concurrency", _WHOLE, lambda row: row.load.concurrency),
    Column("request_rate_per_s", _NUMBER, lambda row: row.load.request_rate),
    Column("repetition", _WHOLE, lambda row: row.load.repetition),
    Column("seed", _WHOLE, lambda row: row.load.seed),
    # Of each request, without what all prompts begin with; total_input_tokens holds that too.
    Column("input_tokens", _WHOLE, lambda row: row.load.prompts.input_tokens),
    Column("output_tokens", _WHOLE, lambda row: row.load.prompts.output_tokens),
    Column("clients", _WHOLE, lambda row: row.load.clients),
    Column("ask", _TEXT, lambda row: row.load.ask),
    Column("verdict", _TEXT, lambda row: row.item.verdict),
    # Codes; the sentences stay in the records.
    Column("reasons", _TEXT, lambda row: " ".join(reason.code for reason in row.item.reasons) or None),
    Column("failure", _TEXT, lambda row: row.item.failure and row.item.failure.reason),
    Column("requests_asked", _WHOLE, lambda row: row.load.requests),
    Column("requests_completed", _WHOLE, lambda row: row.item.completed),
    Column("requests_failed", _WHOLE, lambda row: row.item.failed),
    Column("duration_s", _NUMBER, lambda row: row.item.duration_s, figure=True),
    Column("total_input_tokens", _WHOLE, lambda row: row.item.total_input_tokens, figure=True),
    Column("total_output_tokens", _WHOLE, lambda row: row.item.total_output_tokens, figure=True),
    Column("output_tokens_per_s", _NUMBER, lambda row: row.item.output_throughput, figure=True, label="Output tokens/s", group=THROUGHPUT,
           heading="output tokens", verdicts=True, terminal="out tok/s"),
    Column("total_tokens_per_s", _NUMBER, lambda row: row.item.total_throughput, figure=True, label="Total tokens/s", group=THROUGHPUT,
           heading="all tokens"),
    Column("requests_per_s", _NUMBER, lambda row: row.item.request_throughput, figure=True, label="Requests/s", group=THROUGHPUT,
           heading="requests"),
    *(_latency(metric, statistic) for metric in formatting.METRICS for statistic in STATISTICS),
    *(_latency(metric, "count") for metric in formatting.METRICS),
    # r0=64 r1=66; empty for one replica.
    Column("replica_requests", _TEXT, lambda row: " ".join(f"{name}={count}" for name, count in replicas(row.item).items()) or None),
    # Of the busiest process.
    Column("client_cpu_cores", _NUMBER, lambda row: row.item.client_cpu, figure=True),
    Column("started_at", _TEXT, lambda row: row.item.started_at),
    Column("client_node", _TEXT, lambda row: row.item.client_node),
    Column("job_id", _TEXT, lambda row: row.job_id),
    Column("attempt", _TEXT, lambda row: row.item.attempt),
    Column("key", _TEXT, lambda row: row.item.key),
    Column("raw", _TEXT, lambda row: row.item.raw),
    Column("raw_sha256", _TEXT, lambda row: row.item.raw_sha256),
)  # fmt: skip

GROUPS = (THROUGHPUT, *LATENCIES.values())
MEDIANS = tuple(column for group in GROUPS for column in group.columns)
VERDICTS = tuple(column for column in COLUMNS if column.verdicts)
TERMINAL = tuple(column for column in COLUMNS if column.terminal)
