"""The token for the hub: ``HF_TOKEN``, else the login that huggingface_hub stores (``hf auth login``). Never written by servemark."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

TRUE = ("1", "ON", "YES", "TRUE")
"""Values of a variable that huggingface_hub takes for true, in upper case."""


def offline() -> bool:
    """Return whether a variable of huggingface_hub forbids requests to the hub."""
    return (os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or "").upper() in TRUE


class Token(NamedTuple):
    """A token, or an empty text, and a sentence on where it comes from or why there is none."""

    text: str
    origin: str


def find() -> Token:
    """Return the token for requests to the hub."""
    if own := os.environ.get("HF_TOKEN", "").strip():
        return Token(own, "HF_TOKEN is set.")
    # Here, because the import takes 0.3 s.
    from huggingface_hub import constants, get_token
    from huggingface_hub.errors import OIDCError

    place = constants.HF_TOKEN_PATH
    if os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in TRUE:
        return Token("", f"HF_TOKEN is not set, and HF_HUB_DISABLE_IMPLICIT_TOKEN forbids the stored login ({place}).")
    try:
        stored = get_token()
    except (OSError, ValueError, OIDCError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        return Token("", f"HF_TOKEN is not set, and the stored login ({place}) cannot be read: {why}.")
    if not stored:
        return Token("", f"HF_TOKEN is not set, and there is no stored login ({place}).")
    return Token(stored, f"HF_TOKEN is not set; servemark used the stored login ({place}).")


def stored() -> dict[str, str]:
    """Return the stored token -> what it is, for a search in files; empty if there is none. Nothing is refreshed or requested."""
    from huggingface_hub import constants

    with suppress(OSError, ValueError):
        if text := Path(constants.HF_TOKEN_PATH).read_text().strip():
            return {text: "stored login of the Hugging Face hub"}
    return {}
