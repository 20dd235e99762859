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


def prefixes_cached(options: Mapping[str, Any]) -> bool:
    """Return whether prompts that begin alike share what is computed of that.

    On by default: vllm/engine/arg_utils.py, _set_default_chunked_prefill_and_prefix_caching_args (0.32.0).
    """
    return flag(options, "enable-prefix-caching") is not False


def shared_tokens(load: LoadPoint, options: Mapping[str, Any]) -> int:
    """Return tokens of the prompts that the server reads and keeps once for all of a point."""
    return load.prefix_tokens if prefixes_cached(options) else 0


def own_tokens(load: LoadPoint, options: Mapping[str, Any]) -> int:
    """Return tokens of a prompt that the server reads and keeps for it alone."""
    return load.prompt_tokens - shared_tokens(load, options)
