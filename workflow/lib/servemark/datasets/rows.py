"""Read the rows of a dataset, and name every row that cannot be used."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from servemark.datasets.hub_rows import hub_rows
from servemark.datasets.row import LONGEST_LINE, MOST_TOKENS, Fault, Row, messages_fault, sendable, text_fault
from servemark.records import DatasetSource

_LATEST = 1e12
"""Seconds. A later timestamp is no time; times in milliseconds since 1970 are above it."""
FAULTS = 5
"""Faults that a message lists."""
_CHUNK = 2**20
_BETWEEN = (",", " ", "\t", "\r", "\n")


def read(source: DatasetSource, files: Sequence[Path] = ()) -> Iterator[Row | Fault | None]:
    """Yield each row of a dataset, or its fault; None for an entry that is no request. One for each line, entry or row.

    Args:
        files: of a dataset of the hub, on this machine.

    Raises:
        OSError: a file cannot be read.
    """
    if source.kind == "hf":
        yield from hub_rows(files, source.column or "prompt")
    else:
        yield from _sharegpt(source.path) if source.kind == "sharegpt" else _timed(source.path) if source.arrivals else _lines(source.path)


def faults(source: DatasetSource, *, recorded: bool, chat: bool, requests: int = 0, limit: int | None = None) -> list[str]:
    """Return what is wrong with a dataset: at most :data:`FAULTS` rows in words, and how many further ones there are.

    Args:
        recorded: each row needs the number of its output tokens.
        chat: requests go to the chat route, which takes messages.
        requests: of the largest load point, which recorded arrivals must cover.
        limit: the server's `max-model-len`, tokens, which recorded outputs must stay below; None if it is unknown.
    """
    found: list[str] = []
    number, rows, last = 0, 0, 0.0
    try:
        if not os.path.isfile(source.path):
            what = "is not a file" if os.path.exists(source.path) else "does not exist"
            return [f"{os.path.abspath(source.path):.200} {what}"]
        for place, row in enumerate(read(source), 1):
            fault = row if isinstance(row, Fault) else None
            if isinstance(row, Row):
                rows, last = rows + 1, row.timestamp or 0.0
                unit = "line" if source.kind == "file" else "entry"
                if recorded and row.output_tokens is None and row.response is None:
                    fault = Fault(f"{unit} {place}", "has no `output_tokens`, which `output_tokens: recorded` needs")
                elif recorded and limit and (row.output_tokens or 0) >= limit:
                    what = f"has {row.output_tokens} output tokens, and options.max-model-len is {limit}; raise it, or remove the row"
                    fault = Fault(f"{unit} {place}", what)
                elif row.messages and not chat:
                    fault = Fault(f"{unit} {place}", "has `messages`, which need `api: chat` in the workload")
            if fault:
                number += 1
                found += [f"{fault.place} {fault.text}"] if len(found) < FAULTS else []
    except OSError as error:
        return [f"{source.path:.200} cannot be read: {error.strerror}"]
    if number > len(found):
        found.append(f"{number - len(found)} further rows cannot be used")
    if found or not rows:
        lacks = "contains no conversation with a response to a user's message" if source.kind == "sharegpt" else "has no rows"
        return found or [f"{source.path:.200} {lacks}"]
    if source.arrivals and last == 0:
        return [f"{source.path:.200} has the same `timestamp` in every row"]
    if source.arrivals and rows < requests:
        return [f"{source.path:.200} has {rows} arrivals, and a load point sends {requests} requests"]
    return []


def _lines(path: str, *, timed: bool = False) -> Iterator[Row | Fault]:
    with open(path, "rb") as stream:
        number = 0
        while line := stream.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE:
                yield Fault(f"line {number}", f"is longer than {LONGEST_LINE // 2**20} MiB")
                return
            yield _row(line, f"line {number}", timed=timed)


def _timed(path: str) -> Iterator[Row | Fault]:
    """Yield the rows of a file with the times of their arrivals in seconds after the first row; none may be earlier than the row before."""
    first: float | None = None
    before: float | None = None
    for number, row in enumerate(_lines(path, timed=True), 1):
        if isinstance(row, Row) and row.timestamp is not None:
            moment, first = row.timestamp, row.timestamp if first is None else first
            if before is not None and moment < before:
                yield Fault(f"line {number}", f"has the `timestamp` {moment:g}, which is before {before:g} in an earlier line")
                continue
            before, row = moment, replace(row, timestamp=round(moment - first, 6))
        yield row


def _row(line: bytes, place: str, *, timed: bool) -> Row | Fault:
    try:
        data = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Fault(place, f"is not UTF-8 (byte {error.start})")
    except (ValueError, RecursionError):
        return Fault(place, "is empty" if not line.strip() else "is not JSON")
    if not isinstance(data, dict):
        return Fault(place, f'must be an object such as {{"prompt": "..."}}, not {type(data).__name__}')
    if ("prompt" in data) == ("messages" in data):
        return Fault(place, "has both `prompt` and `messages`" if "prompt" in data else "has no `prompt` and no `messages`")
    fault = text_fault(data["prompt"], "`prompt`") if "prompt" in data else messages_fault(data["messages"])
    if fault:
        return Fault(place, fault)
    tokens = data.get("output_tokens")
    if tokens is not None and (type(tokens) is not int or not 1 <= tokens <= MOST_TOKENS):
        return Fault(place, f"`output_tokens` must be a whole number from 1 to {MOST_TOKENS:,}, not {json.dumps(tokens):.40}")
    moment: Any = data.get("timestamp") if timed else None
    if timed and (type(moment) not in (int, float) or not abs(moment) <= _LATEST):
        return Fault(place, f"needs a `timestamp` in seconds for `arrivals: recorded`, not {json.dumps(moment):.40}")
    if "prompt" in data:
        return Row(data["prompt"], tokens, timestamp=moment)
    return Row("", tokens, tuple({"role": one["role"], "content": one["content"]} for one in data["messages"]), timestamp=moment)


def _sharegpt(path: str) -> Iterator[Row | Fault | None]:
    """Yield the first message of a person in each conversation that a response follows, as vLLM's ShareGPT dataset does.

    Source: vllm/benchmarks/datasets, ShareGPTDataset (0.32.0): conversations of fewer than two messages are left out.
    """
    for number, entry in enumerate(_entries(path), 1):
        place = f"entry {number}"
        if isinstance(entry, Fault):
            yield entry
            return
        turns = entry.get("conversations", entry.get("conversation")) if isinstance(entry, dict) else None
        if not isinstance(turns, list):
            yield Fault(place, "has no list `conversations`")
        elif any(not isinstance(turn, dict) or not isinstance(turn.get("value"), str) for turn in turns[:2]):
            yield Fault(place, "has a message without the text `value`")
        elif len(turns) < 2 or text_fault(turns[0]["value"], "the message"):
            yield None
        else:
            yield Row(turns[0]["value"], response=sendable(turns[1]["value"]))


def _entries(path: str) -> Iterator[Any]:
    """Yield the entries of a JSON array one by one, and a fault where the file is no array of JSON values."""
    decode = json.JSONDecoder().raw_decode
    number = 0
    with open(path, encoding="utf-8", errors="surrogateescape") as stream:
        text = stream.read(_CHUNK).lstrip("\ufeff \t\r\n")
        if not text.startswith("["):
            yield Fault("entry 1", "is not in a JSON list `[...]`")
            return
        # A position in the text: to cut it after each entry would copy the rest of the chunk.
        begin = 1
        while True:
            while text[begin : begin + 1] in _BETWEEN:
                begin += 1
            if text.startswith("]", begin):
                return
            try:
                entry, begin = decode(text, begin)
            except (ValueError, RecursionError):
                text, begin = text[begin:], 0
                more = stream.read(max(_CHUNK, len(text))) if len(text) < LONGEST_LINE else ""
                if not more:
                    yield Fault(f"entry {number + 1}", "is not JSON, or the file is cut off")
                    return
                text += more
                continue
            number += 1
            yield entry
