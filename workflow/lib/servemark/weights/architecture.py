"""The shape of a model as its config.json states it: layers, windows, states and parameter counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servemark.errors import WeightsRefused
from servemark.weights import latent, layers, quantisation
from servemark.weights.config_keys import Unsized, first, stated
from servemark.weights.latent import Latent
from servemark.weights.layers import Layers
from servemark.weights.model_types import (
    ATTENTION_BIAS_BY_DEFAULT,
    ATTENTION_GATE,
    DEFAULTS,
    EMBEDDINGS_EVERYWHERE,
    EXPERT_BIAS,
    LEARNED_POSITIONS,
    UNGATED,
    WIDTH_BY_DEFAULT,
)
from servemark.weights.parameters import Parameters
from servemark.weights.states import State

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
MAX_LAYERS = 10_000  # the deepest published models have some 130
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
HEAD_DIM = ("head_dim", "kv_channels")
VOCABULARY = ("vocab_size", "padded_vocab_size")
WIDTHS = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")


@dataclass(frozen=True)
class Architecture:
    """A decoder-only language model.

    Attributes:
        windows: attention window of each layer in tokens; None is full attention, and a layer without attention.
        kv_heads, head_dim: of keys and values in the KV cache; with latent attention one head as wide as the latent vector.
        dense_intermediate: MLP width of the layers without experts; None if config.json does not state it.
        expert_intermediate: width of one expert; 0 without experts.
        stored_bytes: bytes of one unquantised weight in the checkpoint.
        dtype_bytes: bytes of one unquantised weight, activation and (by default) KV cache element in the server. vLLM's
            ``dtype=auto`` halves float32 checkpoints (vllm/config/model.py, _resolve_auto_dtype).
        weight_bits, expert_bits: bits of one dense and one expert weight after quantisation. Without ``bits_known`` the bits of an
            unquantised weight.
        float8_arithmetic: activations are 8-bit floats too, so matrix products are 8-bit.
        max_positions: the model's longest sequence in tokens; None if config.json does not state it.
        embeddings_everywhere: every pipeline stage holds embedding and head (:data:`servemark.weights.model_types.EMBEDDINGS_EVERYWHERE`).
        float4_arithmetic: weights and activations are 4-bit floats, so matrix products are 4-bit.
        shared_intermediate: MLP width of the shared experts of a layer with experts, together; each token passes through them.
        attention_gate: the query projection is twice as wide, because it also makes a gate (Qwen3-Next).
        embedding_width: of a token's embedding; ``hidden``, but for small OPT models.
        learned_positions: rows of a learned embedding of positions.
        draft_layers: layers for multi-token prediction in a checkpoint with latent attention; vLLM loads them for speculation only.
        latent: widths of latent attention (MLA); None without it.
        kinds: layers without attention, and layers with a state.
        unknown: why planning cannot size the model, as a clause; None if it can. Of a model with a reason, only ``heads``, ``layers``,
            ``max_positions``, ``experts`` and the quantisation are used, 0 where config.json does not state them.
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
    float4_arithmetic: bool
    shared_intermediate: int
    attention_gate: bool
    embedding_width: int
    learned_positions: int
    draft_layers: int
    latent: Latent | None
    kinds: Layers
    unknown: str | None

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Architecture:
        """Read a Hugging Face config.json, or its ``text_config``; ``unknown`` tells what planning cannot size.

        vLLM reads the same alternative key names (vllm/transformers_utils/model_arch_config_convertor.py).

        Raises:
            WeightsRefused: a value is broken, or contradicts another one.
        """
        try:
            return cls._of(config)
        except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
            raise _refused("config_broken", f"config.json has a value that planning cannot read: {error}.") from None

    @classmethod
    def _of(cls, config: dict[str, Any]) -> Architecture:
        text = {**config, **config["text_config"]} if isinstance(config.get("text_config"), dict) else config
        text = {**DEFAULTS.get(str(text.get("model_type")), {}), **text}
        count, hidden, heads = (first(text, *names) or 0 for names in (LAYERS, HIDDEN, HEADS))
        if count > MAX_LAYERS or (hidden and heads > hidden):
            raise ValueError(f"{count:,} layers of width {hidden:,} with {heads:,} attention heads")
        model_type = str(text.get("model_type", ""))
        experts = first(text, "num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts") or 0
        # Without a dtype float32, as in Hugging Face and vLLM.
        dtype = str(text.get("dtype") or text.get("torch_dtype") or "float32").removeprefix("torch.")
        stored_bytes = DTYPE_BYTES.get(dtype, 2)
        quantised = quantisation.read(text, 8.0 * min(stored_bytes, 2))
        width = first(text, "intermediate_size_mlp", *(() if experts else ("shared_intermediate_size",)), *WIDTHS)
        width = width or (4 * hidden if model_type in WIDTH_BY_DEFAULT else None)
        kinds, mla, unknown = Layers(), None, None
        try:
            for names in (LAYERS, HIDDEN, VOCABULARY):
                _require(text, names)
            mla, kinds = latent.read(text), layers.read(text, count, hidden)
            if len(kinds.attention_free) < count:
                _require(text, HEADS)
                for names in () if mla else (KV_HEADS, HEAD_DIM):
                    _require(text, names, default=True)
            if dtype not in DTYPE_BYTES:
                raise Unsized(f"unknown dtype {dtype!r} in config.json")
        except Unsized as error:
            unknown = str(error)
        with_experts = (layers.expert_layers(text, count) if kinds.experts is None else kinds.experts) if experts else 0
        if unknown is None and width is None and count > with_experts + kinds.mlp_free:
            unknown = f"unknown MLP: config.json states no whole number above 0 for {WIDTHS[0]!r}"
        one_group = text.get("multi_query") and not text.get("new_decoder_architecture")
        kv_heads = 1 if one_group else first(text, *KV_HEADS) or heads
        positions = first(text, *POSITIONS)
        return cls(
            model_type=model_type,
            layers=count,
            hidden=hidden,
            heads=heads,
            kv_heads=1 if mla else kv_heads,
            head_dim=mla.width if mla else first(text, *HEAD_DIM) or (heads and hidden // heads),
            vocab=first(text, *VOCABULARY) or 0,
            stored_bytes=stored_bytes,
            dtype_bytes=min(stored_bytes, 2),
            windows=() if unknown else _windows(text, count),
            dense_intermediate=width,
            expert_intermediate=(experts and first(text, "moe_intermediate_size", "intermediate_size", "n_inner")) or 0,
            expert_layers=with_experts,
            experts=experts,
            experts_per_token=first(text, "num_experts_per_tok", "num_experts_per_token", "moe_topk") or 0,
            quantisation=quantised.method,
            weight_bits=quantised.weight_bits,
            expert_bits=quantised.expert_bits,
            bits_known=quantised.known,
            float8_arithmetic=quantised.float8_arithmetic,
            float4_arithmetic=quantised.float4_arithmetic,
            tie_word_embeddings=bool(text.get("tie_word_embeddings", False)),
            max_positions=positions,
            attention_bias=bool(text.get("attention_bias", model_type in ATTENTION_BIAS_BY_DEFAULT)),
            expert_bias=model_type in EXPERT_BIAS,
            embeddings_everywhere=model_type in EMBEDDINGS_EVERYWHERE,
            shared_intermediate=layers.shared_width(text) if experts else 0,
            attention_gate=bool(text.get("attn_output_gate", model_type in ATTENTION_GATE)),
            embedding_width=first(text, "word_embed_proj_dim") or hidden,
            learned_positions=(positions or 0) + LEARNED_POSITIONS[model_type] if model_type in LEARNED_POSITIONS else 0,
            draft_layers=(mla and first(text, "num_nextn_predict_layers")) or 0,
            latent=mla,
            kinds=kinds,
            unknown=unknown,
        )

    @property
    def moe(self) -> bool:
        """Whether the model has experts."""
        return self.experts > 0

    @property
    def state(self) -> State | None:
        """The state of a Mamba or linear attention layer; None without such layers."""
        return self.kinds.state if self.kinds.stateful else None

    @property
    def attention_layers(self) -> int:
        """Number of layers with attention."""
        return self.layers - len(self.kinds.attention_free)

    @property
    def attention_parameters(self) -> int:
        """Projections of one layer's attention, with biases where the model has them."""
        if self.latent:
            return self.latent.parameters(self.hidden, self.heads)
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        biases = query + 2 * key + (self.hidden if self.model_type in EXPERT_BIAS else 0)
        gate = self.hidden * query if self.attention_gate else 0
        return 2 * self.hidden * (query + key) + gate + (biases if self.attention_bias else 0)

    @property
    def attention_operations(self) -> tuple[int, int]:
        """Operations of one layer's attention, for each pair of a token and one that it attends to.

        The first number is for output tokens, the second for prompt tokens.
        """
        if self.latent:
            made, read = self.latent.products
            return 2 * self.heads * made, 2 * self.heads * read
        both = 4 * self.heads * self.head_dim
        return both, both

    @property
    def arithmetic_bits(self) -> int:
        """Bits of the numbers that matrix products multiply."""
        return 4 if self.float4_arithmetic else 8 if self.float8_arithmetic else 16

    @property
    def expert_layer_parameters(self) -> tuple[int, int]:
        """Parameters of a layer with experts, without its attention: (router and shared experts, routed experts)."""
        matrices = self.mlp_matrices * self.hidden
        return self.hidden * self.experts + matrices * self.shared_intermediate, self.experts * matrices * self.expert_intermediate

    @property
    def mlp_matrices(self) -> int:
        """Matrices of an MLP: up, down and, in most models, the gate."""
        return 2 if self.model_type in UNGATED else 3

    @property
    def total(self) -> int | None:
        """All parameters by the shape; None if planning cannot size the model."""
        return None if self.unknown else self.parameters().total

    def token_bytes(self, tensor_parallel: int, element_bytes: int | None = None) -> int:
        """Return the KV cache bytes of one token and attention layer on one rank: of the whole latent vector, or of one KV head or more.

        ``element_bytes``: of a KV cache element; None is the model's dtype. KV heads of a rank: vLLM's config/model.py, get_num_kv_heads.
        """
        element = element_bytes or self.dtype_bytes
        if self.latent:
            return self.latent.token_bytes(element)
        # 2: keys and values.
        return 2 * max(1, self.kv_heads // tensor_parallel) * self.head_dim * element

    def parameters(self) -> Parameters:
        """Return parameter counts by the shape, without norm weights (a few per layer); raise WeightsRefused if it is unknown."""
        if self.unknown:
            raise _refused("architecture_unknown", f"The size of the model is unknown ({self.unknown}).", SIZE_BY_FILES)
        dense_layers = self.layers - self.expert_layers - self.kinds.mlp_free
        mlp = self.mlp_matrices * self.hidden * (self.dense_intermediate or 0)
        states = len(self.kinds.stateful) * self.kinds.state.parameters if self.kinds.state else 0
        shared, routed = self.expert_layer_parameters
        expert_bias = (2 * self.expert_intermediate + self.hidden) if self.expert_bias else 0
        embedding = self.vocab * self.embedding_width
        return Parameters(
            dense=self.attention_layers * self.attention_parameters + states + dense_layers * mlp + self.expert_layers * shared,
            experts=self.expert_layers * routed,
            expert_biases=self.expert_layers * self.experts * expert_bias,
            embedding=embedding + self.learned_positions * self.hidden,
            head=0 if self.tie_word_embeddings else embedding,
        )


COMPLETE = "Use a complete Hugging Face checkpoint of a decoder-only language model."
SIZE_BY_FILES = "Use a checkpoint with weights: their files state its size."


def _refused(reason: str, what: str, do: str = "Compare it with the published one.") -> WeightsRefused:
    return WeightsRefused(what, look="config.json of the model", do=do, reason=reason)


def _require(config: Mapping[str, Any], names: tuple[str, ...], *, default: bool = False) -> None:
    """Raise Unsized if config.json has none of ``names`` and no ``default``, and WeightsRefused if it has one with a wrong value."""
    if first(config, *names) is not None:
        return
    if wrong := [name for name in names if config.get(name) is not None]:
        what = f"config.json has {config[wrong[0]]!r} for {wrong[0]!r}, which is no whole number above 0."
        raise _refused("config_incomplete", what, COMPLETE)
    if not default:
        stated(config, *names)


def _windows(config: Mapping[str, Any], count: int) -> tuple[int | None, ...]:
    """Return the sliding window of each layer; raise WeightsRefused if ``layer_types`` does not fit the other keys."""
    kinds = config.get("layer_types")
    if kinds is not None and len(kinds) != count:
        raise _refused("config_incomplete", f"config.json names {len(kinds)} layer_types for {count} layers.")
    if "sliding_attention" in (kinds or ()) and not config.get("sliding_window") and config.get("use_sliding_window") is not False:
        what = "config.json states no whole number above 0 for 'sliding_window', which planning needs."
        raise _refused("config_incomplete", what, COMPLETE)
    return layers.windows(config, count)
