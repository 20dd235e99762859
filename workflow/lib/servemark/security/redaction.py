"""Quoting in bounded space, with secrets taken out first: a secret cut in two would not be recognised any more."""

from __future__ import annotations

import json
import os
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from servemark.diagnosis.text import stream
from servemark.security.secret_scan import PATTERNS

LONGEST_LINE = 300
# A whole key, not only the line that the archive's scanner looks for.
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
# user:password@ in an address, such as a proxy's.
_CREDENTIALS = re.compile(r"(?<=://)[^/\s:@'\"]+:[^/\s@'\"]+(?=@)")


@dataclass
class Redactor:
    """Takes secrets out of text and counts them by kind. ``secrets``: literal texts, such as the keys of live endpoints."""

    secrets: Sequence[str] = ()
    hits: Counter[str] = field(default_factory=Counter)

    def __call__(self, text: str) -> str:
        """Return ``text`` with ``[REDACTED: kind]`` in place of every secret."""
        text = self._replace("private key", _PRIVATE_KEY, text)
        text = self._replace("user and password", _CREDENTIALS, text)
        for secret in filter(None, (secret.strip() for secret in self.secrets)):
            for form in {secret, json.dumps(secret)[1:-1]}:
                text = self._replace("key of this run", re.compile(re.escape(form)), text)
        data = text.encode(errors="surrogateescape")
        for pattern in PATTERNS:
            data, count = pattern.replace(data, f"[REDACTED: {pattern.name}]".encode())
            self._count(pattern.name, count)
        return data.decode(errors="replace")

    def _replace(self, kind: str, pattern: re.Pattern[str], text: str) -> str:
        text, count = pattern.subn(f"[REDACTED: {kind}]", text)
        self._count(kind, count)
        return text

    def _count(self, kind: str, count: int) -> None:
        if count:
            self.hits[kind] += count


@dataclass(frozen=True)
class Quoting:
    """Quotes files and lines."""

    redact: Redactor

    def lines(self, lines: Iterable[str], most: int, indent: str = "    ") -> list[str]:
        """At most ``most`` lines, the first and the last ones, each cut at 300 characters."""
        clean = self.redact("\n".join(lines)).splitlines()
        if len(clean) > most:
            head = most // 2
            clean = [*clean[:head], f"[{len(clean) - most} lines left out]", *clean[len(clean) - (most - head) :]]
        return [indent + (line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 3] + "...") for line in clean]

    def tail(self, path: Path, most: int, indent: str = "    ") -> list[str]:
        """Return the last lines of a file; says when it cannot be read."""
        try:
            return self.lines(deque(last_lines(path), maxlen=most), most, indent) or [f"{indent}(empty)"]
        except OSError as error:
            return [f"{indent}(cannot be read: {error.strerror})"]


def last_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file's end, without colour codes; the first of them may be cut."""
    with open(path, "rb") as handle:
        handle.seek(max(0, os.fstat(handle.fileno()).st_size - (1 << 18)))
        yield from stream(handle.read().decode(errors="replace"))
