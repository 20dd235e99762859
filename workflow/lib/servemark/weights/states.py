"""The state that a Mamba or linear attention layer keeps for each sequence, whatever its length, and the layer's parameters.

Shapes: vLLM 0.32.0, model_executor/layers/mamba/mamba_utils.py (MambaStateShapeCalculator). Parameters: the model classes of transformers
5.19.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servemark.weights.config_keys import first, stated

ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class State:
    """The state of one layer and sequence: the last inputs of a convolution, and a matrix for each head.

    Attributes:
        heads: heads, or channels of Mamba 1; tensor parallel ranks share them out.
        head_elements: elements of the recurrent state of one head.
        channels: channels of the convolution, without those of ``groups``.
        kept_inputs: inputs of the convolution that the layer keeps: its width less one.
        groups, group_channels: groups of Mamba 2 and the convolution's channels of each. If tensor_parallel does not divide them, each
            rank holds one whole group.
        element_bytes: bytes of a recurrent element that config.json chooses; None: of the model's dtype.
        parameters: parameters of one layer.
        checkpoints: further states that vLLM keeps for each request with prefix caching (layers/mamba/mamba_mixer2.py, 0.32.0).
    """

    heads: int
    head_elements: int
    channels: int
    kept_inputs: int
    groups: int
    group_channels: int
    element_bytes: int | None
    parameters: int
    checkpoints: int = 0

    def rank_bytes(self, tensor_parallel: int, dtype_bytes: int, element_bytes: int | None = None) -> int:
        """Return the bytes of one layer and sequence on one rank.

        Args:
            dtype_bytes: of the model's dtype.
            element_bytes: of a recurrent element, by the option ``mamba-ssm-cache-dtype``.
        """
        groups = self.groups if self.groups % tensor_parallel == 0 else tensor_parallel
        inputs = (self.channels + groups * self.group_channels) // tensor_parallel * self.kept_inputs
        recurrent = self.heads // tensor_parallel * self.head_elements
        return inputs * dtype_bytes + recurrent * (element_bytes or self.element_bytes or dtype_bytes)

    def fault(self, tensor_parallel: int) -> str | None:
        """Return vLLM's condition that ``tensor_parallel`` breaks, as the rest of a sentence.

        Sources, vLLM 0.32.0: layers/mamba/mamba_mixer2.py (heads, groups), mamba_utils.py (divide).
        """
        if self.heads % tensor_parallel:
            return f"does not divide {self.heads} heads or channels of the Mamba or linear attention layers"
        if self.groups > 1 and self.groups % tensor_parallel:
            return f"does not divide {self.groups} groups of the Mamba layers"
        return None


def mamba1(config: Mapping[str, Any], hidden: int) -> State:
    """Read Mamba 1 in the keys of Jamba (``mamba_...``) or of Mamba itself."""
    width = first(config, "intermediate_size", "d_inner") if "mamba_expand" not in config else None
    inner = width or stated(config, "mamba_expand", "expand") * hidden
    elements, kernel = stated(config, "mamba_d_state", "state_size"), stated(config, "mamba_d_conv", "conv_kernel")
    step = first(config, "mamba_dt_rank", "time_step_rank") or -(-hidden // 16)
    projections = 3 * hidden * inner + inner * (2 * step + 2 * elements)
    return State(
        heads=inner,
        head_elements=elements,
        channels=inner,
        kept_inputs=kernel - 1,
        groups=0,
        group_channels=0,
        element_bytes=_chosen(config),
        # The convolution with its bias, A, D, and the bias of the step.
        parameters=projections + inner * (kernel + elements + 3),
    )


def mamba2(config: Mapping[str, Any], hidden: int, default: str | None = None) -> State:
    """Read Mamba 2 in the keys of Granite and Bamba (``mamba_n_heads``), Nemotron-H (``mamba_num_heads``) or Mamba 2 itself.

    ``default``: dtype of the recurrent state without ``mamba_ssm_cache_dtype``; None is the model's.
    """
    heads = stated(config, "mamba_n_heads", "mamba_num_heads", "num_heads")
    width = stated(config, "mamba_d_head", "mamba_head_dim", "head_dim")
    groups, elements = stated(config, "mamba_n_groups", "n_groups"), stated(config, "mamba_d_state", "ssm_state_size", "state_size")
    kernel, inner = stated(config, "mamba_d_conv", "conv_kernel"), heads * width
    channels = inner + 2 * groups * elements
    return State(
        heads=heads,
        head_elements=width * elements,
        channels=inner,
        kept_inputs=kernel - 1,
        groups=groups,
        group_channels=2 * elements,
        element_bytes=_chosen(config, default),
        # Both projections, the convolution with its bias, A, D and the bias of the step for each head, and a norm.
        parameters=hidden * (2 * inner + channels + heads) + channels * (kernel + 1) + 3 * heads + inner,
        checkpoints=1,
    )


def gated_delta_net(config: Mapping[str, Any], hidden: int) -> State:
    """Read the linear attention of Qwen3-Next and Qwen3.5 (gated delta net)."""
    keys, values = stated(config, "linear_num_key_heads"), stated(config, "linear_num_value_heads")
    key_width, value_width = stated(config, "linear_key_head_dim"), stated(config, "linear_value_head_dim")
    kernel, inner = stated(config, "linear_conv_kernel_dim"), values * value_width
    channels = 2 * keys * key_width + inner
    return State(
        heads=values,
        head_elements=value_width * key_width,
        channels=channels,
        kept_inputs=kernel - 1,
        groups=0,
        group_channels=0,
        element_bytes=_chosen(config),
        # Queries, keys, values and their gate; two numbers for each value head; the convolution; the output.
        parameters=hidden * (channels + inner + 2 * values) + channels * kernel + inner * hidden + 2 * values + value_width,
    )


def _chosen(config: Mapping[str, Any], default: str | None = None) -> int | None:
    """Return the bytes of a recurrent element by config.json (vLLM: models/config.py, NemotronH and Qwen3.5)."""
    return ELEMENT_BYTES.get(str(config.get("mamba_ssm_cache_dtype") or config.get("mamba_ssm_dtype") or default))
