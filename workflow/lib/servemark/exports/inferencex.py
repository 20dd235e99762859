"""Rows of InferenceX (https://github.com/SemiAnalysisAI/InferenceX), as its utils/process_result.py writes them for one node.

InferenceX computes its values from the result file of ``vllm bench serve`` and the variables of its CI job. What no record of servemark
states is left out: ``infmax_model_prefix`` and ``recipe_fingerprint`` (names of InferenceX's own recipes), GPU power in its schema, and
``std_intvty`` (1000 / standard deviation, which has no meaning).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from servemark.exports.point import Point
from servemark.records import Summary
from servemark.report.gather import RunRecords

FILE = "results.json"
_STATISTICS = {"mean": "mean", "median": "p50", "std": "std", "p95": "p95", "p99": "p99"}
_QUANTISED = {"mxfp4": "fp4", "nvfp4": "fp4", "modelopt_fp4": "fp4"}
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "half": "fp16", "float": "fp32"}


def documents(_found: RunRecords, points: list[Point]) -> Iterator[tuple[str, Any]]:
    """Yield one file with a list of rows.

    The format has no field for request rates without a concurrency, and none for several nodes or replicas that do not separate prefill
    and decode. Such measurements have no row.
    """
    yield FILE, [_row(point) for point in points if point.record.load.concurrency and _fits(point)]


def _fits(point: Point) -> bool:
    return point.topology.replicas == 1 and point.topology.nodes_of_a_replica == 1


def _row(point: Point) -> dict[str, Any]:
    record, topology, load = point.record, point.topology, point.record.load
    total, output = record.total_throughput or 0.0, record.output_throughput or 0.0
    devices = topology.world_size
    attention = topology.data_parallel > 1
    image = point.environment.container.image if point.environment and point.environment.container else ""
    row = {
        "hw": point.device,
        "conc": load.concurrency,
        "image": image,
        "model": point.plan.served_name,
        "framework": "vllm",
        "precision": _precision(point),
        "spec_decoding": "none" if "speculative-config" not in point.options else "other",
        "disagg": False,
        "isl": load.prompt_tokens,
        "osl": load.prompts.output_tokens,
        "is_multinode": False,
        # InferenceX passes its TP as vLLM's data parallel size if attention is data parallel.
        "tp": topology.tensor_parallel * topology.data_parallel,
        "pp": topology.pipeline_parallel,
        "dcp_size": int(point.options.get("decode-context-parallel-size") or 1),
        "pcp_size": int(point.options.get("prefill-context-parallel-size") or 1),
        "ep": point.expert_parallel,
        "dp_attention": "true" if attention else "false",
        "tput_per_gpu": total / devices,
        "output_tput_per_gpu": output / devices,
        "input_tput_per_gpu": (total - output) / devices,
    }
    for name in ("ttft", "tpot", "itl", "e2el"):
        row |= _latency(name, getattr(record, f"{name}_ms"))
    own = {"deployment": record.deployment, "point": load.name, "verdict": record.verdict, "key": record.key}
    return row | {"servemark": own}


def _latency(name: str, summary: Summary | None) -> Mapping[str, float]:
    """Return a latency in seconds, and for TPOT also its reciprocal, tokens/s of one request."""
    if summary is None:
        return {}
    values = {label: float(getattr(summary, field)) for label, field in _STATISTICS.items()}
    row = {f"{label}_{name}": value / 1000 for label, value in values.items()}
    if name == "tpot":
        row |= {f"{label}_intvty": 1000 / value for label, value in values.items() if label != "std" and value > 0}
    return row


def _precision(point: Point) -> str:
    """Return the format of the weights as InferenceX names it."""
    config = point.model.config if point.model else {}
    text = {**config, **config["text_config"]} if isinstance(config.get("text_config"), dict) else config
    settings = text.get("quantization_config")
    method = point.options.get("quantization") or (settings.get("quant_method") if isinstance(settings, dict) else None)
    if method:
        return _QUANTISED.get(str(method), str(method))
    asked = point.options.get("dtype")
    dtype = str(asked if asked not in (None, "auto") else text.get("dtype") or text.get("torch_dtype") or "unknown")
    return _DTYPES.get(dtype.removeprefix("torch."), dtype)
