"""Architectures on real vLLM (CPU): a run serves a model of each kind, and the plan's KV cache is compared with the server's log."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from servemark.variables import passed_on
from servemark.weights import builtin

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
COMMON = {"vocab_size": builtin.VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "hidden_size": 256, "max_position_embeddings": 1024}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
MODELS = {
    "opt": {"model_type": "opt", **COMMON, "word_embed_proj_dim": 256, "ffn_dim": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
            "pad_token_id": 1},
    "gpt2": {"model_type": "gpt2", "vocab_size": builtin.VOCABULARY, "n_embd": 256, "n_head": 4, "n_layer": 2, "n_positions": 1024,
             "bos_token_id": 0, "eos_token_id": 0},
    # The CPU kernel of latent attention takes a latent vector of 512 + 64 only.
    "mla": {"model_type": "deepseek_v2", **COMMON, "intermediate_size": 512, "moe_intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
            "first_k_dense_replace": 1, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128, "topk_method": "greedy", "n_group": 1, "topk_group": 1},
    "mamba": {"model_type": "granitemoehybrid", **COMMON, **HEADS, "intermediate_size": 128, "shared_intermediate_size": 256,
              "num_local_experts": 0, "num_experts_per_tok": 0, "num_hidden_layers": 4, "layer_types": ["mamba"] * 3 + ["attention"],
              "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_conv": 4, "mamba_expand": 2,
              "tie_word_embeddings": True, "position_embedding_type": "nope"},
}  # fmt: skip


def make_models(python: str, folder: Path) -> dict[str, Path]:
    """Write a checkpoint of each model with the tokenizer of a built-in model."""
    builtin.make("tiny-dense", folder / "tokenizer")
    (folder / "configs.json").write_text(json.dumps(MODELS))
    argv = [python, str(Path(__file__).with_name("make_tiny_models.py")), str(folder / "configs.json"), str(folder)]
    done = subprocess.run(argv, env=passed_on.clean_environment({}), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in MODELS:
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(folder / "tokenizer" / file, folder / name)
    return {name: folder / name for name in MODELS}


# Its KV cache differs most from that of the tiny model, which other tests serve. The others start four more servers.
def test_latent_attention_is_planned_and_served(real, tmp_path):
    serve(real, tmp_path, ("mla",))


@pytest.mark.full
def test_other_architectures_are_planned_and_served(real, tmp_path):
    serve(real, tmp_path, ("opt", "gpt2", "moe", "mamba"))


def serve(real, folder: Path, names: Sequence[str]) -> None:
    """Measure a deployment of each model, and compare the plan's KV cache with the server's log."""
    deployment = {"environment": "cpu", "options": {"max-model-len": 512, "enforce-eager": True, "dtype": "bfloat16"}}
    deployment |= {"variables": {"VLLM_CPU_KVCACHE_SPACE": "1"}}
    sources = {"moe": "builtin:tiny-moe"}
    real.config["models"] = {"moe": {"source": sources["moe"]}}
    real.config["deployments"] = {"moe": deployment | {"model": "moe"}}
    asked = f"results/{real.config['run']}/environments/cpu/environment.json"
    done = real.run("--", asked, seconds=600)
    assert done.rc == 0, done.text
    sources |= make_models(real.record("environments/cpu/environment.json")["python"], folder / "models")
    real.config["models"] = {name: {"source": str(sources[name])} for name in names}
    real.config["deployments"] = {name: deployment | {"model": name} for name in names}
    if "mamba" in names:
        # Without it, vLLM's choice on CPU depends on the CPU's instructions (platforms/cpu.py, 0.32.0).
        real.config["deployments"]["mamba"]["options"] = deployment["options"] | {"mamba-ssm-cache-dtype": "float32"}
    real.config["workloads"] = {"chat": {"dataset": "random", "input_tokens": 32, "output_tokens": 8, "requests": 16, "concurrency": 2}}
    real.config["timeouts"] = {"start": 400.0, "stall": 300.0, "no_progress": 60.0, "stop": 10.0}
    done = real.run(seconds=800)
    assert done.rc == 0, done.text
    for name in real.config["deployments"]:
        estimate, startup = real.record(f"deployments/{name}/plan.json")["estimate"], real.record(f"deployments/{name}/startup.json")
        assert startup["failure"] is None, name
        assert estimate["not_estimated"] is None, name
        assert startup["differences"]["kv_cache_tokens"] == pytest.approx(1, abs=0.02), name
    rows = {deployment: row for (deployment, _), row in real.rows().items()}
    assert rows.keys() == real.config["deployments"].keys()
    assert {row["verdict"] for row in rows.values()} <= {"VALID", "SUSPECT"}
    real.assert_all_dead()
