"""The benchmark client's per-request results, read from its ``--save-detailed`` JSON and checked.

Format (vllm/benchmarks/serve.py, ``benchmark`` and ``main_async``): one JSON object with the client's totals and one
list entry per request, failed requests included:

=================  ============================================================================================
key                per request
=================  ============================================================================================
``input_lens``     prompt tokens
``output_lens``    generated tokens; 0 for a failed request
``ttfts``          seconds to the first streamed chunk; 0.0 when none came
``itls``           list of seconds between chunks
``start_times``    seconds on the client's monotonic clock
``errors``         text, empty when it went well
``latencies``      seconds to the last chunk, or to the failure (vLLM's own functions: 0.0). vLLM 0.32 writes it; in 0.25 it is
                   ``ttft + sum(itls)``, which is the same sum by construction
``queue_times``    seconds between a request's arrival and its start, in the client. vLLM 0.32 writes it; 0.25 does not.
                   Without a request rate all arrive at once, before several processes wait for each other
=================  ============================================================================================

Several client processes share the load of one point; their files are merged into one (:mod:`servemark.measurement.merge`), which has a
key more, ``clients``: for each process, in the order of its requests in the lists,

==================  ===========================================================================================
key                 per process
==================  ===========================================================================================
``listed``          how many entries of the lists are its own
``first_start``     start of its first request, on the same clock
``cpu``             ``[moment, seconds]`` about once a second while it measured: the same clock, and the CPU time
                    that it had used since it was started
its own totals      ``num_prompts`` to ``mean_itl_ms``, as above
==================  ===========================================================================================

The file has no success flag. A request that failed has an error text, or, when the server answered with a status line
without a reason phrase (``output.error = response.reason or ""``), an empty one and a TTFT of 0.0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servemark.errors import ServemarkError

COUNTS = ("num_prompts", "completed", "failed", "total_input_tokens", "total_output_tokens")
TOTALS = ("request_throughput", "output_throughput", "total_token_throughput")
LISTS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors")
MEANS = ("mean_ttft_ms", "mean_itl_ms")


class RawError(ServemarkError):
    """The client's result file cannot be used; ``reason`` says in one code why."""

    default_reason = "raw_broken"


@dataclass(frozen=True)
class Request:
    """One request; times in seconds, ``start`` on the client's monotonic clock, ``waited`` before it (None: not written down)."""

    ok: bool
    input_tokens: int
    output_tokens: int
    ttft: float
    itls: tuple[float, ...]
    latency: float
    start: float
    error: str
    waited: float | None = None


@dataclass(frozen=True)
class Results:
    """Requests, and what the client says of them. ``totals`` are the client's own sums, kept for comparison only."""

    num_prompts: int
    completed: int
    failed: int
    duration_s: float
    requests: tuple[Request, ...]
    totals: dict[str, float]

    @property
    def good(self) -> list[Request]:
        """The completed requests."""
        return [request for request in self.requests if request.ok]


@dataclass(frozen=True)
class Client(Results):
    """The share of one client process; ``cpu`` as in the file."""

    cpu: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class RawResult(Results):
    """The checked content of one result file. ``clients`` is empty in a file from before there were several."""

    clients: tuple[Client, ...] = ()


def read_raw(path: Path) -> RawResult:
    """Read and check one result file; raises as :func:`read_data`."""
    return read_data(path)[1]


def read_data(path: Path) -> tuple[dict[str, Any], RawResult]:
    """Return one result file's JSON, and its checked content.

    Raises:
        RawError: with one of the reasons ``raw_missing``, ``raw_empty``, ``raw_truncated``, ``raw_broken`` (not JSON,
            not an object), ``raw_extra`` (more follows the first document), ``raw_incomplete`` (keys missing),
            ``raw_lengths`` (lists of other lengths), ``raw_types`` (a value of the wrong type or a negative count),
            ``non_finite`` (NaN or infinity).
    """
    try:
        data = _parse(path.read_text(encoding="utf-8"))
        return data, _result(data)
    except FileNotFoundError:
        what, reason = "The client wrote no result file", "raw_missing"
    except (OSError, UnicodeDecodeError) as error:
        what, reason = f"The result file cannot be read: {error}", "raw_broken"
    except _Bad as bad:
        what, reason = bad.what, bad.reason
    raise RawError(f"{what} ({path.name}).", look=str(path), do="Read the client's log of this point.", reason=reason)


class _Bad(Exception):
    def __init__(self, reason: str, what: str):
        self.reason, self.what = reason, what
        super().__init__(what)


