"""The shape of a transformer as its config.json states it, with windows and parameter counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from servemark.errors import WeightsRefused
from servemark.weights import quantisation

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
        "sliding_window": 4096, "sliding_window_pattern": 6, "tie_word_embeddings": True,
    }
}  # fmt: skip
"""Defaults of types whose published config.json leaves them out (transformers 5.19, Gemma3TextConfig)."""

MAX_LAYERS = 10_000  # the deepest published models have some 130
UNREAD_PATTERNS = ("full_attention_interval", "hybrid_override_pattern")
"""Keys that give attention to some layers only (Qwen3-Next, Nemotron-H)."""


@dataclass(frozen=True)
class Parameters:
    """Parameter counts of the whole model by part.

    Attributes:
        dense: attention, MLPs of dense layers and routers of all layers.
        experts: weights of all routed experts, without their biases.
        head: the output head; 0 if it is tied to the input embedding.
    """

    dense: int
    experts: int
    expert_biases: int
    embedding: int
    head: int

    @property
    def total(self) -> int:
        """All parameters."""
        return self.dense + self.experts + self.expert_biases + self.embedding + self.head


@dataclass(frozen=True)
class Architecture:
    """A decoder-only transformer.

    Attributes:
        windows: attention window of each layer in tokens; None is full attention.
        dense_intermediate: MLP width of the layers without experts; None if config.json does not state it.
        expert_intermediate: width of one expert; 0 without experts.
        stored_bytes: bytes of one unquantised weight in the checkpoint.
        dtype_bytes: bytes of one unquantised weight, activation and (by default) KV cache element in the server. vLLM's
            ``dtype=auto`` halves float32 checkpoints (vllm/config/model.py, _resolve_auto_dtype).
        weight_bits, expert_bits: bits of one dense and one expert weight after quantisation. Without ``bits_known`` the bits of an
            unquantised weight.
        float8_arithmetic: activations are 8-bit floats too, so matrix products are 8-bit.
        max_positions: the model's longest sequence in tokens; None if config.json does not state it.
        embeddings_everywhere: every pipeline stage holds embedding and head (:data:`EMBEDDINGS_EVERYWHERE`).
    """

    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    stored_bytes: int
    dtype_bytes: int
    windows: tuple[int | None, ...]
    dense_intermediate: int | None
    expert_intermediate: int
    expert_layers: int
    experts: int
    experts_per_token: int
    quantisation: str | None
    weight_bits: float
    expert_bits: float
    bits_known: bool
    float8_arithmetic: bool
    tie_word_embeddings: bool
    max_positions: int | None
    attention_bias: bool
    expert_bias: bool
    embeddings_everywhere: bool

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Architecture:
        """Read a Hugging Face config.json, or its ``text_config``, or raise WeightsRefused if planning cannot use it.

        vLLM reads the same alternative key names (vllm/transformers_utils/model_arch_config_convertor.py).
        """
        try:
            return cls._of(config)
        except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
            raise _refused("config_broken", f"config.json has a value that planning cannot read: {error}.") from None

    @classmethod
    def _of(cls, config: dict[str, Any]) -> Architecture:
        text = {**config, **config["text_config"]} if isinstance(config.get("text_config"), dict) else config
        text = {**DEFAULTS.get(str(text.get("model_type")), {}), **text}
        if "kv_lora_rank" in text:
            raise _unknown(f"Models of type {text.get('model_type')!r} have latent attention (MLA). Planning cannot calculate its memory.")
        layers = _positive(text, "num_hidden_layers", "n_layer")
        hidden = _positive(text, "hidden_size", "n_embd")
        heads = _positive(text, "num_attention_heads", "n_head")
        if layers > MAX_LAYERS or heads > hidden:
            raise ValueError(f"{layers:,} layers of width {hidden:,} with {heads:,} attention heads")
        model_type = str(text.get("model_type", ""))
        experts = _first(text, "num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts") or 0
        # Without a dtype float32, as in Hugging Face and vLLM.
        dtype = str(text.get("dtype") or text.get("torch_dtype") or "float32").removeprefix("torch.")
        if dtype not in DTYPE_BYTES:
            raise _unknown(f"config.json states the dtype {dtype!r}; planning supports {', '.join(DTYPE_BYTES)}.")
        stored_bytes = DTYPE_BYTES[dtype]
        quantised = quantisation.read(text, 8.0 * min(stored_bytes, 2))
        return cls(
            model_type=model_type,
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=_first(text, "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num") or heads,
            head_dim=_first(text, "head_dim") or hidden // heads,
            vocab=_positive(text, "vocab_size"),
            stored_bytes=stored_bytes,
            dtype_bytes=min(stored_bytes, 2),
            windows=_windows(text, layers),
            dense_intermediate=_first(text, "intermediate_size_mlp", "intermediate_size", "n_inner"),
            expert_intermediate=(experts and _first(text, "moe_intermediate_size", "intermediate_size", "n_inner")) or 0,
            expert_layers=_expert_layers(text, layers) if experts else 0,
            experts=experts,
            experts_per_token=_first(text, "num_experts_per_tok", "num_experts_per_token", "moe_topk") or 0,
            quantisation=quantised.method,
            weight_bits=quantised.weight_bits,
            expert_bits=quantised.expert_bits,
            bits_known=quantised.known,
            float8_arithmetic=quantised.float8_arithmetic,
            tie_word_embeddings=bool(text.get("tie_word_embeddings", False)),
            max_positions=_first(text, "max_position_embeddings", "n_positions"),
            attention_bias=bool(text.get("attention_bias", model_type in ATTENTION_BIAS_BY_DEFAULT)),
            expert_bias=model_type in EXPERT_BIAS,
            embeddings_everywhere=model_type in EMBEDDINGS_EVERYWHERE,
        )

    @property
    def moe(self) -> bool:
        """Whether the model has experts."""
        return self.experts > 0

    @property
    def attention_parameters(self) -> int:
        """Query, key, value and output projections of one layer, with biases where the model has them."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        biases = query + 2 * key + (self.hidden if self.model_type in EXPERT_BIAS else 0)
        return 2 * self.hidden * (query + key) + (biases if self.attention_bias else 0)

    def parameters(self) -> Parameters:
        """Return parameter counts by the shape, without norm weights (a few per layer)."""
        dense_layers = self.layers - self.expert_layers
        if dense_layers and not self.dense_intermediate:
            raise _missing("intermediate_size")
        mlp = 3 * self.hidden * (self.dense_intermediate or 0)
        expert = 3 * self.hidden * self.expert_intermediate
        expert_bias = (2 * self.expert_intermediate + self.hidden) if self.expert_bias else 0
        embedding = self.vocab * self.hidden
        return Parameters(
            dense=self.layers * self.attention_parameters + dense_layers * mlp + self.expert_layers * self.hidden * self.experts,
            experts=self.expert_layers * self.experts * expert,
            expert_biases=self.expert_layers * self.experts * expert_bias,
            embedding=embedding,
            head=0 if self.tie_word_embeddings else embedding,
        )


