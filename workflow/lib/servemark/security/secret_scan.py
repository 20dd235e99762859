"""Find secrets in files: by shape, by known text, and by the name in front of a value.

The scan reads text only. It does not read compressed parts (Parquet); the archive has the same table as CSV. It searches a known text also
as JSON, HTML, URLs, shells and Python write it. It finds Base64 only in the header ``Authorization: Basic``.
"""

import html
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO
from urllib.parse import quote, quote_plus

from snakemake_executor_plugin_slurm_guarded.secret_names import looks_secret

KEY_PREFIX = "servemark_key_"
"""Beginning of every API key and Ray token, so that the scan finds a key whose file was removed."""
SHORTEST = 8
"""Minimum number of characters of a variable's value for a literal search. Shorter values occur by chance."""
CHUNK = 1 << 20
# Each window begins this many bytes before its chunk, so that a secret at the end of a chunk is found.
OVERLAP = 1 << 14
# A path, a placeholder, or a masked value.
_NO_VALUE = re.compile(rb"[/~$<{(%.]|.*\*\*\*")
_PATH_WORDS = ("FILE", "PATH", "DIR", "FOLDER", "HOME")


@dataclass(frozen=True)
class SecretPattern:
    """A kind of secret.

    Attributes:
        needles: texts of which a match contains at least one. A search for them is much faster than the regex.
        accept: return whether a match is a secret.
    """

    name: str
    needles: tuple[bytes, ...]
    regex: re.Pattern[bytes]
    accept: Callable[[re.Match[bytes]], bool] = lambda _: True

    def matches(self, data: bytes, start: int = 0) -> Iterator[re.Match[bytes]]:
        """Yield the secrets from position ``start`` on."""
        if any(needle in data for needle in self.needles):
            yield from filter(self.accept, self.regex.finditer(data, start))

    def replace(self, data: bytes, by: bytes) -> tuple[bytes, int]:
        """Return ``data`` with ``by`` in place of every secret, and their number. The name in front of a value stays."""
        group = "value" if "value" in self.regex.groupindex else 0
        parts, end = [], 0
        for match in self.matches(data):
            parts += [data[end : match.start(group)], by]
            end = match.end(group)
        return b"".join([*parts, data[end:]]), len(parts) // 2


def _pattern(name: str, needles: tuple[bytes, ...], regex: bytes, *accept: Callable[[re.Match[bytes]], bool]) -> SecretPattern:
    return SecretPattern(name, needles, re.compile(regex), *accept)


def _announced(match: re.Match[bytes]) -> bool:
    """Return whether the name suggests a secret and the value is no path, word or number."""
    name, value = match["name"].decode(), match["value"]
    words = re.split(r"[^A-Z]+", name.upper())
    return (
        looks_secret(name)
        and words[-1] not in _PATH_WORDS
        and not _NO_VALUE.match(value)
        # A relative path. Random text has capitals too.
        and not (b"/" in value and value == value.lower())
        and re.search(rb"[0-9]", value) is not None
        and re.search(rb"[A-Za-z]", value) is not None
    )


