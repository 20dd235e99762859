"""The files of a model that count: the one place that decides what servemark lists, hashes, compares, copies and downloads.

A file has one of three parts:

* it *counts*: a server may read it, so it is a part of the model's identity (:func:`counted`)
* it is listed and hashed, and does not count: documents, pictures, and other files that no server opens
* it is left out: a form of the weights that vLLM does not load (:func:`left_out`)

What vLLM reads: the weights at the top of the folder (model_loader/default_loader.py, weight_utils.py), the JSON files and vocabularies of
config and tokenizer, and chat templates (transformers_utils/config.py, tokenizers; 0.25.1 and 0.32.0). A model's own Python code may read
any file, so where a model has code, everything but documents counts.
"""

import fnmatch
import re
from collections.abc import Collection
from pathlib import Path

PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
OTHER_FORMS = frozenset({".gguf", ".onnx", ".onnx_data", ".h5", ".msgpack", ".tflite"})
"""Weights for other programs."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer.model.v3", "tekken.json", "vocab.json", "tiktoken.model")
INDEX = "model.safetensors.index.json"
DOCUMENTS = (
    "readme*", "license*", "licence*", "notice*", "use_policy*", "*.md", "*.pdf", "*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.webp",
)  # fmt: skip
"""Files that neither vLLM, nor transformers, nor a model's own code opens: patterns as of fnmatch(3), lower case."""
READ = re.compile(
    r"(?!\.|.*\.index\.json$)[^/]*\.(json|txt|model|model\.v[0-9][^/]*|tiktoken|spm|vocab|codes|jinja|py)"
    r"|model\.safetensors\.index\.json|additional_chat_templates/[^/.][^/]*\.jinja"
)
"""Config, tokenizer, chat templates, the index of the weights, and code; code runs only with ``trust_remote_code``."""
_WEIGHTS = (".safetensors", ".safetensors.index.json", ".tensors")
"""Weights and their indices. A manifest has no others."""


def is_document(path: str) -> bool:
    """Return whether no server, and no code of a model, opens a file with this name."""
    name = path.rpartition("/")[2].lower()
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in DOCUMENTS)


def is_weights(path: str) -> bool:
    """Return whether a file holds weights in any form, or is their index."""
    return path == INDEX or Path(path).suffix.lower() in {".safetensors", *PICKLE_SUFFIXES, *OTHER_FORMS}


def counted(paths: Collection[str]) -> frozenset[str]:
    """Return the files that a server may read: the model's identity. ``paths``: the files of a manifest, without those left out."""
    own_code = any(path.endswith(".py") for path in paths)
    read = (path for path in paths if own_code or READ.fullmatch(path) or path.endswith(_WEIGHTS))
    return frozenset(path for path in read if not is_document(path))


def left_out(paths: Collection[str], loaded: Collection[str]) -> frozenset[str]:
    """Return the weights that vLLM does not load: pickles, forms for other programs, and safetensors in folders such as ``original``.

    All safetensors at the top of the folder stay: vLLM loads ``consolidated*`` in place of those of the index if both are there (0.32.0).

    Args:
        loaded: safetensors that count wherever they are, such as those of the index.
    """
    nested = {path for path in paths if "/" in path and path.endswith(".safetensors") and path not in loaded}
    return frozenset(nested.union(path for path in paths if Path(path).suffix.lower() in PICKLE_SUFFIXES | OTHER_FORMS))


def loaded(names: Collection[str], shards: Collection[str] | None) -> Collection[str]:
    """Return the weights that vLLM loads: the shards of the index, else the files at the top of the folder.

    ``consolidated*`` (Mistral) and folders such as ``original`` (gpt-oss) hold a second form of the same weights. Source: vLLM,
    model_loader/default_loader.py and weight_utils.py, filter_duplicate_safetensors_files (0.25.1 and 0.32.0).
    """
    if shards is not None:
        return shards
    top = [name for name in names if "/" not in name and name.endswith(".safetensors")]
    return [name for name in top if not name.startswith("consolidated")] or top
