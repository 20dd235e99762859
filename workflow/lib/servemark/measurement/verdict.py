"""The verdict on one load point: VALID, SUSPECT or INVALID, with every reason.

The client's exit code says nothing (0 with not one request completed), nor do its totals: every figure is recounted
from the per-request lists, and the client's own totals are only compared with ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

from servemark.measurement import clients, rate, silence, statistics
from servemark.measurement.facts import ServerFacts
from servemark.measurement.raw import ROWS as RAW_ROWS
from servemark.measurement.raw import RawError, RawResult, Request
from servemark.measurement.reason_row import rows
from servemark.measurement.statistics import disagreements, recount, span_of
from servemark.measurement.thresholds import Verdict as Thresholds
from servemark.records import Failure, LoadPoint, Measurement, Reason

Verdict = Literal["VALID", "SUSPECT", "INVALID"]

# No model makes two tokens of one answer within this time (seconds): they were ready and waited to be sent or read.
BURST_GAP_S = 1e-4
# perf_counter resolves nanoseconds; this only forgives the rounding of sums.
CLOCK_SLACK_S = 1e-6


ROWS = {
    **rows("INVALID",
        client_disagrees=("The client's totals differ from its own requests.",
            "Compare the result file with the client's log; another vLLM may write another format."),
        client_failed=("The benchmark client exited with an error.", "Read the client's log of this point."),
        client_timeout=("The benchmark client did not end in time.",
            "Allow the point more time, or ask for fewer requests or a lower load."),
        clients_unaccounted=("The result file holds another number of client processes than configured.", "Run again."),
        clock_odd=("The recorded times contradict each other.",
            "Look for a clock or virtualisation problem on the client's node, then run again."),
        no_output=("Completed requests have no output token.", "Send one request by hand and read the server's log."),
        output_tokens_long=("Requests got more output tokens than configured.",
            "Check that the client's options do not ask for other lengths."),
        output_tokens_short=("Requests got fewer output tokens than configured.",
            "Check `ignore-eos` and that input and output fit in `max-model-len`."),
        requests_unaccounted=("The client sent another number of requests than configured.", "Read the client's log."),
        server_changed=("The server was restarted during the point.", "Read its log, then run again."),
        server_died=("The server ended during the point.", "Read the server's log; after fixing the cause run again."),
        server_hung=("The server stopped responding during the point.", "Read the server's log; lower the load if it ran out of memory."),
    ),
    **rows("INVALID", "SUSPECT",
        requests_failed=("Requests failed. SUSPECT if `verdict.max_failed_fraction` allows that many.",
            "Read the errors in the raw result file and the server's log."),
    ),
    **rows("SUSPECT",
        few_requests_per_slot=("Each slot of the concurrency served few requests, so ramp-up and tail weigh much.",
            "Raise `requests`, so that each slot of the concurrency serves several."),
        input_tokens_differ=("The prompts have another number of tokens than configured.",
            "Check that client and server use the same tokenizer."),
        tokens_in_bursts=("Many tokens arrived with no time after the one before, so latencies between tokens describe a delay elsewhere.",
            "Free the machine of other work, or have more `clients` share the load."),
        too_short=("The load took less time than `verdict.min_duration_s`.", "Raise `requests`, so that the point takes longer."),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Judgement:
    """Verdict and reasons; ``figures`` is None exactly when the verdict is INVALID. ``client_cpu``: see the record."""

    verdict: Verdict
    reasons: tuple[Reason, ...]
    completed: int
    failed: int
    figures: statistics.Figures | None
    client_cpu: float | None = None


def judge(raw: RawResult | RawError, asked: LoadPoint, thresholds: Thresholds, server: ServerFacts) -> Judgement:
    """Decide whether the results of one load point may be shown. ``raw``: from ``read_raw``, or the error it raised."""
    reasons = list(_server_reasons(server))
    if isinstance(raw, RawError):
        reasons.append(RAW_ROWS[raw.reason].found(raw.what))
        return Judgement("INVALID", tuple(reasons), completed=0, failed=0, figures=None)
    good = raw.good
    failed = len(raw.requests) - len(good)
    reasons += _request_reasons(raw, good, asked, thresholds)
    odd = next(filter(None, (_odd_clock(said.duration_s, said.good) for said in (raw, *raw.clients))), None)
    figures = None
    if odd:
        reasons.append(ROWS["clock_odd"].found(odd))
    else:
        figures = recount(raw.duration_s, good)
        reasons += _figure_reasons(raw, good, figures, asked, thresholds)
        reasons += clients.reasons(raw.clients, raw.duration_s, thresholds)
        reasons += rate.reasons(raw, asked, thresholds)
        if server.interrupted is None:
            reasons += silence.reasons(raw, asked)
    severities = {one.severity for one in reasons}
    verdict: Verdict = "INVALID" if "INVALID" in severities else "SUSPECT" if severities else "VALID"
    busiest = clients.busiest(raw.clients)
    return Judgement(
        verdict,
        tuple(reasons),
        completed=len(good),
        failed=failed,
        figures=None if verdict == "INVALID" else figures,
        client_cpu=round(busiest[1], 4) if busiest else None,
    )


def judged(record: Measurement, judgement: Judgement) -> Measurement:
    """Return the record with this verdict and these figures in place of its own; everything else stays."""
    found = {f.name: getattr(judgement, f.name) for f in fields(judgement) if f.name != "figures"}
    found |= {"client_cpu": None} if judgement.figures is None else {}
    return record.model_copy(update=found | {f.name: getattr(judgement.figures, f.name, None) for f in fields(statistics.Figures)})


def not_measured(record: Measurement, failure: Failure) -> Measurement:
    """Return the INVALID record of a load point that was never measured because an earlier stage failed."""
    why = Reason(code=failure.reason, severity="INVALID", detail=failure.detail)
    judgement = Judgement("INVALID", (why,), completed=0, failed=0, figures=None)
    return judged(record.model_copy(update={"failure": failure}), judgement)


def _server_reasons(server: ServerFacts) -> Iterator[Reason]:
    if server.died:
        yield ROWS["server_died"].found(server.died)
    if server.hung:
        yield ROWS["server_hung"].found(server.hung)
    if not server.same_process:
        yield ROWS["server_changed"].found("The server's process at the end is not the one at the start.")
    if server.client_timed_out:
        yield ROWS["client_timeout"].found("The benchmark client did not end in time and was stopped.")
    elif server.client_exit_code != 0:
        code = server.client_exit_code
        yield ROWS["client_failed"].found("The client never exited." if code is None else f"The client exited with {code}.")
    if server.interrupted:
        yield silence.ROWS[silence.INTERRUPTED].found(server.interrupted)


def _request_reasons(raw: RawResult, good: list[Request], asked: LoadPoint, thresholds: Thresholds) -> Iterator[Reason]:
    accounted, failed = len(raw.requests), len(raw.requests) - len(good)
    if {accounted, raw.num_prompts} != {asked.requests}:
        detail = f"{asked.requests} requests were asked for; the client reports {raw.num_prompts} and lists {accounted}."
        yield ROWS["requests_unaccounted"].found(detail)
    if len(raw.clients) != asked.clients and (raw.clients or asked.clients > 1):
        detail = f"{asked.clients} client processes were asked for; the result file holds {len(raw.clients)}."
        yield ROWS["clients_unaccounted"].found(detail)
    if failed:
        fraction = failed / accounted
        first = next((request.error for request in raw.requests if request.error.strip()), "no error text")
        detail = f"{failed} of {accounted} requests failed ({fraction:.1%}); first: {first.strip().splitlines()[-1]:.200}"
        allowed = fraction <= thresholds.max_failed_fraction
        yield ROWS["requests_failed"].found(detail, "SUSPECT" if allowed else "INVALID")
    silent = sum(request.output_tokens == 0 for request in good)
    if not good:
        yield ROWS["no_output"].found("Not one request completed.")
    elif silent:
        yield ROWS["no_output"].found(f"{silent} of {len(good)} completed requests have no output token.")
    # Failed requests are judged by requests_failed; here the completed ones must have been answered in full.
    numbers = [number for number, request in enumerate(raw.requests) if request.ok]
    outputs = [asked.prompts.expected_output_tokens(number) for number in numbers]
    wanted, got, tolerance = sum(outputs), sum(request.output_tokens for request in good), thresholds.output_tokens_tolerance
    over = [request.output_tokens - each for request, each in zip(good, outputs, strict=True)]
    short, long = sum(tokens < 0 for tokens in over), sum(tokens > 0 for tokens in over)
    text = f"{len(good)} completed requests gave {got} output tokens; {wanted} were asked for"
    if got < wanted * (1 - tolerance) or (tolerance == 0 and short):
        yield ROWS["output_tokens_short"].found(f"{text} ({short} requests too short).")
    if got > wanted * (1 + tolerance) or (tolerance == 0 and long):
        yield ROWS["output_tokens_long"].found(f"{text} ({long} requests too long).")
    prompts = [
        (request.input_tokens, own + asked.prefix_tokens)
        for request, number in zip(good, numbers, strict=True)
        if (own := asked.prompts.expected_input_tokens(number)) is not None
    ]
    got, wanted = sum(found for found, _ in prompts), sum(expected for _, expected in prompts)
    if abs(got - wanted) > thresholds.input_tokens_tolerance * wanted:
        yield ROWS["input_tokens_differ"].found(f"Prompts hold {got} tokens; {wanted} were asked for.")


def _odd_clock(duration_s: float, good: list[Request]) -> str | None:
    """Return what is impossible in the times, or None. Starts are compared with each other: their zero is arbitrary."""
    if not duration_s > 0:
        return f"The client's duration is {duration_s} s."
    for number, request in enumerate(good):
        if request.ttft < 0 or request.latency < 0 or min(request.itls, default=0.0) < 0:
            return f"Completed request {number} has a negative time."
        if request.ttft + math.fsum(request.itls) > request.latency + CLOCK_SLACK_S:
            return f"Completed request {number}: TTFT and token gaps add up to more than its latency."
    if good and (span := span_of(good)) > duration_s + CLOCK_SLACK_S:
        return f"The requests span {span:.6f} s, more than the load's duration of {duration_s:.6f} s."
    return None


def _figure_reasons(
    raw: RawResult, good: list[Request], figures: statistics.Figures, asked: LoadPoint, thresholds: Thresholds
) -> Iterator[Reason]:
    if differ := [*disagreements(raw, figures), *clients.own_disagreements(raw)]:
        yield ROWS["client_disagrees"].found(f"The client's totals differ from its own requests: {', '.join(differ)}.")
    if figures.duration_s < thresholds.min_duration_s:
        yield ROWS["too_short"].found(f"The load took {figures.duration_s:.2f} s; {thresholds.min_duration_s:g} s asked.")
    if asked.concurrency and len(good) / asked.concurrency < thresholds.min_requests_per_slot:
        least = f"fewer than {thresholds.min_requests_per_slot:g} per slot, so ramp-up and tail weigh much."
        yield ROWS["few_requests_per_slot"].found(f"{len(good)} requests over concurrency {asked.concurrency}: {least}")
    gaps = [gap for request in good for gap in request.itls]
    burst = sum(gap < BURST_GAP_S for gap in gaps) / len(gaps) if gaps else 0.0
    if burst > thresholds.max_burst_fraction:
        yield ROWS["tokens_in_bursts"].found(
            f"{burst:.0%} of the tokens arrived with no time after the one before: server or client was held up (a busy machine, or "
            "one client process for too many streams), so TTFT and the times between tokens describe the hold-up.",
        )