PATTERNS = (
    _pattern("key of a deployment", (KEY_PREFIX.encode(),), KEY_PREFIX.encode() + rb"[0-9a-f]{16,}"),
    _pattern("Hugging Face token", (b"hf_",), rb"(?<![A-Za-z0-9_])hf_[A-Za-z0-9]{20,}"),
    _pattern("API key (sk-)", (b"sk-",), rb"(?<![A-Za-z0-9_])sk-[A-Za-z0-9_-]{20,}"),
    _pattern(
        "bearer token",
        (b"earer", b"EARER"),
        # A digit is required: prose and placeholders such as YOUR_KEY have none.
        rb"(?i:bearer)[ \t]+(?=[A-Za-z0-9._~+/-]*[0-9])[A-Za-z0-9._~+/-]{16,}",
    ),
    _pattern(
        "user and password of a request",
        (b"uthorization", b"UTHORIZATION"),
        rb"(?i:authorization)[\"']?[ \t]*[:=,][ \t]*[\"']?(?i:basic)[ \t]+[A-Za-z0-9+/]{8,}={0,2}",
    ),
    _pattern(
        "user and password in an address", (b"://",), rb"://[^/\s:@\"'<>]{1,100}:(?=[^/\s:@\"'<>]*[0-9])(?!\*\*)[^/\s:@\"'<>]{8,200}@"
    ),
    _pattern("private key", (b"PRIVATE KEY",), rb"-----BEGIN [A-Z ]*PRIVATE KEY"),
    _pattern("JSON web token", (b"eyJ",), rb"(?<![A-Za-z0-9_-])eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}"),
    _pattern("AWS key", (b"AKIA", b"ASIA"), rb"(?<![A-Za-z0-9])A(?:KIA|SIA)[0-9A-Z]{16}(?![0-9A-Z])"),
    _pattern(
        "GitHub token",
        (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_"),
        rb"(?<![A-Za-z0-9_])(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{22})",
    ),
    _pattern(
        "value of a variable that is named like a secret",
        (b"KEY", b"TOKEN", b"SECRET", b"PASS", b"CREDENTIAL"),
        # NAME=value of an environment, however its lines end; the same in JSON and as Python shows it.
        rb"(?<![A-Za-z0-9_])(?P<name>[A-Z][A-Z0-9_]{2,63})[\"']?[ \t]?[=:][ \t]?[\"']?(?P<value>[^\s\"',;\0]{12,})",
        _announced,
    ),
    _pattern(
        "value of an option that is named like a secret",
        (b"key", b"token", b"secret", b"pass", b"credential"),
        # --api-key value, as a shell, a list in JSON or Python, and /proc/PID/cmdline write it.
        rb"--(?P<name>[a-z][a-z0-9-]{2,63})(?:=|[\"']?[,\s\0]{1,40})[\"']?(?P<value>[^\s\"',;\0]{12,})",
        _announced,
    ),
)


def literals(secrets: Mapping[str, str]) -> Iterator[SecretPattern]:
    """Yield patterns for known texts (text -> kind) in the forms of several formats; skip blank texts."""
    for text, kind in secrets.items():
        secret = text.strip()
        forms = {
            secret,
            json.dumps(secret)[1:-1],
            json.dumps(secret, ensure_ascii=False)[1:-1],
            repr(secret)[1:-1],
            html.escape(secret),
            shlex.quote(secret).strip("'"),
            quote(secret, safe=""),
            quote_plus(secret),
        } - {""}
        for form in sorted(forms):
            literal = form.encode(errors="surrogateescape")
            yield SecretPattern(kind, (literal,), re.compile(re.escape(literal)))


def of_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values of variables with a secret's name (value -> kind), without paths and short values."""
    found = {}
    for name, value in environ.items():
        text = value.strip()
        is_path = text.startswith(("/", "~")) or name.upper().rpartition("_")[2] in _PATH_WORDS
        if looks_secret(name) and len(text) >= SHORTEST and not is_path:
            found[text] = f"value of the environment variable {name}"
    return found


@dataclass(frozen=True)
class Found:
    """A secret's kind and line, counted from 1."""

    kind: str
    line: int


def scan(stream: IO[bytes], patterns: Sequence[SecretPattern], see: Callable[[bytes], object]) -> Found | None:
    """Return the first secret in a stream. Read it once, in bounded memory, and call ``see`` with each chunk."""
    size, lines, window = 0, 1, b""
    while chunk := stream.read(CHUNK):
        see(chunk)
        size += len(chunk)
        tail = window[-OVERLAP:]
        lines += window.count(b"\n", 0, len(window) - len(tail))
        window = tail + chunk
        # From 1, because a look-behind needs the byte before.
        if found := search(window, 1 if size > len(window) else 0, patterns):
            kind, position = found
            return Found(kind, lines + window.count(b"\n", 0, position))
    return None


def search(data: bytes, start: int, patterns: Sequence[SecretPattern]) -> tuple[str, int] | None:
    """Return the kind and position of a secret at or after ``start``."""
    found = ((pattern.name, match.start()) for pattern in patterns for match in pattern.matches(data, start))
    return next(found, None)
