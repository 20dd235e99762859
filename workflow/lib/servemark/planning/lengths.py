"""What of a request a server reads and keeps for it alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servemark.planning.options import flag
from servemark.records import LoadPoint


def in_words(load: LoadPoint) -> str:
    """Return ``64 + 32 = 96 tokens``; with a prefix ``512 (random-prefix-len) + 64 + 32 = 608 tokens``."""
    first = f"{load.prefix_tokens} (random-prefix-len) + " if load.prefix_tokens else ""
    return f"{first}{load.prompts.input_tokens} + {load.prompts.output_tokens} = {load.request_tokens} tokens"


def shared_tokens(load: LoadPoint, options: Mapping[str, Any]) -> int:
    """Return tokens of the prompts that the server reads and keeps once for all of a point.

    Prefix caching is on by default: vllm/engine/arg_utils.py, _set_default_chunked_prefill_and_prefix_caching_args (0.32.0).
    """
    return 0 if flag(options, "enable-prefix-caching") is False else load.prefix_tokens


def own_tokens(load: LoadPoint, options: Mapping[str, Any]) -> int:
    """Return tokens of a prompt that the server reads and keeps for it alone."""
    return load.prompt_tokens - shared_tokens(load, options)
