"""Count tokens as a server does: with the tokenizer of the model, and with its chat template on the chat route."""

import hashlib
import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from servemark.records import Dataset, write_atomically
from servemark.weights import chat_template
from servemark.weights.chat_template import ChatTemplate

TOKENIZER = "tokenizer.json"
SPECIAL = 2
"""Special tokens that a tokenizer without ``tokenizer.json`` may add to a prompt: one at its beginning, one at its end."""
_AT_ONCE = 256
_TEXT = "servemark"


class RowRefused(Exception):
    """The chat template refuses a row. The text has the line of the staged file and the template's own words."""


@dataclass(frozen=True)
class TokenCounts:
    """The tokens of texts and rows.

    Args:
        model: the model's folder.
        template: the chat template; None for the completions route, or if it is not known.
    """

    model: Path
    template: ChatTemplate | None = None

    @cached_property
    def _content(self) -> bytes | None:
        try:
            return (self.model / TOKENIZER).read_bytes()
        except OSError:
            return None

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        if self._content is None:
            return None
        tokenizer = Tokenizer.from_str(self._content.decode("utf-8"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def digest(self) -> str | None:
        """Digest of the tokenizer, for names of files; None without ``tokenizer.json``."""
        return None if self._content is None else hashlib.sha256(self._content).hexdigest()[:16]

    def of(self, texts: list[str]) -> list[int]:
        """Return the tokens of each text, without special ones. The model has ``tokenizer.json``."""
        assert self._tokenizer, "the caller has checked the digest"
        return [len(encoding.ids) for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    @cached_property
    def added(self) -> int | None:
        """Tokens that the chat template adds to a prompt; None if they are not known."""
        if self.template is None or self._tokenizer is None:
            return None
        try:
            whole = self.template.render(chat_template.user(_TEXT))
        except chat_template.Refused:
            return None
        # A server adds no special tokens to a conversation: the template has them (vllm/renderers/hf.py, 0.32.0).
        with_template, alone = self.of([whole, _TEXT])
        return with_template - alone

    def longest(self, dataset: Dataset) -> tuple[int, int | None]:
        """Return tokens and line of the longest row of the staged file, with the chat template; remembered next to the file.

        Without ``tokenizer.json``, the bytes of the longest row are the upper bound (a token has at least one byte), and the line is None.

        Raises:
            RowRefused: the chat template refuses a row.
            OSError: the staged file cannot be read, or its folder cannot be written.
        """
        if self.digest is None:
            return dataset.prompt_bytes.most + SPECIAL, None
        # Prompts get the same text around them, so only conversations need the template row by row.
        template = self.template if dataset.conversations else None
        words = [self.digest, *([template.digest[:16]] if template else [])]
        known = Path(dataset.path).with_suffix(f".{'-'.join(words)}.json")
        try:
            kept = json.loads(known.read_text())
            most, line = int(kept["longest"]), int(kept["line"])
        except (OSError, ValueError, KeyError, TypeError):
            most, line = self._most(_texts(Path(dataset.path), template), special=template is None)
            with suppress(OSError):
                write_atomically(known, json.dumps({"longest": most, "line": line}) + "\n")
        return most + ((self.added or 0) if template is None else 0), line

    def _most(self, texts: Iterator[str], *, special: bool) -> tuple[int, int]:
        """Return the most tokens of a text and the number of the first such text, from 1."""
        assert self._tokenizer, "the caller has one"
        most, line, before = 0, 1, 0
        while some := list(itertools.islice(texts, _AT_ONCE)):
            for encoding in self._tokenizer.encode_batch_fast(some, add_special_tokens=special):
                before += 1
                if len(encoding.ids) > most:
                    most, line = len(encoding.ids), before
        return most, line


def _texts(path: Path, template: ChatTemplate | None) -> Iterator[str]:
    with open(path, "rb") as stream:
        for number, line in enumerate(stream, 1):
            row = json.loads(line)
            if template is None:
                yield row["prompt"] if "prompt" in row else "\n".join(_contents(row))
                continue
            try:
                yield template.render(row.get("messages") or chat_template.user(row["prompt"]))
            except chat_template.Refused as error:
                raise RowRefused(f"line {number} of the staged file: {error}") from None


def _contents(row: dict[str, Any]) -> list[str]:
    return [message["content"] for message in row["messages"]]
