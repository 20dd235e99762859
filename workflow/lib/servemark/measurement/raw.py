"""The benchmark client's per-request results, read from its ``--save-detailed`` JSON and checked.

Format (vllm/benchmarks/serve.py, ``benchmark`` and ``main_async``): one JSON object with the client's totals and, in lists, an entry per
request, failed ones included. ``input_lens`` and ``output_lens`` are tokens (0 output tokens for a failed request), ``errors`` texts (empty
without an error); ``ttfts`` (0.0 without any chunk), ``itls`` (a list each) and ``start_times`` (monotonic clock) are seconds.
``generated_texts`` are the outputs; only their lengths are used. A merged file has ``output_characters``, these lengths, in their place.
vLLM 0.32 adds

* ``latencies``: seconds to the last chunk, or to the failure (vLLM's own functions: 0.0). For 0.25, ``ttft + sum(itls)`` is the same
  number.
* ``queue_times``: seconds between a request's arrival and its start, in the client. Without a request rate all requests arrive at once,
  before several processes wait for each other.

If several client processes share the load, :mod:`servemark.measurement.merge` merges their files into one with another key, ``clients``: an
entry for each process, in the order of its requests in the lists. An entry has the process's own totals (``num_prompts`` to
``mean_itl_ms``), ``listed`` (the number of its entries in the lists), ``first_start`` (start of its first request), and ``cpu``: ``[moment,
seconds]`` about once a second, on the same clock, with the CPU time used since the process started. The file also has ``clock``: one moment
on the clock of the requests and on the wall clock, ``[moment, seconds since 1970]``. With recorded output lengths of a dataset, the list
``expected_output_lens`` has the output tokens that each request's row states.

The file has no success flag. A failed request has an error text. If the server responded with a status line without a reason phrase
(``output.error = response.reason or ""``), the text is empty and the TTFT is 0.0.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from servemark.errors import ServemarkError

COUNTS = ("num_prompts", "completed", "failed", "total_input_tokens", "total_output_tokens")
TOTALS = ("request_throughput", "output_throughput", "total_token_throughput")
MEANS = ("mean_ttft_ms", "mean_itl_ms")
_LISTS = (
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "start_times",
    "errors",
    "latencies",
    "queue_times",
    "generated_texts",
    "output_characters",
    "expected_output_lens",
)

_Count = Annotated[int, Field(strict=True, ge=0)]
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class _Totals(BaseModel):
    """The totals that the client, or one of its processes, reports."""

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


class _Entry(_Totals):
    listed: _Count
    first_start: _Number
    cpu: list[tuple[_Number, _Number]]


class _File(_Totals):
    input_lens: list[_Count]
    output_lens: list[_Count]
    ttfts: list[_Number]
    itls: list[tuple[_Number, ...]]
    start_times: list[_Number]
    errors: list[str]
    latencies: list[_Number] = []
    queue_times: list[_Number] = []
    generated_texts: list[str] = []
    output_characters: list[_Count] = []
    expected_output_lens: list[_Count] = []
    clients: list[_Entry] = []
    clock: tuple[_Number, _Number] | None = None


class RawError(ServemarkError):
    """The client's result file cannot be used; ``reason`` is the code of the cause."""

    default_reason = "raw_broken"


@dataclass(frozen=True)
class Request:
    """One request; times in seconds, ``start`` on the client's monotonic clock, ``waited`` before it (None: not recorded).

    ``characters``: length of the output's text; ``expected``: output tokens that its row of a dataset states (None: not recorded).
    """

    ok: bool
    input_tokens: int
    output_tokens: int
    ttft: float
    itls: tuple[float, ...]
    latency: float
    start: float
    error: str
    waited: float | None = None
    characters: int | None = None
    expected: int | None = None


@dataclass(frozen=True)
class Results:
    """Requests and the client's own totals, which are for comparison only."""

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
    """The checked content of one result file. ``clients`` is empty, and ``clock`` None, for a file that vLLM's client wrote itself."""

    clients: tuple[Client, ...] = ()
    clock: tuple[float, float] | None = None


