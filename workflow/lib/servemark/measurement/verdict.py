"""The verdict on one load point: VALID, SUSPECT or INVALID, with every reason.

The client exits with 0 even if no request completed, and its totals can be wrong. So servemark recounts every result from the per-request
lists, and uses the client's totals for comparison only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from servemark.measurement import clients, counters, laws, overtaken, repetitions, silence, stalls, statistics, steady, telemetry
from servemark.measurement.in_flight import InFlight
from servemark.measurement.raw import RawError, RawResult, Request
from servemark.measurement.reasons import TABLE, reason
from servemark.measurement.statistics import disagreements, recount, span_of
from servemark.measurement.thresholds import Verdict as Thresholds
from servemark.records import Failure, LoadPoint, Measurement, Reason, ServerCounters, Telemetry

Verdict = Literal["VALID", "SUSPECT", "INVALID"]

# Seconds. No model generates two tokens of one output this fast: both were ready and waited to be sent or read.
BURST_GAP_S = 1e-4


@dataclass(frozen=True)
class ServerFacts:
    """What servemark observed of server, client and job during one load point, in addition to the client's results.

    ``same_process`` is False only in older records, of a server that died. ``client_exit_code``: None if it did not exit by itself.
    ``interrupted``: what stopped all of them for a time, from Slurm's record or an earlier verdict. ``slow_transport``: why the ranks'
    transport is slower than the nodes allow, from the fabric check or an earlier verdict. ``counters``: the servers' own (None: a server
    did not respond, or an older measurement). ``options``: the servers', as the ledger key has them.
    """

    same_process: bool = True
    died: str | None = None
    hung: str | None = None
    client_exit_code: int | None = None
    client_timed_out: bool = False
    interrupted: str | None = None
    slow_transport: str | None = None
    counters: ServerCounters | None = None
    telemetry: Telemetry | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Measurement) -> ServerFacts:
        """Return the facts of an earlier measurement, from the reasons in its record."""
        details = {reason.code: reason.detail for reason in record.reasons}
        return cls(
            same_process="server_changed" not in details,
            died=details.get("server_died"),
            hung=details.get("server_hung"),
            client_exit_code=record.client_exit_code,
            client_timed_out="client_timeout" in details,
            interrupted=details.get(silence.INTERRUPTED),
            slow_transport=details.get("slow_transport"),
            counters=record.counters,
            telemetry=record.telemetry,
            options=record.key_parts.get("deployment", {}).get("options", {}),
        )


@dataclass(frozen=True)
class Judgement:
    """Verdict and reasons; ``figures`` and ``course`` are None exactly if the verdict is INVALID. The rest: see the record."""

    verdict: Verdict
    reasons: tuple[Reason, ...]
    completed: int = 0
    failed: int = 0
    figures: statistics.Figures | None = None
    course: steady.Course | None = None
    client_cpu: float | None = None
    thresholds: dict[str, float] = field(default_factory=dict)


def judge(
    raw: RawResult | RawError, load: LoadPoint, thresholds: Thresholds, server: ServerFacts, archive_format: int | None = None
) -> Judgement:
    """Return the verdict on the results of one load point.

    Args:
        raw: from ``read_raw``, or the error that it raised.
        archive_format: use only the checks of this archive format and older ones; None: all checks.
    """
    in_force = thresholds.model_dump(exclude={repetitions.LIMIT})
    reasons = list(_server_reasons(server))
    if isinstance(raw, RawError):
        return Judgement("INVALID", (*reasons, reason(raw.reason, raw.what)), thresholds=in_force)
    good = raw.good
    reasons += _request_reasons(raw, good, load, thresholds)
    figures = None
    if odd := next(filter(None, (_odd_clock(part.duration_s, part.good) for part in (raw, *raw.clients))), None):
        reasons.append(reason("clock_odd", odd))
    else:
        figures, flight = recount(raw.duration_s, good), InFlight.of(good) if good else None
        reasons += _result_reasons(raw, good, figures, load, thresholds)
        reasons += clients.reasons(raw.clients, raw.duration_s, thresholds)
        reasons += clients.rate_reasons(raw, load, thresholds)
        reasons += laws.reasons(raw, load, thresholds, server.options)
        if server.interrupted is None:
            paused = list(silence.reasons(raw, load))
            cached = counters.hit_share(server.counters)
            reasons += paused or [*stalls.reasons(good), *overtaken.reasons(good, flight.most if flight else 0, cached)]
        if any(one.code == silence.INTERRUPTED for one in reasons):
            # A pause stops the samples, too.
            reasons = [one for one in reasons if one.code != "client_cpu_unknown"]
        if server.counters is not None:
            reasons += counters.reasons(raw, load, server.counters)
        reasons += telemetry.reasons(server.telemetry, load, thresholds, flight.empty if flight else 0.0)
    if archive_format is not None:
        reasons = [one for one in reasons if TABLE[one.code].since <= archive_format]
    severities = {one.severity for one in reasons}
    verdict: Verdict = "INVALID" if "INVALID" in severities else "SUSPECT" if severities else "VALID"
    busiest = clients.busiest(raw.clients)
    return Judgement(
        verdict,
        tuple(reasons),
        completed=len(good),
        failed=len(raw.requests) - len(good),
        figures=None if verdict == "INVALID" else figures,
        course=None if verdict == "INVALID" else steady.course(raw, load),
        client_cpu=round(busiest[1], 4) if busiest else None,
        thresholds=in_force,
    )


def judged(record: Measurement, judgement: Judgement) -> Measurement:
    """Return the record with this verdict and these results in place of its own; everything else stays."""
    found = {f.name: getattr(judgement, f.name) for f in fields(judgement) if f.name not in ("figures", "course")}
    found |= {"client_cpu": None} if judgement.figures is None else {}
    for part, kind in ((judgement.figures, statistics.Figures), (judgement.course, steady.Course)):
        found |= {f.name: getattr(part, f.name, None) for f in fields(kind)}
    return record.model_copy(update=found)


def not_measured(record: Measurement, failure: Failure) -> Measurement:
    """Return the INVALID record of a load point that was not measured because an earlier stage failed."""
    why = Reason(code=failure.reason, severity="INVALID", detail=failure.detail)
    return judged(record.model_copy(update={"failure": failure}), Judgement("INVALID", (why,)))


def _server_reasons(server: ServerFacts) -> Iterator[Reason]:
    if server.died:
        yield reason("server_died", server.died)
    if server.hung:
        yield reason("server_hung", server.hung)
    if not server.same_process:
        yield reason("server_changed", "The server's process at the end is not the process at the start.")
    if server.client_timed_out:
        yield reason("client_timeout", "The benchmark client did not end in time; servemark stopped it.")
    elif server.client_exit_code != 0:
        code = server.client_exit_code
        yield reason("client_failed", "The benchmark client did not exit." if code is None else f"The benchmark client exited with {code}.")
    if server.interrupted:
        yield reason(silence.INTERRUPTED, server.interrupted)
    if server.slow_transport:
        yield reason("slow_transport", server.slow_transport)


def _request_reasons(raw: RawResult, good: list[Request], load: LoadPoint, thresholds: Thresholds) -> Iterator[Reason]:
    listed, failed = len(raw.requests), len(raw.requests) - len(good)
    if listed != raw.num_prompts or not (listed == load.requests or _ended_in_time(raw, load)):
        detail = f"{load.requests} requests were configured; the client reports {raw.num_prompts} and lists {listed}."
        yield reason("requests_unaccounted", detail)
    if len(raw.clients) != load.clients and (raw.clients or load.clients > 1):
        detail = f"{load.clients} client processes were configured; the result file contains {len(raw.clients)}."
        yield reason("clients_unaccounted", detail)
    if failed:
        fraction = failed / listed
        first = next((request.error for request in raw.requests if request.error.strip()), "no error text")
        detail = f"{failed} of {listed} requests failed ({fraction:.1%}); first error: {first.strip().splitlines()[-1]:.200}"
        yield reason("requests_failed", detail, "SUSPECT" if fraction <= thresholds.max_failed_fraction else "INVALID")
    empty = sum(request.output_tokens == 0 for request in good)
    if not good:
        yield reason("no_output", "No request completed.")
    elif empty:
        yield reason("no_output", f"{empty} of {len(good)} completed requests have no output token.")
    # Completed requests only: `requests_failed` covers the others.
    numbers = [number for number, request in enumerate(raw.requests) if request.ok]
    stated = [(load.prompts.expected_output_tokens(number), raw.requests[number].expected) for number in numbers]
    outputs = [expected for fixed, recorded in stated if (expected := recorded if fixed is None else fixed) is not None]
    if len(outputs) < len(good):
        yield reason("raw_incomplete", "The result file does not have the recorded output lengths (expected_output_lens).")
        return
    wanted, got, tolerance = sum(outputs), sum(request.output_tokens for request in good), thresholds.output_tokens_tolerance
    over = [request.output_tokens - each for request, each in zip(good, outputs, strict=True)]
    short, long = sum(tokens < 0 for tokens in over), sum(tokens > 0 for tokens in over)
    text = f"{len(good)} completed requests got {got} output tokens; expected {wanted}"
    if got < wanted * (1 - tolerance) or (tolerance == 0 and short):
        yield reason("output_tokens_short", f"{text} ({short} outputs are too short).")
    if got > wanted * (1 + tolerance) or (tolerance == 0 and long):
        yield reason("output_tokens_long", f"{text} ({long} outputs are too long).")
    prompts = [
        (request.input_tokens, own + load.prefix_tokens + load.template_tokens)
        for request, number in zip(good, numbers, strict=True)
        if load.template_tokens is not None and (own := load.prompts.expected_input_tokens(number)) is not None
    ]
    got, wanted = sum(found for found, _ in prompts), sum(expected for _, expected in prompts)
    if abs(got - wanted) > thresholds.input_tokens_tolerance * wanted:
        yield reason("input_tokens_differ", f"The prompts contain {got} tokens; expected {wanted}.")


def _ended_in_time(raw: RawResult, load: LoadPoint) -> bool:
    """Return whether fewer requests are right: each process sent requests until the configured duration was over."""
    if load.sending_s is None or not 0 < len(raw.requests) < load.requests:
        return False
    return all(process.requests and span_of(process.requests) >= load.sending_s for process in raw.clients or (raw,))


def _odd_clock(duration_s: float, good: list[Request]) -> str | None:
    """Return what is impossible in the times, or None. Starts are only compared with each other: their zero is arbitrary."""
    if not duration_s > 0:
        return f"The client's duration is {duration_s} s."
    for number, request in enumerate(good):
        if request.ttft < 0 or request.latency < 0 or min(request.itls, default=0.0) < 0:
            return f"Completed request {number} has a negative time."
        if request.ttft + math.fsum(request.itls) > request.latency + laws.CLOCK_SLACK_S:
            return f"Completed request {number}: TTFT and token gaps add up to more than its latency."
    if good and (span := span_of(good)) > duration_s + laws.CLOCK_SLACK_S:
        return f"The requests span {span:.6f} s, more than the load's duration of {duration_s:.6f} s."
    return None


def _result_reasons(
    raw: RawResult, good: list[Request], figures: statistics.Figures, load: LoadPoint, thresholds: Thresholds
) -> Iterator[Reason]:
    if differ := [*disagreements(raw, figures), *clients.own_disagreements(raw)]:
        yield reason("client_disagrees", f"The client's totals differ from its own requests: {', '.join(differ)}.")
    if figures.duration_s < thresholds.min_duration_s:
        yield reason("too_short", f"The measurement took {figures.duration_s:.2f} s; expected at least {thresholds.min_duration_s:g} s.")
    least = steady.least_per_slot(thresholds.min_requests_per_slot, good)
    if load.concurrency and len(good) / load.concurrency < least:
        detail = (
            f"{len(good)} requests at concurrency {load.concurrency} are fewer than {least:.3g} per slot. Start and end of the load "
            "distort the results of the whole run, and the steady state is short."
        )
        yield reason("few_requests_per_slot", detail)
    gaps = [gap for request in good for gap in request.itls]
    burst = sum(gap < BURST_GAP_S for gap in gaps) / len(gaps) if gaps else 0.0
    if burst > thresholds.max_burst_fraction:
        detail = (
            f"{burst:.0%} of the tokens arrived at the same time as the previous one. The server or the client was delayed (busy machine, "
            "or too many streams for one client process), so TTFT and the times between tokens include this delay."
        )
        yield reason("tokens_in_bursts", detail)
