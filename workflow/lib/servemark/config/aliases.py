"""What other tools call a key of the configuration, in one table."""

from __future__ import annotations

ALIASES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("tp", "tp-size", "tensor-parallel", "tensor-parallel-size"), ("tensor_parallel",)),
    **dict.fromkeys(("pp", "pp-size", "pipeline-parallel", "pipeline-parallel-size"), ("pipeline_parallel",)),
    **dict.fromkeys(("dp", "dp-size", "data-parallel", "data-parallel-size"), ("data_parallel",)),
    **dict.fromkeys(("gpu", "gpus", "n-gpus", "ngpus", "num-gpus", "devices"), ("tensor_parallel", "gpus_per_node")),
    **dict.fromkeys(("nnodes", "n-nodes", "num-nodes"), ("nodes",)),
    **dict.fromkeys(("backend", "distributed-executor-backend"), ("executor",)),
    **dict.fromkeys(("max-len", "max-length", "max-seq-len", "context-length"), ("options.max-model-len",)),
    **dict.fromkeys(("args", "engine-args", "vllm-args", "serve-options"), ("options",)),
    **dict.fromkeys(("env", "envs", "env-vars"), ("variables",)),
    **dict.fromkeys(("path", "model-path", "weights"), ("source",)),
    **dict.fromkeys(("num-prompts", "prompts"), ("requests",)),
    **dict.fromkeys(("max-concurrency", "concurrent-requests", "users"), ("concurrency",)),
    **dict.fromkeys(("qps", "rps", "rate", "request-rates"), ("request_rate",)),
    **dict.fromkeys(("input-len", "prompt-tokens", "isl"), ("input_tokens",)),
    **dict.fromkeys(("output-len", "max-tokens", "osl"), ("output_tokens",)),
    **dict.fromkeys(("reps", "repeat", "repeats", "runs"), ("repetitions",)),
    **dict.fromkeys(("queue",), ("partition",)),
    **dict.fromkeys(("time", "walltime", "time-limit"), ("max_minutes",)),
}
"""Name with dashes -> keys that may be meant, the likeliest first; ``options.NAME`` is an option of ``vllm serve``."""


def meant(name: str) -> tuple[str, ...]:
    """Return the keys that ``name`` may stand for; itself alone where the table does not have it."""
    return ALIASES.get(name.replace("_", "-").lower(), (name,))