def read_raw(path: Path) -> RawResult:
    """Read and check one result file; raises as :func:`read_data`."""
    return read_data(path)[1]


def read_data(path: Path) -> tuple[dict[str, Any], RawResult]:
    """Return one result file's JSON and its checked content.

    Raises:
        RawError: with a reason ``raw_*`` or ``non_finite``.
    """
    try:
        data = _parse(path.read_text(encoding="utf-8"))
        return data, checked(data)
    except FileNotFoundError:
        reason, what = "raw_missing", "The client wrote no result file"
    except (OSError, UnicodeDecodeError) as error:
        reason, what = "raw_broken", f"The result file cannot be read: {error}"
    except _Bad as error:
        reason, what = error.args
    raise RawError(f"{what} ({path.name}).", look=str(path), do="Read the client's log of this point.", reason=reason)


class _Bad(Exception):
    """Why a file cannot be used: (reason, what happened)."""


def _parse(text: str) -> dict[str, Any]:
    body = text.strip()
    if not body:
        raise _Bad("raw_empty", "The result file is empty")

    def refuse(constant: str) -> None:
        raise _Bad("non_finite", f"The result file contains {constant}, which is not a finite number")

    try:
        data, end = json.JSONDecoder(parse_constant=refuse).raw_decode(body)
    except (ValueError, RecursionError) as error:
        if body.startswith("{") and not body.endswith("}"):
            raise _Bad("raw_truncated", f"The result file is truncated: {error}") from None
        raise _Bad("raw_broken", f"The result file is not JSON: {error}") from None
    if end != len(body):
        raise _Bad("raw_extra", "More text follows the first JSON document of the result file")
    if not isinstance(data, dict):
        raise _Bad("raw_broken", f"The result file contains a {type(data).__name__}, not an object")
    return data


def _fault(error: ValidationError) -> _Bad:
    errors = error.errors(include_url=False)
    if missing := [one["loc"][-1] for one in errors if one["type"] == "missing" and isinstance(one["loc"][-1], str)]:
        return _Bad("raw_incomplete", f"The result file has no {', '.join(map(str, missing))}; the client needs --save-detailed")
    first = errors[0]
    place, huge = ".".join(map(str, first["loc"])), type(first["input"]) is int and first["type"].startswith("float")
    if first["type"] == "finite_number" or huge:
        return _Bad("non_finite", f"{place} is not a finite number")
    return _Bad("raw_types", f"{place} is {first['input']!r:.40}: {first['msg']}")


def checked(data: dict[str, Any]) -> RawResult:
    """Return the checked content of a result file's JSON."""
    try:
        file = _File.model_validate(data)
    except ValidationError as error:
        raise _fault(error) from None
    lengths = {key: len(getattr(file, key)) for key in _LISTS if key in file.model_fields_set}
    if len(set(lengths.values())) > 1:
        text = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise _Bad("raw_lengths", f"The per-request lists have different lengths: {text}")
    latencies = file.latencies or [ttft + math.fsum(itls) for ttft, itls in zip(file.ttfts, file.itls, strict=True)]
    waits: Sequence[float | None] = file.queue_times or [None] * len(latencies)
    characters: Sequence[int | None] = file.output_characters or [*map(len, file.generated_texts)] or [None] * len(latencies)
    expected: Sequence[int | None] = file.expected_output_lens or [None] * len(latencies)
    own = (file.input_lens, file.output_lens, file.ttfts, file.itls, latencies, file.start_times, file.errors)
    columns = (*own, waits, characters, expected)
    # In the order of Request's fields; `ok` follows from error and TTFT.
    requests = tuple(Request(not row[6] and row[2] != 0.0, *row) for row in zip(*columns, strict=True))
    clients, begin = [], 0
    for entry in file.clients:
        end = begin + entry.listed
        clients.append(Client(**entry.results(), requests=requests[begin:end], cpu=tuple(entry.cpu)))
        begin = end
    if clients and begin != len(requests):
        raise _Bad("raw_lengths", f"The client processes list {begin} requests, the file {len(requests)}")
    return RawResult(**file.results(), requests=requests, clients=tuple(clients), clock=file.clock)
