"""The kinds of layers of a model: attention with a window or without, a state in place of attention, an MLP or none."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from servemark.weights.config_keys import Unsized, first, stated
from servemark.weights.states import State, gated_delta_net, mamba1, mamba2

Config = Mapping[str, Any]

UNREAD = (
    "attn_config", "attn_layer_indices", "attn_layer_period", "attn_type_list", "attention_hidden_size", "block_configs", "block_types",
    "compress_ratios", "conv_L_cache", "full_attention_interval", "hybrid_override_pattern", "is_encoder_decoder", "layer_group_size",
    "layers_block_type", "linear_attn_config", "mamba_d_state", "moe_latent_size", "ssm_cfg", "ssm_state_size", "state_size",
)  # fmt: skip
"""Keys of models whose layers are not plain attention and MLP, for types that :data:`FAMILIES` does not have."""

ATTENTION = frozenset({"full_attention", "sliding_attention", "chunked_attention", "attention"})
"""Kinds in ``layer_types``. For chunked attention vLLM keeps the KV cache of all tokens (config/vllm.py, attention_chunk_size, 0.32.0)."""


@dataclass(frozen=True)
class Layers:
    """The layers that differ from attention with an MLP, by position.

    Attributes:
        attention_free: layers without attention.
        stateful: layers with a constant state for each sequence.
        mlp_free: number of layers without an MLP.
        experts: number of layers with experts; None: by the keys that :func:`expert_layers` reads.
        state: of each stateful layer.
    """

    attention_free: frozenset[int] = frozenset()
    stateful: frozenset[int] = frozenset()
    mlp_free: int = 0
    experts: int | None = None
    state: State | None = None


def read(config: Config, layers: int, hidden: int) -> Layers:
    """Return the kinds of the layers of a config.json.

    Raises:
        Unsized: the layers are of a kind that planning does not know.
    """
    if family := FAMILIES.get(str(config.get("model_type"))):
        return family(config, layers, hidden)
    kinds = config.get("layer_types")
    if kinds is None and (unread := [name for name in UNREAD if config.get(name)]):
        raise Unsized(f"unknown attention: {unread[0]!r} in a model of type {config.get('model_type')!r}")
    if other := sorted(set(kinds or ()) - ATTENTION):
        raise Unsized(f"unknown attention: layer_types has {', '.join(other)}")
    return Layers()


def windows(config: Config, layers: int) -> tuple[int | None, ...]:
    """Return the sliding window of each layer, by ``layer_types`` or, without it, one window for all layers.

    Raises:
        ValueError: a window or the number of ``layer_types`` is wrong.
    """
    used = config.get("use_sliding_window") is not False
    window = (used and config.get("sliding_window")) or None
    if window is not None and (type(window) is not int or window < 1):
        raise ValueError(f"sliding_window is {window!r}")
    kinds = config.get("layer_types")
    if kinds is None:
        pattern = config.get("sliding_window_pattern")
        if window and isinstance(pattern, int) and pattern > 1:
            # Gemma 3: every n-th layer has full attention.
            return tuple(None if (layer + 1) % pattern == 0 else window for layer in range(layers))
        return (window,) * layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def expert_layers(config: Config, layers: int) -> int:
    """Return the number of layers with experts, by the keys of Qwen-MoE and Llama 4 (step, exceptions) and of DeepSeek (first dense)."""
    step = config.get("decoder_sparse_step") or config.get("interleave_moe_layer_step") or 1
    without = set(config.get("mlp_only_layers") or ())
    begin = config.get("first_k_dense_replace") or 0
    return sum(layer >= begin and layer not in without and (layer + 1) % step == 0 for layer in range(layers))


def shared_width(config: Config) -> int:
    """Return the width of a layer's shared experts together, in the keys of Qwen2-MoE, Granite, Llama 4, and DeepSeek and others."""
    if width := first(config, "shared_expert_intermediate_size", "shared_intermediate_size"):
        return width
    if config.get("model_type") == "llama4_text":
        return first(config, "intermediate_size") or 0
    experts = first(config, "n_shared_experts", "moe_num_shared_experts", "num_shared_experts") or 0
    return experts * (first(config, "moe_shared_expert_intermediate_size", "moe_intermediate_size") or 0)


