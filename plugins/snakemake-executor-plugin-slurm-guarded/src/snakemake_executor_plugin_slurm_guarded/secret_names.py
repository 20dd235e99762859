"""Decide from its name whether a variable or key holds a secret."""

from __future__ import annotations

import re

# A word of the name decides, so that TOKENIZERS_PARALLELISM or MAX_TOKENS stay allowed; tiktoken is a tokenizer.
_SECRET_WORD = re.compile(r"KEYS?|TOKEN|SECRETS?|PASSWORD|PASSWD|CREDENTIALS?|[A-Z]+KEY|(?!TIKTOKEN)[A-Z]+TOKEN|[A-Z]+SECRET")


def looks_secret(name: str) -> bool:
    """Return whether a key or variable of this name would hold a secret: HF_TOKEN, api-key, DB_PASSWORD."""
    return any(_SECRET_WORD.fullmatch(word) for word in re.split(r"[^A-Z]+", name.upper()))
