"""Define the columns of all tables of measurements. CSV and Parquet have all of them, terminal and report some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from servemark.measurement import counters, telemetry, thresholds
from servemark.records import Telemetry
from servemark.records.restarts import configured
from servemark.report import formatting, measured
from servemark.report.measured import Row

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
    "tpot": "time per output token after the first, averaged over each request",
    "itl": "time between two chunks of a response stream",
    "e2el": "time from the start of a request to its last token",
}
_TERMINAL = ("TTFT mean", "TTFT p50", "TTFT p95", "TTFT p99", "TPOT p50", "E2EL p50")
LOAD = ("deployment", "workload", "concurrency", "request_rate_per_s")
"""The columns that name a load point."""
STEADY = "steady_"
"""Begins the names of results of the steady state. The rest of the name is that of the same result of the whole run."""
SEVERAL_TOKENS = 1.05
"""Mean tokens per chunk above which the report calls ITL a time between chunks: one chunk in 20 holds two tokens."""


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
        since: archive format from which on records have the value.
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
    since: int = 1

    def value(self, row: Row) -> Any:
        """Return the value of one measurement. Every result of an INVALID one is None."""
        return None if self.figure and row.item.verdict == "INVALID" else self.read(row)


THROUGHPUT = Group("Throughput per second")
LATENCIES = {metric: Group(metric.upper(), title, "ms") for metric, title in formatting.METRICS.items()}


def _of_topology(name: str, meaning: str, dtype: str) -> Column:
    return Column(name, meaning, dtype, lambda row: getattr(row.shape, name, None))


def _of_telemetry(name: str, meaning: str, read: Callable[[Telemetry], Any], label: str, unit: str = "") -> Column:
    def value(row: Row) -> Any:
        return None if row.item.telemetry is None else read(row.item.telemetry)

    return Column(name, meaning, _NUMBER, value, figure=True, label=label, unit=unit)


def _of_slo(name: str, meaning: str, field: str, label: str = "", dtype: str = _NUMBER) -> Column:
    return Column(name, meaning, dtype, lambda row: getattr(row.slo, field, None), figure=True, label=label, since=3)


def _latency(metric: str, statistic: str) -> Column:
    def read(row: Row) -> Any:
        return getattr(getattr(row.item, f"{metric}_ms"), statistic, None)

    if statistic == "count":
        label = "Requests" if metric == "ttft" else ""
        return Column(f"{metric}_count", f"{_LATENCIES[metric]}: number of values", _WHOLE, read, figure=True, label=label)
    label = f"{metric.upper()} {statistic}"
    return Column(
        f"{metric}_{statistic}_ms", f"{_LATENCIES[metric]}: {STATISTICS[statistic]}", _NUMBER, read, figure=True, label=label, unit="ms",
        group=LATENCIES[metric] if statistic in ("p50", "p95", "p99") else None, heading=statistic,
        verdicts=label == "TTFT p99",
    )  # fmt: skip


def _recorded(name: str, meaning: str, field: str, label: str = "", dtype: str = _NUMBER) -> Column:
    """Return the column of a measurement's own field that records have since archive format 3."""
    return Column(name, meaning, dtype, lambda row: getattr(row.item, field), figure=True, label=label, since=3)


def _steady(name: str, meaning: str, field: str, label: str = "", dtype: str = _NUMBER, **shown: Any) -> Column:
    """Return the column of a field of ``Measurement.steady``."""

    def read(row: Row) -> Any:
        return getattr(row.item.steady, field, None)

    label = f"{label}, steady state" if label else ""
    return Column(STEADY + name, f"steady state: {meaning}", dtype, read, figure=True, label=label, since=3, **shown)


def _steady_latency(metric: str, statistic: str) -> Column:
    def read(row: Row) -> Any:
        return getattr(getattr(row.item.steady, f"{metric}_ms", None), statistic, None)

    meaning = f"steady state: {_LATENCIES[metric]}"
    if statistic == "count":
        return Column(f"{STEADY}{metric}_count", f"{meaning}: number of values", _WHOLE, read, figure=True, since=3)
    label = f"{metric.upper()} {statistic}"
    return Column(
        f"{STEADY}{metric}_{statistic}_ms", f"{meaning}: {STATISTICS[statistic]}; empty with too few requests", _NUMBER, read,
        figure=True, label=f"{label}, steady state", unit="ms", verdicts=label == "TTFT p99",
        terminal=label if label in _TERMINAL else "", since=3,
    )  # fmt: skip