NEMOTRON_PARTS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
"""Letters of ``hybrid_override_pattern`` by the words of ``layers_block_type``."""


def _of_types(config: Config, layers: int, state: State, every: str | None = None) -> Layers:
    """Read ``layer_types``; without it, each layer whose number is a multiple of ``every`` has attention."""
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if kinds is None and every:
        interval = stated(config, every)
        kinds = ["attention" if (layer + 1) % interval == 0 else "mamba" for layer in range(layers)]
    if kinds is None or len(kinds) != layers:
        raise Unsized("config.json states no kind for each layer (layer_types)")
    if other := {*kinds} - ATTENTION - {"mamba", "linear_attention"}:
        raise Unsized(f"unknown attention: layer_types has {', '.join(sorted(map(str, other)))}")
    free = frozenset(layer for layer, kind in enumerate(kinds) if kind not in ATTENTION)
    return Layers(attention_free=free, stateful=free, state=state)


def _bamba(config: Config, layers: int, hidden: int) -> Layers:
    having = config.get("attn_layer_indices") or ()
    free = frozenset(range(layers)) - frozenset(having)
    return Layers(attention_free=free, stateful=free, state=mamba2(config, hidden))


def _jamba(config: Config, layers: int, hidden: int) -> Layers:
    def every(period: str, offset: str) -> frozenset[int]:
        step, begin = stated(config, period), first(config, offset) or 0
        return frozenset(layer for layer in range(layers) if layer % step == begin % step)

    free = frozenset(range(layers)) - every("attn_layer_period", "attn_layer_offset")
    experts = len(every("expert_layer_period", "expert_layer_offset"))
    return Layers(attention_free=free, stateful=free, experts=experts, state=mamba1(config, hidden))


def _nemotron_h(config: Config, layers: int, hidden: int) -> Layers:
    """Read one part for each layer: ``M`` Mamba 2, ``*`` attention, ``-`` MLP, ``E`` experts."""
    listed = [NEMOTRON_PARTS.get(str(kind), "?") for kind in config.get("layers_block_type") or ()]
    pattern = str(config.get("hybrid_override_pattern") or "".join(listed))
    if len(pattern) != layers or set(pattern) - set("M*-E") or config.get("moe_latent_size"):
        raise Unsized(f"unknown attention: hybrid_override_pattern {pattern!r} with {layers} layers")
    at = {part: frozenset(layer for layer, found in enumerate(pattern) if found == part) for part in "M*-E"}
    return Layers(
        attention_free=frozenset(range(layers)) - at["*"],
        stateful=at["M"],
        mlp_free=len(at["M"] | at["*"]),
        experts=len(at["E"]),
        # vLLM's default, models/config.py (NemotronHForCausalLMConfig, 0.32.0).
        state=mamba2(config, hidden, default="float32"),
    )


def _only(state: Callable[[Config, int], State]) -> Callable[[Config, int, int], Layers]:
    def read_all(config: Config, layers: int, hidden: int) -> Layers:
        everything = frozenset(range(layers))
        return Layers(attention_free=everything, stateful=everything, mlp_free=layers, state=state(config, hidden))

    return read_all


def _qwen(config: Config, layers: int, hidden: int) -> Layers:
    return _of_types(config, layers, gated_delta_net(config, hidden), every="full_attention_interval")


FAMILIES: dict[str, Callable[[Config, int, int], Layers]] = {
    "bamba": _bamba,
    "falcon_mamba": _only(mamba1),
    "granitemoehybrid": lambda config, layers, hidden: _of_types(config, layers, mamba2(config, hidden)),
    "jamba": _jamba,
    "mamba": _only(mamba1),
    "mamba2": _only(mamba2),
    "nemotron_h": _nemotron_h,
    "qwen3_next": _qwen,
    "qwen3_5_text": _qwen,
    "qwen3_5_moe_text": _qwen,
}
"""Readers by model type. Each gets config.json, the number of layers and the hidden width."""
