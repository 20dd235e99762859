"""Small models with random weights that a real vLLM serves without a download."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servemark.errors import WeightsRefused

# Jobs that make no model import this module for ``CONFIGS``.
if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer

SEED = 20240229
VOCABULARY = 1024
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

# A BPE trainer needs many different words to find enough merges for the vocabulary.
TRAINING_TEXT = """\
The cluster schedules a job on two nodes and each node holds four graphics cards. Every card keeps a share of the
weights in its memory, and what remains becomes the cache for keys and values of the running requests. A request brings
a prompt; the server reads it at once, which takes the prefill time, then writes one token after another until the
answer is complete. Throughput counts tokens per second over all users, latency is what a single person notices while
waiting. Larger batches raise the first figure and spoil the second, therefore a benchmark must vary concurrency and
report both together with the spread of repeated measurements. Random numbers drawn from a fixed seed make experiments
repeatable, although temperature, clock frequency and neighbours on a shared network still disturb them slightly.
Scientists prefer honest tables: median, percentile, confidence interval, number of failures, hardware description,
software versions. Engineers ask whether the bottleneck lies in arithmetic, bandwidth, interconnect or scheduling.
Mountains rise slowly above green valleys; rivers carry sand toward distant oceans where whales sing below icebergs.
A baker kneads dough before sunrise, children chase kites along windy beaches, musicians tune violins behind velvet
curtains. Winter brings snow, spring wakes flowers, summer ripens cherries, autumn paints forests orange and brown.
Economists discuss inflation, judges weigh evidence, doctors examine patients, pilots check fuel gauges, gardeners
prune roses. Chemistry explains how molecules bind, biology describes cells dividing, physics predicts planetary
orbits, mathematics proves theorems about prime integers, philosophy questions knowledge itself. Yesterday somebody
quietly fixed the broken bicycle; tomorrow maybe nobody will remember why it squeaked. Zebras, foxes, jaguars, quails
and hedgehogs live in unlike places: savanna, woodland, jungle, field, garden. Please write "yes" or 'no', then give 3
reasons, 12 examples, 2048 bytes, 65 % and a date such as 1999-12-31. def main(argument): return [value * 2 for value in
range(10) if value != 7] # computes doubled numbers
"""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Even head counts allow tensor parallel 2. vLLM's attention on CPUs supports the head size 64.
COMMON: dict[str, Any] = {
    "torch_dtype": "bfloat16", "vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512, "hidden_act": "silu", "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "attention_bias": False, "attention_dropout": 0.0, "use_sliding_window": False,
    "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0, "use_cache": True,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "tiny-dense": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **COMMON},
    "tiny-moe": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", **COMMON, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 128, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
}  # fmt: skip


def make(name: str, directory: Path) -> None:
    """Write the model ``name``, a key of CONFIGS, into ``directory``: config, bfloat16 safetensors, tokenizer.

    One release of tokenizers writes the same bytes on every machine.

    Raises:
        WeightsRefused: there is no builtin model of that name.
    """
    if name not in CONFIGS:
        do = f"Use one of: {', '.join(CONFIGS)}."
        raise WeightsRefused(f"There is no builtin model {name!r}.", do=do, reason="unknown_builtin")
    config = CONFIGS[name]
    texts: dict[str, dict[str, Any]] = {
        "config.json": config,
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": [0, 2], "pad_token_id": 0},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": SPECIAL_TOKENS[0], "pad_token": SPECIAL_TOKENS[0],
            "additional_special_tokens": list(SPECIAL_TOKENS[1:]), "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"], "chat_template": CHAT_TEMPLATE,
        },
    }  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    for file, data in texts.items():
        (directory / file).write_text(json.dumps(data, indent=2) + "\n")
    _tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "model.safetensors").write_bytes(_weights(config))


def _tokenizer() -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=1,
        show_progress=False,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator([TRAINING_TEXT], trainer)
    return tokenizer


def _weights(config: dict[str, Any]) -> bytes:
    """Return a safetensors file: header length (u64, little-endian), JSON header padded to 8 bytes, tensors in the header's order."""
    import numpy as np

    # numpy keeps RandomState's stream, and uniform numbers need no libm: every machine gets the same bits.
    random = np.random.RandomState(SEED)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs, offset = [], 0
    for name, shape in _shapes(config):
        values = np.ones(shape) if len(shape) == 1 else (random.random_sample(shape) - 0.5) * 0.1
        blobs.append(_bfloat16(values.astype(np.float32)))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + len(blobs[-1])]}
        offset += len(blobs[-1])
    # The package's serialize() takes dictionaries up to 0.7 and raw addresses from 0.8, so this code writes the file itself.
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(blobs)


def _bfloat16(values: np.ndarray) -> bytes:
    """Return the little-endian upper half of each float32, rounded to nearest, ties to even. The values have no NaN."""
    import numpy as np

    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype("<u2").tobytes()


def _shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes as in Hugging Face's Qwen3 and Qwen3-MoE checkpoints; 1-d tensors are norm weights."""
    hidden, size = config["hidden_size"], config["head_dim"]
    query, key, experts = config["num_attention_heads"] * size, config["num_key_value_heads"] * size, config.get("num_experts", 0)
    width = config["moe_intermediate_size"] if experts else config["intermediate_size"]
    layer = {
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,), "self_attn.q_norm": (size,), "self_attn.k_norm": (size,),
        "self_attn.q_proj": (query, hidden), "self_attn.k_proj": (key, hidden), "self_attn.v_proj": (key, hidden),
        "self_attn.o_proj": (hidden, query), **({"mlp.gate": (experts, hidden)} if experts else {}),
    }  # fmt: skip
    for mlp in [f"mlp.experts.{expert}" for expert in range(experts)] or ["mlp"]:
        layer |= {f"{mlp}.gate_proj": (width, hidden), f"{mlp}.up_proj": (width, hidden), f"{mlp}.down_proj": (hidden, width)}
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for number in range(config["num_hidden_layers"]):
        yield from ((f"model.layers.{number}.{name}.weight", shape) for name, shape in layer.items())
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (config["vocab_size"], hidden)