def _parse(text: str) -> dict[str, Any]:
    if not text.strip():
        raise _Bad("raw_empty", "The result file is empty")

    def refuse(constant: str) -> None:
        raise _Bad("non_finite", f"The result file holds {constant}, which is no number")

    body = text.strip()
    try:
        data, end = json.JSONDecoder(parse_constant=refuse).raw_decode(body)
    except (ValueError, RecursionError) as error:
        if body.startswith("{") and not body.endswith("}"):
            raise _Bad("raw_truncated", f"The result file ends in the middle: {error}") from None
        raise _Bad("raw_broken", f"The result file is not JSON: {error}") from None
    if end != len(body):
        raise _Bad("raw_extra", "More text follows the first JSON document of the result file")
    if not isinstance(data, dict):
        raise _Bad("raw_broken", f"The result file holds a {type(data).__name__}, not an object")
    return data


def _result(data: dict[str, Any]) -> RawResult:
    missing = [key for key in (*COUNTS, "duration", *TOTALS, *LISTS) if key not in data]
    if missing:
        raise _Bad("raw_incomplete", f"The result file lacks {', '.join(missing)}; was --save-detailed given?")
    columns: dict[str, list[Any]] = {
        "input_lens": _column(data, "input_lens", _count),
        "output_lens": _column(data, "output_lens", _count),
        "ttfts": _column(data, "ttfts", _number),
        "itls": _column(data, "itls", _numbers),
        "start_times": _column(data, "start_times", _number),
        "errors": _column(data, "errors", _text),
    }
    columns |= {key: _column(data, key, _number) for key in ("latencies", "queue_times") if key in data}
    lengths = {key: len(column) for key, column in columns.items()}
    if len(set(lengths.values())) > 1:
        text = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise _Bad("raw_lengths", f"The per-request lists have other lengths: {text}")
    latencies = columns.get("latencies") or [ttft + math.fsum(itls) for ttft, itls in zip(columns["ttfts"], columns["itls"], strict=True)]
    waits = columns.get("queue_times") or [None] * len(latencies)
    requests = tuple(
        Request(
            ok=not error and ttft != 0.0,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            ttft=ttft,
            itls=itls,
            latency=latency,
            start=start,
            error=error,
            waited=waited,
        )
        for input_tokens, output_tokens, ttft, itls, latency, start, error, waited in zip(
            columns["input_lens"],
            columns["output_lens"],
            columns["ttfts"],
            columns["itls"],
            latencies,
            columns["start_times"],
            columns["errors"],
            waits,
            strict=True,
        )
    )
    return RawResult(**_said(data), requests=requests, clients=_clients(data.get("clients", []), requests))


def _said(data: dict[str, Any]) -> dict[str, Any]:
    """Return what the client, or one of its processes, says of its requests."""
    counts = {key: _count(key, data[key]) for key in COUNTS}
    totals = {key: float(counts.pop(key)) for key in ("total_input_tokens", "total_output_tokens")}
    totals |= {key: _number(key, data[key]) for key in (*TOTALS, *(key for key in MEANS if key in data))}
    return {**counts, "duration_s": _number("duration", data["duration"]), "totals": totals}


def _clients(entries: Any, requests: tuple[Request, ...]) -> tuple[Client, ...]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise _Bad("raw_types", "clients is not a list of objects")
    found, begin = [], 0
    for entry in entries:
        missing = [key for key in (*COUNTS, "duration", *TOTALS, "listed", "first_start", "cpu") if key not in entry]
        if missing:
            raise _Bad("raw_incomplete", f"An entry of clients lacks {', '.join(missing)}")
        said, end = _said(entry), begin + _count("listed", entry["listed"])
        said["totals"]["first_start"] = _number("first_start", entry["first_start"])
        samples = [_numbers("cpu", sample) for sample in _column(entry, "cpu", lambda _, sample: sample)]
        if any(len(sample) != 2 for sample in samples):
            raise _Bad("raw_types", "cpu holds a sample that is not a moment and seconds")
        found.append(Client(**said, requests=requests[begin:end], cpu=tuple((moment, used) for moment, used in samples)))
        begin = end
    if found and begin != len(requests):
        raise _Bad("raw_lengths", f"The client processes list {begin} requests, the file {len(requests)}")
    return tuple(found)


def _column(data: dict[str, Any], key: str, check: Callable[[str, Any], Any]) -> list[Any]:
    values = data[key]
    if not isinstance(values, list):
        raise _Bad("raw_types", f"{key} is a {type(values).__name__}, not a list")
    return [check(key, value) for value in values]


def _count(key: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _Bad("raw_types", f"{key} holds {value!r:.40}, not a count")
    return value


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Bad("raw_types", f"{key} holds {value!r:.40}, not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _Bad("non_finite", f"{key} holds a number that is not finite")
    return number


def _numbers(key: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise _Bad("raw_types", f"{key} holds a {type(value).__name__} where a list of numbers belongs")
    return tuple(_number(key, item) for item in value)


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _Bad("raw_types", f"{key} holds {value!r:.40}, not text")
    return value
