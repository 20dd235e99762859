"""The benchmark client's per-request results, read from its ``--save-detailed`` JSON and checked.

Format (vllm/benchmarks/serve.py, ``benchmark`` and ``main_async``): one JSON object with the client's totals and a list entry per request,
failed requests included. ``input_lens`` and ``output_lens`` are tokens (0 output tokens for a failed request), ``errors`` texts (empty when
it went well); ``ttfts`` (0.0 when no chunk came), ``itls`` (a list each) and ``start_times`` (monotonic clock) are seconds. vLLM 0.32 adds

* ``latencies``: seconds to the last chunk, or to the failure (vLLM's own functions: 0.0). For 0.25 it is ``ttft + sum(itls)``, the same.
* ``queue_times``: seconds between a request's arrival and its start, in the client. Without a request rate all arrive at once, before
  several processes wait for each other.

Several client processes share the load of one point; their files are merged into one (:mod:`servemark.measurement.merge`), with a further
key ``clients``. It has an entry for each process, in the order of its requests in the lists: its own totals (``num_prompts`` to
``mean_itl_ms``), ``listed`` (entries of the lists that are its own), ``first_start`` (start of its first request, on the same clock), and
``cpu``: ``[moment, seconds]`` about once a second, the same clock and the CPU time that it had used since it was started.

The file has no success flag. A request that failed has an error text, or, when the server answered with a status line
without a reason phrase (``output.error = response.reason or ""``), an empty one and a TTFT of 0.0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from servemark.errors import ServemarkError
from servemark.measurement.reason_row import rows

COUNTS = ("num_prompts", "completed", "failed", "total_input_tokens", "total_output_tokens")
TOTALS = ("request_throughput", "output_throughput", "total_token_throughput")
MEANS = ("mean_ttft_ms", "mean_itl_ms")
_LISTS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors", "latencies", "queue_times")

_Count = Annotated[int, Field(strict=True, ge=0)]
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]


ROWS = rows("INVALID",
    non_finite=("The result file holds a number that is not finite.", "Read the client's log of this point, then run again."),
    raw_broken=("The client's result file cannot be read.", "Read the client's log of this point."),
    raw_empty=("The client's result file is empty.", "Read the client's log of this point."),
    raw_extra=("The client's result file holds text after its end.", "Read the client's log of this point."),
    raw_incomplete=("The client's result file lacks a key.", "Another version of vLLM may write another format."),
    raw_lengths=("The lists of the client's result file have different lengths.", "Read the client's log of this point."),
    raw_missing=("The client wrote no result file.", "Read the client's log of this point."),
    raw_types=("A value of the client's result file is of another type.", "Another version of vLLM may write another format."),
    raw_truncated=("The client's result file ends in the middle.", "Read the client's log of this point."),
)  # fmt: skip


class _Said(BaseModel):
    """What the client, or one of its processes, says of its requests."""

    num_prompts: _Count
    completed: _Count
    failed: _Count
    total_input_tokens: _Count
    total_output_tokens: _Count
    duration: _Number
    request_throughput: _Number
    output_throughput: _Number
    total_token_throughput: _Number
    mean_ttft_ms: _Number = math.nan
    mean_itl_ms: _Number = math.nan

    def results(self) -> dict[str, Any]:
        """Return the values under the names of ``Results``; a mean that is absent is left out."""
        sums = ("total_input_tokens", "total_output_tokens", *TOTALS, *MEANS, "first_start")
        totals = {key: float(getattr(self, key)) for key in sums if key in self.model_fields_set}
        return {key: getattr(self, key) for key in COUNTS[:3]} | {"duration_s": self.duration, "totals": totals}


class _Entry(_Said):
    listed: _Count
    first_start: _Number
    cpu: list[tuple[_Number, _Number]]


class _File(_Said):
    input_lens: list[_Count]
    output_lens: list[_Count]
    ttfts: list[_Number]
    itls: list[tuple[_Number, ...]]
    start_times: list[_Number]
    errors: list[str]
    latencies: list[_Number] = []
    queue_times: list[_Number] = []
    clients: list[_Entry] = []


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
    """Return one result file's JSON, and its checked content; raise RawError with a reason ``raw_*`` or ``non_finite``."""
    try:
        data = _parse(path.read_text(encoding="utf-8"))
        return data, _result(data)
    except FileNotFoundError:
        what, reason = "The client wrote no result file", "raw_missing"
    except (OSError, UnicodeDecodeError) as error:
        what, reason = f"The result file cannot be read: {error}", "raw_broken"
    except (ValidationError, _Bad) as error:
        reason, what = (_fault(error) if isinstance(error, ValidationError) else error).args
    raise RawError(f"{what} ({path.name}).", look=str(path), do="Read the client's log of this point.", reason=reason)


class _Bad(Exception):
    """Why a file cannot be used: (reason, what happened)."""


def _parse(text: str) -> dict[str, Any]:
    body = text.strip()
    if not body:
        raise _Bad("raw_empty", "The result file is empty")

    def refuse(constant: str) -> None:
        raise _Bad("non_finite", f"The result file holds {constant}, which is no number")

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


def _fault(error: ValidationError) -> _Bad:
    errors = error.errors(include_url=False)
    if missing := [one["loc"][-1] for one in errors if one["type"] == "missing" and isinstance(one["loc"][-1], str)]:
        return _Bad("raw_incomplete", f"The result file lacks {', '.join(map(str, missing))}; was --save-detailed given?")
    first = errors[0]
    place, huge = ".".join(map(str, first["loc"])), type(first["input"]) is int and first["type"].startswith("float")
    if first["type"] == "finite_number" or huge:
        return _Bad("non_finite", f"{place} holds a number that is not finite")
    return _Bad("raw_types", f"{place} holds {first['input']!r:.40}: {first['msg']}")


def _result(data: dict[str, Any]) -> RawResult:
    file = _File.model_validate(data)
    lengths = {key: len(getattr(file, key)) for key in _LISTS if key in file.model_fields_set}
    if len(set(lengths.values())) > 1:
        text = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise _Bad("raw_lengths", f"The per-request lists have other lengths: {text}")
    latencies = file.latencies or [ttft + math.fsum(itls) for ttft, itls in zip(file.ttfts, file.itls, strict=True)]
    waits: Sequence[float | None] = file.queue_times or [None] * len(latencies)
    columns = (file.input_lens, file.output_lens, file.ttfts, file.itls, latencies, file.start_times, file.errors, waits)
    # In the order of Request's fields, of which the first follows from two others.
    requests = tuple(Request(not row[6] and row[2] != 0.0, *row) for row in zip(*columns, strict=True))
    return RawResult(**file.results(), requests=requests, clients=_clients(file.clients, requests))


def _clients(entries: list[_Entry], requests: tuple[Request, ...]) -> tuple[Client, ...]:
    found, begin = [], 0
    for entry in entries:
        end = begin + entry.listed
        found.append(Client(**entry.results(), requests=requests[begin:end], cpu=tuple(entry.cpu)))
        begin = end
    if found and begin != len(requests):
        raise _Bad("raw_lengths", f"The client processes list {begin} requests, the file {len(requests)}")
    return tuple(found)
