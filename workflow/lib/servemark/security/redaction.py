"""Replace secrets in text. Redact before truncating: half of a secret is not recognised."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from servemark.security.secret_scan import PATTERNS, SecretPattern, literals

_WHOLE = (
    # The whole key, not only its first line as in PATTERNS.
    SecretPattern(
        "private key",
        (b"PRIVATE KEY",),
        re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    ),
    # user:password@ in an address, such as a proxy's.
    SecretPattern("user and password", (b"://",), re.compile(rb"(?<=://)[^/\s:@'\"]+:[^/\s@'\"]+(?=@)")),
)


@dataclass
class Redactor:
    """Replaces secrets and counts them by kind. ``secrets``: literal texts, such as the keys of live endpoints."""

    secrets: Sequence[str] = ()
    hits: Counter[str] = field(default_factory=Counter)

    def __call__(self, text: str) -> str:
        """Return ``text`` with ``[REDACTED: kind]`` in place of every secret."""
        data = text.encode(errors="surrogateescape")
        for pattern in (*_WHOLE, *literals(dict.fromkeys(self.secrets, "key of this run")), *PATTERNS):
            data, count = pattern.replace(data, f"[REDACTED: {pattern.name}]".encode())
            if count:
                self.hits[pattern.name] += count
        return data.decode(errors="replace")