def _range_end(index: int, name: str) -> Column:
    def read(row: Row) -> Any:
        found = row.item.steady and row.item.steady.ttft_ms and row.item.steady.ttft_ms.p95_range
        return found[index] if found else None

    what = f"{name} end of the 95 % confidence interval of the TTFT's 95th percentile"
    meaning = f"steady state: {what}; empty if requests start in waves or are too few"
    return Column(f"{STEADY}ttft_p95_{name}_ms", meaning, _NUMBER, read, figure=True, since=3)


def _per_token(prefix: str) -> Column:
    def read(row: Row) -> Any:
        itl, tokens = (row.item.steady if prefix else row.item), row.item.tokens_per_chunk
        return itl.itl_ms.mean / tokens if itl and itl.itl_ms and tokens else None

    meaning = f"{'steady state: ' if prefix else ''}mean time between two chunks, divided by `tokens_per_chunk`"
    return Column(f"{prefix}itl_per_token_ms", meaning, _NUMBER, read, figure=True, label="ITL per token", unit="ms", since=3)


COLUMNS: tuple[Column, ...] = (
    Column("deployment", "name of the deployment", _TEXT, lambda row: configured(row.item.deployment)),
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
    Column("restart", "number of the servers' start, from 0 (`restarts`)",
           _WHOLE, lambda row: row.load.restart, since=3),
    Column("seed", "seed of the prompts", _WHOLE, lambda row: row.load.seed),
    Column("input_tokens", "tokens of each prompt, without a shared prefix",
           _WHOLE, lambda row: row.load.prompts.input_tokens),
    Column("output_tokens", "output tokens of each request", _WHOLE, lambda row: row.load.prompts.output_tokens),
    Column("clients", "number of client processes", _WHOLE, lambda row: row.load.clients),
    Column("ask", "target of the requests: `endpoint`, or `replica` without the router", _TEXT, lambda row: row.load.ask),
    Column("verdict", "VALID, SUSPECT or INVALID", _TEXT, lambda row: row.item.verdict),
    Column("reasons", "codes of the [reasons](reasons.md), separated by spaces",
           _TEXT, lambda row: " ".join(reason.code for reason in row.item.reasons) or None),
    Column("thresholds", "thresholds of the verdict that differ from the defaults, such as `min_requests_per_slot=2`",
           _TEXT, lambda row: thresholds.changed(row.item.thresholds) or None),
    Column("failure", "code of the failure that prevented the measurement",
           _TEXT, lambda row: row.item.failure and row.item.failure.reason),
    Column("requests_asked", "requests of the load point", _WHOLE, lambda row: row.load.requests),
    Column("requests_completed", "requests that completed", _WHOLE, lambda row: row.item.completed),
    Column("requests_failed", "requests that failed", _WHOLE, lambda row: row.item.failed),
    Column("duration_s", "duration of the measurement; see [results](../explanation/numbers.md#from-requests-to-results)",
           _NUMBER, lambda row: row.item.duration_s, figure=True),
    Column("total_input_tokens", "input tokens of all completed requests, including a shared prefix",
           _WHOLE, lambda row: row.item.total_input_tokens, figure=True),
    Column("total_output_tokens", "output tokens of all completed requests", _WHOLE, lambda row: row.item.total_output_tokens, figure=True),
    Column("output_tokens_per_s", "output tokens per second",
           _NUMBER, lambda row: row.item.output_throughput, figure=True, label="Output tokens/s", group=THROUGHPUT,
           heading="output tokens", verdicts=True),
    Column("total_tokens_per_s", "input and output tokens per second",
           _NUMBER, lambda row: row.item.total_throughput, figure=True, label="Total tokens/s", group=THROUGHPUT,
           heading="all tokens"),
    Column("requests_per_s", "completed requests per second",
           _NUMBER, lambda row: row.item.request_throughput, figure=True, label="Requests/s", group=THROUGHPUT,
           heading="requests"),
    *(_latency(metric, statistic) for metric in formatting.METRICS for statistic in STATISTICS),
    *(_latency(metric, "count") for metric in formatting.METRICS),
    _recorded("steady_missing", "why the load has no steady state", "steady_missing", dtype=_TEXT),
    _steady("too_few", "which percentiles are empty, and why", "too_few", dtype=_TEXT),
    _steady("begin_s", "begin, seconds after the first start", "begin_s"),
    _steady("end_s", "end, seconds after the first start", "end_s"),
    _steady("requests", "completed requests that start in it", "requests", "Requests", _WHOLE),
    _steady("cycles", "requests of each slot in one window of the throughput; empty for a request rate", "cycles", dtype=_WHOLE),
    _steady("waves", "how much the requests of a cycle start together, from 0 to 1; empty for a request rate", "waves"),
    _steady("output_tokens_per_s", "output tokens per second", "output_throughput", "Output tokens/s", verdicts=True, terminal="out tok/s"),
    _steady("total_tokens_per_s", "input and output tokens per second", "total_throughput", "Total tokens/s"),
    _steady("requests_per_s", "requests per second", "request_throughput", "Requests/s"),
    _steady("in_flight", "mean number of requests in flight", "in_flight", "In flight"),
    *(_steady_latency(metric, statistic) for metric in formatting.METRICS for statistic in STATISTICS),
    *(_steady_latency(metric, "count") for metric in formatting.METRICS),
    _range_end(0, "low"),
    _range_end(1, "high"),
    _recorded("in_flight", "mean number of requests in flight, from the first start to the last end", "in_flight_mean", "In flight"),
    _recorded("in_flight_most", "highest number of requests in flight", "in_flight_most", "Most in flight", _WHOLE),
    _recorded("peak_output_tokens_per_s", "most output tokens in any one second", "peak_output_throughput", "Peak output tokens/s"),
    _recorded("tokens_per_chunk", "mean output tokens of a chunk after the first one", "tokens_per_chunk", "Tokens per chunk"),
    _per_token(""),
    _per_token(STEADY),
    Column("slo_met", "whether all latency targets (`slo`) are met; empty without targets, or with too few requests",
           _TEXT, lambda row: None if row.slo is None else "yes" if row.slo.met else "no", figure=True, since=3),
    _of_slo("slo_part", "requests counted for the targets: `steady state` or `whole run`", "part", dtype=_TEXT),
    _of_slo("slo_attainment", "share of the requests that keep every limit of the targets, from 0 to 1", "share", "Attainment"),
    _of_slo("goodput_requests_per_s", "completed requests per second that keep every limit", "requests_per_s", "Goodput requests/s"),
    _of_slo("goodput_output_tokens_per_s", "output tokens per second of these requests", "tokens_per_s", "Goodput output tokens/s"),
    Column("replica_requests", "requests of each replica, such as `r0=64 r1=66`; empty for one replica",
           _TEXT, lambda row: " ".join(f"{name}={count}" for name, count in measured.replicas(row.item).items()) or None),
    Column("prefix_hit_share", "share of the prompts' tokens that were in the servers' prefix cache; empty if not reported",
           _NUMBER, lambda row: counters.hit_share(row.item.counters), figure=True, label="Prefix hit share"),
    Column("preemptions", "requests that the servers preempted and computed again; empty if not reported",
           _WHOLE, lambda row: measured.preemptions(row.item), figure=True),
    Column("acceptance_length", "mean tokens of a step of speculative decoding; empty without it",
           _NUMBER, lambda row: counters.acceptance_length(row.item.counters), figure=True),
    Column("client_cpu_cores", "CPU time of the busiest client process, in cores", _NUMBER, lambda row: row.item.client_cpu, figure=True),
    Column("gpu_energy_j_per_output_token", "GPU energy per output token in joules, of all allocated GPUs, also idle ones; see "
           "[GPU energy](../explanation/telemetry.md#gpu-energy)",
           _NUMBER, lambda row: measured.energy(row, 1.0), figure=True, label="GPU energy per output token", unit="J"),
    Column("gpu_kwh_per_million_tokens", "GPU energy per million output tokens in kWh",
           _NUMBER, lambda row: measured.energy(row, 1e6 / telemetry.JOULES_PER_KWH), figure=True,
           label="GPU energy per million output tokens", unit="kWh"),
    _of_telemetry("gpu_power_w", "mean power of all allocated GPUs", lambda found: found.power_w, "GPU power", "W"),
    _of_telemetry("gpu_sm_clock_mhz", "mean SM clock of the GPUs with ranks", lambda found: found.sm_clock_mhz, "SM clock", "MHz"),
    Column("gpus_allocated", "number of GPUs whose energy is counted",
           _WHOLE, lambda row: len(row.item.telemetry.gpus) or None if row.item.telemetry else None),
    Column("gpus_idle", "GPUs that did no work, as NODE:POSITION, separated by spaces", _TEXT, measured.idle),
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
STEADY_MEDIANS = tuple(column for column in COLUMNS if column.name in {STEADY + median.name for median in MEDIANS})
_SIDE = ("ttft_count", "steady_requests", "steady_in_flight", "in_flight", "in_flight_most", "peak_output_tokens_per_s", "tokens_per_chunk")
_COUNTED = ("prefix_hit_share",)
_PER_TOKEN = ("itl_per_token_ms", "steady_itl_per_token_ms")
SIDE_MEDIANS = tuple(column for column in COLUMNS if column.name in (*_SIDE, *_PER_TOKEN, *_COUNTED))
"""What the report shows next to ``MEDIANS`` and ``STEADY_MEDIANS``, without its range."""
VERDICTS = tuple(column for column in COLUMNS if column.verdicts)
TERMINAL = tuple(column for column in COLUMNS if column.terminal)