ATTENTION_BIAS_BY_DEFAULT = frozenset({"qwen2", "qwen2_moe"})
"""Types whose q, k, v projections have a bias although config.json has no ``attention_bias``."""
EXPERT_BIAS = frozenset({"gpt_oss"})
"""Types whose experts, and the attention's output projection, have biases."""
EMBEDDINGS_EVERYWHERE = frozenset({"gpt_oss", "qwen3_moe"})
"""Types whose vLLM class makes embedding and head on every pipeline stage (vLLM 0.32.0, models/gpt_oss.py and qwen3_moe.py; llama.py
and qwen2.py make each only on the stage that uses it)."""


def _refused(reason: str, what: str, do: str = "Compare it with the published one.") -> WeightsRefused:
    return WeightsRefused(what, look="config.json of the model", do=do, reason=reason)


def _unknown(what: str) -> WeightsRefused:
    do = "Choose another model: servemark supports full and sliding-window attention in float32, float16 and bfloat16."
    return _refused("architecture_unknown", what, do)


def _missing(*names: str) -> WeightsRefused:
    what = f"config.json states no whole number above 0 for {' or '.join(repr(name) for name in names)}, which planning needs."
    return _refused("config_incomplete", what, "Use a complete Hugging Face checkpoint of a decoder-only language model.")


def _first(config: dict[str, Any], *names: str) -> int | None:
    """Return the value of the first of ``names`` that is a whole number above zero."""
    return next((value for value in map(config.get, names) if type(value) is int and 0 < value < 2**31), None)


def _positive(config: dict[str, Any], *names: str) -> int:
    if (value := _first(config, *names)) is None:
        raise _missing(*names)
    return value


def _expert_layers(config: dict[str, Any], layers: int) -> int:
    """Return the number of layers with experts, by the keys of Qwen-MoE and Llama 4 (step, exceptions) and of DeepSeek (first dense)."""
    step = config.get("decoder_sparse_step") or config.get("interleave_moe_layer_step") or 1
    without = set(config.get("mlp_only_layers") or ())
    first = config.get("first_k_dense_replace") or 0
    return sum(layer >= first and layer not in without and (layer + 1) % step == 0 for layer in range(layers))


def _windows(config: dict[str, Any], layers: int) -> tuple[int | None, ...]:
    """Return the sliding window of each layer, by ``layer_types`` or, without it, one window for all layers."""
    used = config.get("use_sliding_window") is not False
    window = (used and config.get("sliding_window")) or None
    if window is not None and (type(window) is not int or window < 1):
        raise ValueError(f"sliding_window is {window!r}")
    kinds = config.get("layer_types")
    if kinds is None:
        if unread := [name for name in UNREAD_PATTERNS if config.get(name)]:
            raise _unknown(f"{unread[0]} in config.json gives attention to some layers only. Planning reads layer_types alone.")
        pattern = config.get("sliding_window_pattern")
        if window and isinstance(pattern, int) and pattern > 1:
            # Gemma 3: every n-th layer has full attention.
            return tuple(None if (layer + 1) % pattern == 0 else window for layer in range(layers))
        return (window,) * layers
    if len(kinds) != layers:
        raise _refused("config_incomplete", f"config.json names {len(kinds)} layer_types for {layers} layers.")
    if other := sorted({*kinds} - {"full_attention", "sliding_attention"}):
        raise _unknown(f"config.json has layers of the types {', '.join(other)}.")
    if "sliding_attention" in kinds and not window and used:
        raise _missing("sliding_window")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
