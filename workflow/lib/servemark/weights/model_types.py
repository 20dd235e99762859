"""What a model's type says and its config.json may leave out."""

from typing import Any

DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
        "sliding_window": 4096, "sliding_window_pattern": 6, "tie_word_embeddings": True,
    },
    **{name: {"tie_word_embeddings": True} for name in ("bloom", "falcon", "gpt2", "gpt_bigcode", "mamba", "opt")},
}  # fmt: skip
"""Defaults of types whose published config.json leaves them out (transformers 5.19)."""

ATTENTION_BIAS_BY_DEFAULT = frozenset({"qwen2", "qwen2_moe"})
"""Types whose q, k, v projections have a bias although config.json has no ``attention_bias``."""
ATTENTION_GATE = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"})
"""Types whose attention has a gate although config.json has no ``attn_output_gate``."""
EXPERT_BIAS = frozenset({"gpt_oss"})
"""Types whose experts, and the attention's output projection, have biases."""
EMBEDDINGS_EVERYWHERE = frozenset({"gpt_oss", "qwen3_moe"})
"""Types whose vLLM class makes embedding and head on every pipeline stage (vLLM 0.32.0, models/gpt_oss.py and qwen3_moe.py; llama.py
and qwen2.py make each only on the stage that uses it)."""
UNGATED = frozenset({
    "bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "nemotron", "nemotron_h", "opt", "phi", "starcoder2",
})  # fmt: skip
"""Types whose MLPs have two matrices."""
WIDTH_BY_DEFAULT = frozenset({"bloom", "falcon", "gpt2", "gpt_bigcode", "gptj"})
"""Types whose MLPs are four times as wide as the model without such a key."""
LEARNED_POSITIONS = {"gpt2": 0, "gpt_bigcode": 0, "opt": 2}
"""Types with a learned embedding of positions, and its rows beyond the longest sequence."""
