"""Rows of the files of a dataset of the hub: Parquet and JSON Lines."""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from servemark.datasets.row import LONGEST_LINE, MOST_TOKENS, ROLES, Fault, Row, messages_fault, text_fault

_LENGTH = "output_tokens"
_SPEAKERS = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant"} | {role: role for role in ROLES}
"""Role by the name in ``from`` (the format of ShareGPT)."""
_AT_ONCE = 256


def hub_rows(files: Sequence[Path], column: str) -> Iterator[Row | Fault | None]:
    """Yield each row, or its fault; None for a row that is no request. ``column``: has a text, or a list of messages.

    The last message of the assistant is the recorded response, and the messages before it are the prompt.
    """
    for path in files:
        rows = _parquet(path, column) if path.suffix == ".parquet" else _lines(path)
        for number, row in enumerate(rows, 1):
            place = f"row {number} of {path.name}"
            found = row if isinstance(row, str) else _row(row, column)
            yield Fault(place, found) if isinstance(found, str) else found


def _parquet(path: Path, column: str) -> Iterator[Mapping[str, Any] | str]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            names = file.schema_arrow.names
            if column not in names:
                yield _missing(column, names)
                return
            columns = [name for name in (column, _LENGTH) if name in names]
            for batch in file.iter_batches(batch_size=_AT_ONCE, columns=columns):
                yield from batch.to_pylist()
    except (ArrowException, ValueError) as error:
        yield f"cannot be read as Parquet: {error!s:.200}"


def _lines(path: Path) -> Iterator[Mapping[str, Any] | str]:
    with open(path, "rb") as stream:
        while line := stream.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                yield f"is longer than {LONGEST_LINE // 2**20} MiB"
                return
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                yield "is not JSON"
                return
            yield row if isinstance(row, dict) else "is not a JSON object"


def _row(row: Mapping[str, Any], column: str) -> Row | str | None:
    """Return a row, its fault, or None if it is no request: its prompt is empty."""
    if column not in row:
        return _missing(column, row)
    value, tokens = row[column], _whole(row.get(_LENGTH))
    if tokens is not None and (type(tokens) is not int or not 1 <= tokens <= MOST_TOKENS):
        return f"`{_LENGTH}` must be a whole number from 1 to {MOST_TOKENS:,}, not {tokens!r:.40}"
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, str):
        return text_fault(value, f"`{column}`") or Row(value, tokens)
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        return f"`{column}` must be text or a list of messages, not {type(value).__name__}"
    messages = [message if isinstance(message := _message(one), dict) else None for one in value]
    known = [one for one in messages if one is not None]
    if len(known) < len(messages):
        return f"message {messages.index(None) + 1} of `{column}` needs `role` and `content`, or `from` and `value`"
    response = known.pop()["content"] if known and known[-1]["role"] == "assistant" else None
    known = list(itertools.dropwhile(lambda message: message["role"] == "assistant", known))
    # Nobody here can correct a dataset of the hub, so a row without something to respond to is left out.
    if not known or known[-1]["role"] == "assistant" or any(one["role"] == "user" and one["content"] == "" for one in known):
        return None
    fault = messages_fault(known) or (response is not None and text_fault(response, "the response", empty=True))
    return fault or Row("", tokens, tuple(known), response)


def _message(message: Mapping[str, Any]) -> dict[str, str] | None:
    role = message.get("role") or _SPEAKERS.get(str(message.get("from")))
    content = message.get("content", message.get("value"))
    if role == "assistant" and content is None:
        content = ""  # it only called tools
    if isinstance(content, str) and not content.strip():
        content = ""
    return {"role": role, "content": content} if isinstance(role, str) and content is not None else None


def _whole(value: Any) -> Any:
    """Return 12.0 as 12: Parquet has the whole numbers of a column with gaps as fractions, and a gap as NaN."""
    if isinstance(value, float):
        return None if math.isnan(value) else int(value) if value.is_integer() else value
    return value


def _missing(column: str, names: Any) -> str:
    return f"has no column `{column}`; its columns: {', '.join(map(str, list(names)[:20]))}. Set `column` to one of them"
