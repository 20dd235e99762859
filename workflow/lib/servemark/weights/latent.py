"""Latent attention (MLA): its parameters, and the latent vector that stands for keys and values in the KV cache.

vLLM 0.32.0: transformers_utils/model_arch_config_convertor.py (is_deepseek_mla, get_head_size), models/deepseek_v2.py,
v1/kv_cache_interface.py (MLAAttentionSpec).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servemark.weights.config_keys import Unsized, first, stated

TYPES = frozenset({
    "axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2", "pangu_ultra_moe",
})  # fmt: skip
"""Model types whose attention layers all have DeepSeek's latent attention in vLLM."""

INDEX_BLOCK = 128
"""Elements of an indexer's key (8-bit floats) that share a scale of 4 bytes (models/deepseek_v2.py, Indexer, 0.32.0)."""


@dataclass(frozen=True)
class Latent:
    """The widths of latent attention.

    Attributes:
        rank: kv_lora_rank.
        rope, nope, value: widths of a head: of the rotated part of query and key, of their other part, and of a value.
        query_rank: q_lora_rank; 0 if the query is projected at once.
        index_heads, index_width: heads of the indexer of sparse attention (DeepSeek-V3.2) and their width; 0 without it.
    """

    rank: int
    rope: int
    nope: int
    value: int
    query_rank: int
    index_heads: int
    index_width: int

    @property
    def width(self) -> int:
        """Elements of the latent vector of one token: all query heads share it."""
        return self.rank + self.rope

    @property
    def products(self) -> tuple[int, int]:
        """Widths of both products of a head: with the latent vector (output tokens), and with keys and values (prompts)."""
        return self.width + self.rank, self.nope + self.rope + self.value

    def parameters(self, hidden: int, heads: int) -> int:
        """Return the parameters of one layer."""
        query, inputs = heads * (self.nope + self.rope), self.query_rank or hidden
        up = inputs * query + self.rank * heads * (self.nope + self.value) + heads * self.value * hidden
        index = inputs * self.index_heads * self.index_width + hidden * (self.index_width + self.index_heads)
        return self.copied(hidden) + up + index

    def copied(self, hidden: int) -> int:
        """Return the parameters of one layer that each tensor parallel rank holds whole: the projections to the latent vectors."""
        return hidden * (self.query_rank + self.width)

    def token_bytes(self, element_bytes: int) -> int:
        """Return the KV cache bytes of one token and layer, on each tensor parallel rank.

        Sparse attention also caches the indexer's key. With an 8-bit KV cache it stores the latent vector as ``fp8_ds_mla``: the rotated
        part in 16 bits, and a scale of 4 bytes for each 128 elements of the other (v1/attention/backends/mla/flashmla_sparse.py, 0.32.0).
        """
        if not self.index_width:
            return self.width * element_bytes
        index = self.index_width + 4 * self.index_width // INDEX_BLOCK
        main = self.rank + 4 * self.rank // INDEX_BLOCK + 2 * self.rope if element_bytes == 1 else self.width * element_bytes
        return main + index


def read(config: Mapping[str, Any]) -> Latent | None:
    """Return the latent attention of a config.json; None without it.

    Raises:
        Unsized: the model's type is not in :data:`TYPES`, or a width is missing.
    """
    if first(config, "kv_lora_rank") is None:
        return None
    if config.get("model_type") not in TYPES:
        raise Unsized(f"unknown attention: 'kv_lora_rank' in a model of type {config.get('model_type')!r}")
    sparse = first(config, "index_topk") is not None
    return Latent(
        rank=stated(config, "kv_lora_rank"),
        rope=stated(config, "qk_rope_head_dim"),
        nope=stated(config, "qk_nope_head_dim"),
        value=stated(config, "v_head_dim"),
        query_rank=first(config, "q_lora_rank") or 0,
        index_heads=stated(config, "index_n_heads") if sparse else 0,
        index_width=stated(config, "index_head_dim") if sparse else 0,
    )
