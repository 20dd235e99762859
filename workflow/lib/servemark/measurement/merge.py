"""Merge the result files of several client processes into one, before any percentile is computed."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from servemark.measurement import clients
from servemark.measurement.raw import COUNTS, MEANS, TOTALS, Client, RawResult, checked
from servemark.measurement.statistics import span_of

_TIMES = ("ttfts", "itls", "latencies", "start_times", "queue_times")
_SUMS = (*COUNTS, "request_rate", "max_concurrency")
# Statistics of distributions and of single seconds: those of the whole load follow from its requests, not from those of the parts.
_NOT_OF_PARTS = re.compile(r"(mean|median|std|p[\d.]+)_\w+_ms|max_output_tokens_per_s|max_concurrent_requests")

UNSENT = "servemark: not sent, because the duration of the load was over"
"""Error of a request that never started. The same text stands in in_model_env/bench_client.py."""

Part = tuple[Mapping[str, Any], RawResult]
Samples = Sequence[tuple[float, float]]


def merge(parts: Sequence[Part], cpu: Sequence[Samples]) -> dict[str, Any]:
    """Return one result in the format of :mod:`servemark.measurement.raw`: lists joined, counts added, throughputs and means recomputed.

    The duration of a closed loop is that of its requests, from the first start to the last end: vLLM's own duration includes the time that
    a process waited for the others. At a request rate it is vLLM's own, which includes the wait for the first arrival. Other values stay
    only if all processes have the same value.

    Requests that never started, because the duration of the load was over, are left out. So are the texts of the outputs: their lengths
    suffice, a response may repeat a private prompt, and they would be four fifths of the file.

    Args:
        parts: JSON and content of each process's result file.
        cpu: for each process, moments on the clock of its requests and CPU seconds since its start; kept within its measurement.
    """
    parts = [_timed(data, raw) for data, raw in map(_sent, parts)]
    shares = [_share(raw, samples) for (_, raw), samples in zip(parts, cpu, strict=True)]
    merged = dict(parts[0][0]) if len(parts) == 1 else _joined([data for data, _ in parts], shares)
    merged["clients"] = [_entry(data, share) for (data, _), share in zip(parts, shares, strict=True)]
    if texts := merged.pop("generated_texts", None):
        merged["output_characters"] = [len(text) for text in texts]
    return merged | {key: _rounded(merged[key]) for key in _TIMES if key in merged}


def _rounded(times: Any) -> Any:
    """Return times in seconds with the nanoseconds that the client's clock counts; further digits are noise of subtractions."""
    return [_rounded(time) for time in times] if isinstance(times, list | tuple) else round(times, 9)


def _sent(part: Part) -> Part:
    """Return the part without the requests that never started."""
    data, raw = part
    sent = [request.error != UNSENT for request in raw.requests]
    if all(sent):
        return part
    kept = {
        key: list(itertools.compress(value, sent)) if isinstance(value, list) and len(value) == len(sent) else value
        for key, value in data.items()
    }
    gone = sent.count(False)
    kept |= {"num_prompts": raw.num_prompts - gone, "failed": raw.failed - gone}
    return kept, checked(kept)


def _timed(data: Mapping[str, Any], raw: RawResult) -> Part:
    """Return the part with the duration and the throughputs of its own requests, if it has no request rate."""
    if data.get("request_rate") != "inf" or not raw.requests:
        return data, raw
    duration_s = span_of(raw.requests)
    totals = _throughputs(data, duration_s)
    timed = {**data, "duration": duration_s, **totals}
    return timed, replace(raw, duration_s=duration_s, totals=raw.totals | totals)


def _throughputs(data: Mapping[str, Any], duration_s: float) -> dict[str, float]:
    tokens_in, tokens_out = data["total_input_tokens"], data["total_output_tokens"]
    amounts = (data["completed"], tokens_out, tokens_in + tokens_out)
    # The verdict rejects a duration of 0.
    return {key: amount / duration_s if duration_s > 0 else 0.0 for key, amount in zip(TOTALS, amounts, strict=True)}


def _share(raw: RawResult, samples: Samples) -> Client:
    begin, end = clients.window(raw) or (0.0, 0.0)
    own = {name: value for name, value in vars(raw).items() if name not in ("clients", "clock")}
    return Client(**own, cpu=tuple((moment, used) for moment, used in samples if begin <= moment <= end))


def _entry(data: Mapping[str, Any], share: Client) -> dict[str, Any]:
    own = {key: data[key] for key in (*COUNTS, "duration", *TOTALS, *MEANS) if key in data}
    first = min((request.start for request in share.requests), default=0.0)
    return {**own, "listed": len(share.requests), "first_start": first, "cpu": [list(sample) for sample in share.cpu]}


def _joined(parts: Sequence[Mapping[str, Any]], shares: Sequence[Client]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for key, value in parts[0].items():
        values: list[Any] = [part.get(key) for part in parts]
        if _NOT_OF_PARTS.fullmatch(key):
            continue
        if all(isinstance(each, list) for each in values):
            merged[key] = [item for each in values for item in each]
        elif key in _SUMS and all(isinstance(each, int | float) for each in values):
            merged[key] = sum(values) if all(isinstance(each, int) for each in values) else math.fsum(values)
        elif all(each == value for each in values):
            merged[key] = value
    duration_s = clients.span_s(shares)
    merged |= {"duration": duration_s, **_throughputs(merged, duration_s)}
    gaps = [sum(len(request.itls) for request in share.good) for share in shares]
    weights = {"mean_ttft_ms": [share.completed for share in shares], "mean_itl_ms": gaps}
    for key in MEANS:
        if all(key in part for part in parts):
            weighted = math.fsum(share.totals[key] * weight for share, weight in zip(shares, weights[key], strict=True))
            merged[key] = weighted / max(1, sum(weights[key]))
    return merged
