"""Benchmark reports 0.2.1 of llm-d, one per measurement.

Source: https://github.com/llm-d/llm-d-benchmark, llmdbenchmark/analysis/benchmark_report.

Left out, because no record of servemark states it: pod, cluster and user (``run.pid``, ``cid``, ``user``); the end of the load
(``run.time.end``); percentiles other than p50, p95 and p99, minimum and mode; ``normalized_time_per_output_token``; distributions of the
lengths; everything of Kubernetes (``component_health``, most of ``observability``); sessions; multi-modal payloads. The format has no field
for the steady state, for verdicts and for repetitions: results are of the whole run, and the verdict is a keyword.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from servemark.exports.point import Point
from servemark.measurement import key
from servemark.records import Summary
from servemark.report import formatting
from servemark.report.gather import RunRecords

VERSION = "0.2.1"
_LATENCIES = {
    "time_to_first_token": ("ttft_ms", "ms"),
    "time_per_output_token": ("tpot_ms", "ms/token"),
    "inter_token_latency": ("itl_ms", "ms/token"),
    "request_latency": ("e2el_ms", "ms"),
}


def documents(found: RunRecords, points: list[Point]) -> Iterator[tuple[str, Any]]:
    """Yield one file for each measurement."""
    for point in points:
        yield f"{point.record.deployment}/{point.record.load.name}.json", _report(found, point)


def _report(found: RunRecords, point: Point) -> dict[str, Any]:
    record = point.record
    keywords = [record.verdict, *dict.fromkeys(reason.code for reason in record.reasons)]
    run = {
        "uid": record.raw_sha256 or record.key,
        "eid": found.run,
        "time": _set({"start": record.started_at, "duration": _duration(record.duration_s)}),
        "description": f"servemark run {found.run}, deployment {record.deployment}, load point {record.load.name}",
        "keywords": keywords,
    }
    scenario = {"stack": list(_stack(point)), "load": _load(point)}
    return {"version": VERSION, "run": run, "scenario": scenario, "results": {"request_performance": {"aggregate": _aggregate(point)}}}


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else f"PT{seconds:.6f}S"


def _stack(point: Point) -> Iterator[dict[str, Any]]:
    topology = point.topology
    engine = {
        "kind": "inference_engine",
        "tool": "vllm",
        "tool_version": point.vllm,
        "role": "replica",
        "replicas": topology.replicas,
        "model": {"name": point.plan.served_name},
        "accelerator": {
            "model": point.device,
            "count": topology.world_size,
            "parallelism": {
                "tp": topology.tensor_parallel,
                "dp": topology.data_parallel,
                "dp_local": max(1, topology.data_parallel // topology.nodes_of_a_replica),
                "workers": topology.nodes_of_a_replica,
                "ep": point.expert_parallel,
                "pp": topology.pipeline_parallel,
            },
        },
    }
    options = {f"--{name}": value for name, value in formatting.plain(point.options).items()}
    yield {
        "metadata": {"label": point.record.deployment, "cfg_id": _digest(point.plan.key_parts)},
        "standardized": _set(engine),
        "native": {"args": options, "envars": formatting.plain({**point.plan.inherited, **point.plan.variables})},
    }
    if topology.routed:
        router = {"policy": topology.routing, "engines": topology.routed_engines}
        yield {
            "metadata": {"label": f"{point.record.deployment}-router", "cfg_id": _digest(router)},
            "standardized": {"kind": "generic", "tool": "vllm-router", "tool_version": "unknown"},
            "native": {"config": router},
        }


def _load(point: Point) -> dict[str, Any]:
    load = point.record.load
    kind = "fixed" if load.prompts.dataset == "random" else "other"
    standardized: dict[str, Any] = {
        "tool": "vllm-benchmark",
        "tool_version": point.vllm,
        "parallelism": load.clients,
        "source": "random" if kind == "fixed" else "sampled",
        "input_seq_len": {"distribution": kind, "value": load.prompt_tokens},
        "output_seq_len": {"distribution": kind, "value": load.prompts.output_tokens},
        "rate_qps": load.request_rate,
        "concurrency": load.concurrency,
    }
    if load.prefix_tokens:
        length = {"distribution": "fixed", "value": load.prefix_tokens}
        standardized["prefix"] = {"prefix_len": length, "num_groups": 1, "num_users_per_group": 1, "num_prefixes": 1}
    parts = key.point_parts(load)
    return {
        "metadata": {"cfg_id": _digest(parts), "description": f"workload {load.workload}, repetition {load.repetition}"},
        "standardized": _set(standardized),
        "native": {"config": formatting.plain(load.model_dump(mode="json"))},
    }


def _aggregate(point: Point) -> dict[str, Any]:
    record = point.record
    requests = _set({
        "total": record.completed + record.failed,
        "failures": record.failed,
        "input_length": _mean(record.total_input_tokens, record.completed),
        "output_length": _mean(record.total_output_tokens, record.completed),
    })  # fmt: skip
    latency = {name: _statistics(getattr(record, field), units) for name, (field, units) in _LATENCIES.items()}
    total, output = record.total_throughput, record.output_throughput
    inputs = total - output if total is not None and output is not None else None
    rates = {"input_token_rate": inputs, "output_token_rate": output, "total_token_rate": total}
    throughput = {name: {"units": "tokens/s", "mean": value} for name, value in rates.items() if value is not None}
    if record.request_throughput is not None:
        throughput["request_rate"] = {"units": "queries/s", "mean": record.request_throughput}
    return {"requests": requests, "latency": _set(latency), "throughput": throughput}


def _mean(tokens: int | None, requests: int) -> dict[str, Any] | None:
    return {"units": "count", "mean": tokens / requests} if tokens is not None and requests else None


def _statistics(summary: Summary | None, units: str) -> dict[str, Any] | None:
    if summary is None:
        return None
    values = {"mean": summary.mean, "stddev": summary.std, "p50": summary.p50, "p95": summary.p95, "p99": summary.p99, "max": summary.max}
    return {"units": units, **values}


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are set, also those inside: the schema has no null for a value that is not known."""
    return {name: _set(value) if isinstance(value, Mapping) else value for name, value in values.items() if value is not None}


def _digest(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
