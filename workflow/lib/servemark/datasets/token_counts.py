"""Count the tokens of the longest prompt of a staged dataset, with the tokenizer of a model."""

import hashlib
import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tokenizers import Tokenizer

from servemark.records import Dataset, write_atomically

TOKENIZER = "tokenizer.json"
SPECIAL = 2
"""Special tokens that a tokenizer without ``tokenizer.json`` may add to a prompt: one at its beginning, one at its end."""
_AT_ONCE = 256


def longest(dataset: Dataset, model: Path) -> int:
    """Return the tokens of the longest prompt with a model's tokenizer; remembered next to the staged file.

    Without ``tokenizer.json``, the bytes of the longest prompt are the upper bound: a token has at least one byte.

    Args:
        model: the model's folder.

    Raises:
        OSError: the staged file cannot be read, or its folder cannot be written.
    """
    try:
        content = (model / TOKENIZER).read_bytes()
    except OSError:
        return dataset.prompt_bytes.most + SPECIAL
    known = Path(dataset.path).with_suffix(f".{hashlib.sha256(content).hexdigest()[:16]}.json")
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads(known.read_text())["longest"])
    tokenizer = Tokenizer.from_str(content.decode("utf-8"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    most = 0
    prompts = _prompts(Path(dataset.path))
    while some := list(itertools.islice(prompts, _AT_ONCE)):
        most = max(most, *(len(encoding.ids) for encoding in tokenizer.encode_batch_fast(some)))
    with suppress(OSError):
        write_atomically(known, json.dumps({"longest": most}) + "\n")
    return most


def _prompts(path: Path) -> Iterator[str]:
    with open(path, "rb") as stream:
        for line in stream:
            yield json.loads(line)["prompt"]
