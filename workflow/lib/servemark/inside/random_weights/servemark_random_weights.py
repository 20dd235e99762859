"""Random weights with which a mixture of experts works as a trained one does: a load format of vLLM, by its plugin interface.

Run by vLLM's processes. vLLM's own ``dummy`` format (model_loader/weight_utils.py, initialize_single_dummy_weight; 0.25.1, 0.32.0)
draws every tensor from +-0.001 with one seed, biases too, and leaves integers as memory happens to be. A router then follows its bias: of
gpt-oss-120b's 128 experts, 512 tokens choose 5 to 8, where a trained model reaches nearly all, so that a step reads a twentieth of the
weights that it ought to.

Here the residual stream stays close to the token's own embedding (drawn from N(0, 1); norms 1, biases 0, every other matrix as vLLM
draws it), and routers are drawn for each layer apart, so that experts are chosen independently by token and layer. Packed 4-bit
weights are random bytes with a small power of two as their scale.
"""

import zlib

import torch
from torch import nn
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

LOAD_FORMAT = "servemark_random"
# What modules of vLLM's models call their routers (gpt-oss; Mixtral, Qwen, DeepSeek, Llama 4, GLM).
ROUTERS = ("router", "gate")
# 2**(117 - 127): an e8m0 scale of about 0.001, as the OCP microscaling formats have it.
SCALE_BYTE = 117


def drawn(name: str, parameter: torch.Tensor, router: bool) -> torch.Tensor | None:
    """What a parameter's values are to be; None where vLLM's own are.

    Args:
        name: the parameter's full name, which decides its seed.
        router: it is the matrix of a router, of shape (experts, hidden).
    """
    last = name.rpartition(".")[2]
    if parameter.dtype == torch.uint8:
        if "scale" in last:
            return torch.full_like(parameter, SCALE_BYTE)
        return torch.randint_like(parameter, 0, 256)
    if not torch.is_floating_point(parameter) or "scale" in last:
        return None
    if "bias" in last:
        return torch.zeros_like(parameter)
    if parameter.dim() == 1 and last == "weight":
        return torch.ones_like(parameter)
    if router:
        values = torch.empty_like(parameter, dtype=torch.float32).normal_(generator=seeded(name, parameter))
        # Logits of order one from a normalised input of `hidden` numbers.
        return (values / parameter.shape[-1] ** 0.5).to(parameter.dtype)
    return None


def seeded(name: str, parameter: torch.Tensor) -> torch.Generator:
    """The same numbers for the same parameter at every start, others for each parameter."""
    return torch.Generator(parameter.device).manual_seed(zlib.crc32(name.encode()))


class RandomWeightsLoader(DummyModelLoader):
    """vLLM's loader of random weights, with routers that choose."""

    def load_weights(self, model: nn.Module, model_config) -> None:
        super().load_weights(model, model_config)
        with torch.no_grad():
            for name, module in model.named_modules():
                router = name.rpartition(".")[2] in ROUTERS
                for own, parameter in module.named_parameters(prefix=name, recurse=False):
                    if isinstance(module, VocabParallelEmbedding) and not isinstance(module, ParallelLMHead):
                        parameter.normal_(generator=seeded(own, parameter))
                        continue
                    values = drawn(own, parameter, router and parameter.dim() == 2)
                    if values is not None:
                        parameter.copy_(values)


def register() -> None:
    """What vLLM calls in each of its processes, more than once."""
    from vllm.model_executor import model_loader

    if LOAD_FORMAT not in model_loader._LOAD_FORMAT_TO_MODEL_LOADER:
        register_model_loader(LOAD_FORMAT)(RandomWeightsLoader)
