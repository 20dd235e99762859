"""A load format of vLLM: random weights with which a mixture of experts uses its experts like a trained model.

vLLM's processes load it as a plugin. docs/explanation/random-weights.md compares it with vLLM's own ``dummy`` format
(model_loader/weight_utils.py, initialize_single_dummy_weight; 0.25.1, 0.32.0).

It draws matrices of attention, dense layers and routers from N(0, 1/inputs) and embeddings from N(0, 1). Each has its own seed, and a
sharded vocabulary has one for each rank. Norms are 1 and biases 0. The experts' own matrices stay as vLLM draws them; packed 4-bit weights
are random bytes with a small power of two as scale.

The format's name has a version and is part of the ledger key: raise it whenever the drawn numbers change.
"""

import zlib

import torch
from torch import nn
from vllm.config import ModelConfig
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.model_executor.layers.linear import LinearBase, ReplicatedLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

LOAD_FORMAT = "servemark_random_2"
# 2**(117 - 127): an e8m0 scale of about 0.001 (OCP Microscaling Formats).
SCALE_BYTE = 117


def drawn(name: str, parameter: torch.Tensor, module: nn.Module, rank: int) -> torch.Tensor | None:
    """Return a parameter's new values; None to leave vLLM's.

    Args:
        name: the parameter's full name, used as its seed.
        module: the parameter's module.
        rank: tensor parallel rank.
    """
    last = name.rpartition(".")[2]
    if parameter.dtype == torch.uint8:
        if "scale" in last:
            return torch.full_like(parameter, SCALE_BYTE)
        return torch.randint_like(parameter, 0, 256)
    if not torch.is_floating_point(parameter) or torch.finfo(parameter.dtype).bits < 16 or "scale" in last:
        return None
    if "bias" in last:
        return torch.zeros_like(parameter)
    if parameter.dim() == 1 and last == "weight":
        return torch.ones_like(parameter)
    if parameter.dim() != 2:
        return None
    if isinstance(module, VocabParallelEmbedding):
        return normal(f"{name} {rank}", parameter)
    if isinstance(module, LinearBase):
        # Outputs of order one from a normalised input. Parameters that are not sharded, such as routers, are the same on all ranks.
        whole = isinstance(module, ReplicatedLinear)
        return normal(name if whole else f"{name} {rank}", parameter) / parameter.shape[-1] ** 0.5
    return None


def normal(seed: str, parameter: torch.Tensor) -> torch.Tensor:
    """Return numbers from N(0, 1) in the parameter's shape and type, the same at every start for one seed."""
    generator = torch.Generator(parameter.device).manual_seed(zlib.crc32(seed.encode()))
    return torch.empty_like(parameter).normal_(generator=generator)


class RandomWeightsLoader(DummyModelLoader):
    """vLLM's loader of random weights, with routers whose choice depends on the token."""

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        """Let vLLM fill the model, then draw the weights that decide the choice of experts."""
        super().load_weights(model, model_config)
        rank = get_tensor_model_parallel_rank()
        with torch.no_grad():
            for name, module in model.named_modules():
                for own, parameter in module.named_parameters(prefix=name, recurse=False):
                    values = drawn(own, parameter, module, rank)
                    if values is not None:
                        parameter.copy_(values)


def register() -> None:
    """Register the load format. vLLM calls this in each of its processes, more than once."""
    from vllm.model_executor import model_loader

    if LOAD_FORMAT not in model_loader._LOAD_FORMAT_TO_MODEL_LOADER:
        register_model_loader(LOAD_FORMAT)(RandomWeightsLoader)
