"""Random weights on real vLLM (CPU): a small gpt-oss reaches as many experts as uniform choice would; with vLLM's own weights, few."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from integration.harness import ROOT
from servemark.launch import random_weights
from servemark.variables import passed_on

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
SMALL = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "torch_dtype": "bfloat16",
    "vocab_size": 20_000,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "attention_bias": True,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 128,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "swiglu_limit": 7.0,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150_000,
    "tie_word_embeddings": False,
}


@pytest.fixture
def python(fresh) -> str:
    """Return the interpreter of the cpu lock's environment, which is built once in the checkout's cache."""
    if sys.version_info[:2] != (3, 11) or platform.machine() != "x86_64":
        reason = "the cpu lock is for CPython 3.11 on x86_64"
        if os.environ.get("SERVEMARK_REQUIRE_REAL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    fresh.config |= {"environments": {"standin": {"lock": "cpu"}}, "cache": str(ROOT / "results" / "cache")}
    asked = f"results/{fresh.config['run']}/environments/standin/environment.json"
    done = fresh.run("--", asked, seconds=600)
    assert done.rc == 0, done.text
    return fresh.record("environments/standin/environment.json")["python"]


def reached(python: str, folder: Path, load_format: str) -> list[list[int]]:
    """Return the experts reached in each decode step of each layer."""
    output = folder / f"{load_format}.json"
    argv = [python, str(Path(__file__).with_name("count_experts.py")), str(folder), load_format, str(output)]
    own = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    own |= random_weights.environment({"load-format": random_weights.LOAD_FORMAT}, {})
    done = subprocess.run(argv, env=passed_on.clean_environment(own), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(output.read_text())


def test_random_weights_reach_experts_evenly(python, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    ours = reached(python, tmp_path, random_weights.LOAD_FORMAT)
    assert len(ours) == SMALL["num_hidden_layers"]
    # 64 independent choices of 4 in 128 leave 128 x (124/128)**64 = 17 out on average, give or take 3.
    assert all(len(steps) >= 40 and min(steps) >= 96 for steps in ours), ours
    vllms = reached(python, tmp_path, "dummy")
    assert len(vllms) == SMALL["num_hidden_layers"]
    assert all(max(steps) <= 8 for steps in vllms), "vLLM's own dummy weights now spread: update the documents that compare them"


DRAWN = """
import json, torch
from torch import nn
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from servemark_random_weights import drawn
whole, words = (kind.__new__(kind) for kind in (ReplicatedLinear, VocabParallelEmbedding))
def of(name, dtype, *shape, module=nn.Module(), rank=0):
    return drawn(name, torch.full(shape, 7).to(dtype), module, rank)
half, bits = torch.bfloat16, torch.uint8
router = of("l.0.mlp.router.weight", half, 128, 512, module=whole)
print(json.dumps({
    "scales": of("l.0.mlp.experts.w13_weight_scale", bits, 4, 8).unique().tolist(),
    "blocks": len(of("l.0.mlp.experts.w13_weight", bits, 64, 64).unique()),
    "bias": of("l.0.mlp.experts.w13_bias", half, 4, 8).unique().tolist(),
    "norm": of("l.0.norm.weight", half, 8).unique().tolist(),
    "float scale": of("l.0.mlp.experts.w13_weight_scale_inv", half, 4, 8) is None,
    "experts": of("l.0.mlp.experts.w13_weight", half, 4, 8, 8) is None,
    "packed": of("l.0.qweight", torch.int32, 4, 8) is None,
    "router": round(float(router.float().std()) * 512**0.5, 1),
    "same on all ranks": bool((router == of("l.0.mlp.router.weight", half, 128, 512, module=whole, rank=1)).all()),
    "other layer": bool((router == of("l.1.mlp.router.weight", half, 128, 512, module=whole)).all()),
    "shards": bool((of("e.weight", half, 8, 8, module=words) == of("e.weight", half, 8, 8, module=words, rank=1)).all()),
}))
"""


def test_random_values_for_each_kind_of_parameter(python):
    own = random_weights.environment({"load-format": random_weights.LOAD_FORMAT}, {})
    argv = [python, "-c", DRAWN]
    done = subprocess.run(argv, env=passed_on.clean_environment(own), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "scales": [117],
        "blocks": 256,
        "bias": [0.0],
        "norm": [1.0],
        "float scale": True,
        "experts": True,
        "packed": True,
        "router": 1.0,
        "same on all ranks": True,
        "other layer": False,
        "shards": False,
    }
