"""Decide from its name whether a variable or key holds a secret."""

import re

# A whole word of the name must match, so that TOKENIZERS_PARALLELISM and MAX_TOKENS stay allowed; tiktoken is a tokenizer.
_SECRET_WORD = re.compile(r"KEYS?|TOKEN|SECRETS?|PASSWORD|PASSWD|CREDENTIALS?|[A-Z]+KEY|(?!TIKTOKEN)[A-Z]+TOKEN|[A-Z]+SECRET")


def looks_secret(name: str) -> bool:
    """Return whether a variable or key with this name holds a secret, such as HF_TOKEN, api-key, DB_PASSWORD."""
    return any(_SECRET_WORD.fullmatch(word) for word in re.split(r"[^A-Z]+", name.upper()))
