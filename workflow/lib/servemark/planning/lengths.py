"""How long the requests of a load are, and what of a prompt a server reads and keeps for each by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from servemark.planning.options import flag
from servemark.records import prefix_tokens, prompt_tokens
from servemark.records.plan import Prompted


class Requested(Prompted, Protocol):
    """What says how long the requests of a load are: a workload, or one of its points."""

    @property
    def output_tokens(self) -> int:
        """Output tokens of a request."""


def request_tokens(load: Requested) -> int:
    """Return tokens of a prompt and its answer."""
    return prompt_tokens(load) + load.output_tokens


def in_words(load: Requested) -> str:
    """Return ``64 + 32 = 96 tokens``; with a prefix ``512 (random-prefix-len) + 64 + 32 = 608 tokens``."""
    prefix = prefix_tokens(load)
    first = f"{prefix} (random-prefix-len) + " if prefix else ""
    return f"{first}{load.input_tokens} + {load.output_tokens} = {request_tokens(load)} tokens"


def prefixes_cached(options: Mapping[str, Any]) -> bool:
    """Return whether prompts that begin alike share what is computed of that.

    On by default: vllm/engine/arg_utils.py, _set_default_chunked_prefill_and_prefix_caching_args (0.32.0).
    """
    return flag(options, "enable-prefix-caching") is not False


def shared_tokens(load: Prompted, options: Mapping[str, Any]) -> int:
    """Return tokens of the prompts that the server reads and keeps once for all of a point."""
    return prefix_tokens(load) if prefixes_cached(options) else 0


def own_tokens(load: Prompted, options: Mapping[str, Any]) -> int:
    """Return tokens of a prompt that the server reads and keeps for it alone."""
    return prompt_tokens(load) - shared_tokens(load, options)
