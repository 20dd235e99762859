"""Each fault has its reason and verdict; an INVALID point has no results."""

from dataclasses import replace

import pytest

from builders.loads import UnevenPrompts
from builders.paths import FIXTURES
from builders.requests import EACH_S, FINE, codes, point, raw_of, request, thresholds
from servemark.measurement.raw import RawError, read_raw
from servemark.measurement.statistics import span_of
from servemark.measurement.verdict import ServerFacts, judge, judged, not_measured
from servemark.records import Failure, Measurement

FIGURES = (
    "duration_s", "total_input_tokens", "total_output_tokens", "request_throughput", "output_throughput",
    "total_throughput", "ttft_ms", "tpot_ms", "itl_ms", "e2el_ms",
)  # fmt: skip


UNEVEN = [request(0, output_tokens=2), request(1, output_tokens=4), request(2), request(3)]
FAILED = {"ok": False, "output_tokens": 0, "ttft": 0.0, "itls": (), "latency": 0.0, "error": "Traceback\nBoom: cut\n"}


def four(**first):
    return [request(0, **first), *(request(n) for n in range(1, 4))]


def test_good_point_is_valid_with_all_results():
    judgement = judge(raw_of(four()), point(), thresholds(), FINE)
    assert (judgement.verdict, judgement.reasons, judgement.completed, judgement.failed) == ("VALID", (), 4, 0)
    assert judgement.figures.output_throughput == pytest.approx(12 / 5)
    assert judgement.figures.ttft_ms.mean == pytest.approx(200)


def test_a_real_result_is_valid():
    asked = point(requests=16, concurrency=4, input_tokens=24, output_tokens=8)
    raw = read_raw(FIXTURES / "bench-0.32.0-cpu-detailed.json")
    judgement = judge(raw, asked, thresholds(min_duration_s=0.1), FINE)
    assert (judgement.verdict, judgement.reasons) == ("VALID", ())
    assert judgement.figures.request_throughput == pytest.approx(raw.totals["request_throughput"])


def test_slow_transport_is_suspect_and_is_read_back_from_record():
    facts = replace(FINE, slow_transport="NCCL uses TCP")
    judgement = judge(raw_of(four()), point(), thresholds(), facts)
    assert (judgement.verdict, codes(judgement)) == ("SUSPECT", {"slow_transport"})
    record = Measurement(deployment="x", load=point(), key="k", key_format=1, key_parts={}, verdict="INVALID", client_exit_code=0)
    assert ServerFacts.of(judged(record, judgement)).slow_transport == "NCCL uses TCP"


def test_real_result_of_killed_server_is_invalid():
    asked = point(requests=12, concurrency=3, input_tokens=24, output_tokens=200)
    raw = read_raw(FIXTURES / "bench-0.32.0-cpu-server-killed.json")
    judgement = judge(raw, asked, thresholds(), ServerFacts(client_exit_code=0))
    assert (judgement.verdict, judgement.figures, judgement.failed) == ("INVALID", None, 4)
    assert codes(judgement, "INVALID") == {"requests_failed"}
    assert codes(judgement, "SUSPECT") == {"tokens_in_bursts"}, "recorded on a busy machine"
    assert "Connection reset by peer" in judgement.reasons[0].detail


@pytest.mark.parametrize(
    ("raw", "asked", "limits", "code"),
    [
        (raw_of(four()[:3]), {}, {}, "requests_unaccounted"),
        (raw_of([*four(), request(2)]), {}, {}, "requests_unaccounted"),
        (raw_of(four(), num_prompts=5), {}, {}, "requests_unaccounted"),
        (raw_of([]), {}, {}, "requests_unaccounted"),
        (raw_of(four(**FAILED)), {}, {}, "requests_failed"),
        (raw_of(four(**FAILED)), {}, {"max_failed_fraction": 0.2}, "requests_failed"),
        (raw_of(four(**{**FAILED, "error": " "})), {}, {}, "requests_failed"),
        (raw_of([request(n, **FAILED) for n in range(4)]), {}, {"max_failed_fraction": 1.0}, "no_output"),
        (raw_of(four(output_tokens=0)), {}, {"output_tokens_tolerance": 1.0}, "no_output"),
        (raw_of(four(output_tokens=2)), {}, {}, "output_tokens_short"),
        (raw_of(UNEVEN), {}, {}, "output_tokens_short"),
        (raw_of(UNEVEN), {}, {}, "output_tokens_long"),
        (raw_of(four(output_tokens=1)), {}, {"output_tokens_tolerance": 0.1}, "output_tokens_short"),
        (raw_of(four(output_tokens=6)), {}, {"output_tokens_tolerance": 0.1}, "output_tokens_long"),
        (raw_of(four(), completed=3), {}, {}, "client_disagrees"),
        (raw_of(four(), failed=1), {}, {}, "client_disagrees"),
        (raw_of(four(), duration=0.0), {}, {}, "clock_odd"),
        (raw_of(four(), duration=-1.0), {}, {}, "clock_odd"),
        (raw_of(four(ttft=-0.1)), {}, {}, "clock_odd"),
        (raw_of(four(ttft=0.5, latency=0.4)), {}, {}, "clock_odd"),
        (raw_of(four(itls=(-0.1, 0.1))), {}, {}, "clock_odd"),
        (raw_of(four(itls=(0.1, 0.2), latency=0.4)), {}, {}, "clock_odd"),
        (raw_of(four(start=1.0)), {}, {}, "clock_odd"),
        (raw_of(four(latency=9.0)), {}, {}, "clock_odd"),
        (RawError("The result file is empty", reason="raw_empty"), {}, {}, "raw_empty"),
        (RawError("NaN", reason="non_finite"), {}, {}, "non_finite"),
    ],
)  # fmt: skip
def test_fault_in_results_makes_point_invalid(raw, asked, limits, code):
    judgement = judge(raw, point(**asked), thresholds(**limits), FINE)
    assert judgement.verdict == "INVALID"
    assert code in codes(judgement, "INVALID")
    assert judgement.figures is None


@pytest.mark.parametrize(
    "total",
    [
        "total_input_tokens", "total_output_tokens", "request_throughput", "output_throughput",
        "total_token_throughput", "mean_ttft_ms", "mean_itl_ms",
    ],
)  # fmt: skip
def test_differing_total_of_client_makes_point_invalid(total):
    raw = raw_of(four())
    raw = replace(raw, totals={**raw.totals, total: raw.totals[total] * 1.001})
    judgement = judge(raw, point(), thresholds(), FINE)
    assert (judgement.verdict, codes(judgement)) == ("INVALID", {"client_disagrees"})
    assert total in judgement.reasons[0].detail


@pytest.mark.parametrize(
    ("longer", "found"),
    [((0, 1, 2, 3), set()), ((0, 1, 2, 4), {"output_tokens_long"}), ((0,) * 4, {"output_tokens_short"})],
)
def test_output_is_compared_with_expected_length(longer, found):
    prompts = UnevenPrompts(dataset="random", input_tokens=9999, output_tokens=3)
    requests = [request(n, output_tokens=3 + more) for n, more in enumerate(longer)]
    judgement = judge(raw_of(requests), point(prompts=prompts), thresholds(), FINE)
    assert codes(judgement) == found, "prompts of unknown length are not compared"


def test_failed_request_does_not_shift_expected_lengths():
    prompts = UnevenPrompts(dataset="random", input_tokens=10, output_tokens=3)
    requests = [request(0, **FAILED), *(request(n, output_tokens=3 + n) for n in (1, 2, 3))]
    limits = thresholds(max_failed_fraction=0.25, min_requests_per_slot=1)
    assert codes(judge(raw_of(requests), point(prompts=prompts), limits, FINE)) == {"requests_failed"}


@pytest.mark.parametrize(
    ("server", "code"),
    [
        (ServerFacts(same_process=False, client_exit_code=0), "server_changed"),
        (ServerFacts(died="exit code 1", client_exit_code=0), "server_died"),
        (ServerFacts(hung="no answer for 60 s", client_exit_code=0), "server_hung"),
        (ServerFacts(client_exit_code=1), "client_failed"),
        (ServerFacts(client_exit_code=None), "client_failed"),
        (ServerFacts(client_exit_code=None, client_timed_out=True), "client_timeout"),
    ],
)
def test_fault_of_server_or_client_makes_point_invalid(server, code):
    judgement = judge(raw_of(four()), point(), thresholds(), server)
    assert (judgement.verdict, codes(judgement), judgement.figures) == ("INVALID", {code}, None)


@pytest.mark.parametrize(
    ("raw", "asked", "limits", "code"),
    [
        (raw_of(four(**FAILED)), {}, {"max_failed_fraction": 0.25, "min_requests_per_slot": 1}, "requests_failed"),
        (raw_of(four(input_tokens=11)), {}, {}, "input_tokens_differ"),
        (raw_of(four(input_tokens=9)), {}, {}, "input_tokens_differ"),
        (raw_of(four()), {"client_options": {"random-prefix-len": 5}}, {}, "input_tokens_differ"),
        (raw_of(four()), {}, {"min_duration_s": 5.1}, "too_short"),
        (raw_of(four()), {}, {"min_requests_per_slot": 3.0}, "few_requests_per_slot"),
    ],
)  # fmt: skip
def test_weakness_makes_point_suspect_and_keeps_results(raw, asked, limits, code):
    judgement = judge(raw, point(**asked), thresholds(**limits), FINE)
    assert (judgement.verdict, codes(judgement)) == ("SUSPECT", {code})
    assert judgement.figures is not None


@pytest.mark.parametrize(
    ("raw", "asked", "limits"),
    [
        (raw_of(four(output_tokens=2)), {}, {"output_tokens_tolerance": 0.1}),
        (raw_of(four(input_tokens=11)), {}, {"input_tokens_tolerance": 0.03}),
        (raw_of(four()), {"concurrency": None, "request_rate": 0.8}, {"min_requests_per_slot": 100}),
        (raw_of(four()), {"input_tokens": 4, "client_options": {"random-prefix-len": 6}}, {}),
        (raw_of(four()), {"input_tokens": 4, "client_options": {"random-prefix-len": "6"}}, {}),
        (raw_of(four()), {"client_options": {"random-prefix-len": None}}, {}),
        (raw_of(four()), {}, {"min_duration_s": 5.0}),
        (raw_of(four(ttft=EACH_S, itls=(), output_tokens=1)), {}, {"output_tokens_tolerance": 0.2}),
    ],
)
def test_value_within_its_limit_is_valid(raw, asked, limits):
    assert judge(raw, point(**asked), thresholds(**limits), FINE).reasons == ()


def test_all_reasons_are_given_not_only_the_first():
    server = ServerFacts(same_process=False, died="killed", client_exit_code=1)
    judgement = judge(raw_of(four(**FAILED)), point(), thresholds(min_duration_s=9), server)
    assert codes(judgement) >= {"server_died", "server_changed", "client_failed", "requests_failed", "too_short"}


def bare(**changes):
    return Measurement(deployment="plain", load=point(), key="0" * 64, key_parts={"a": 1}, verdict="INVALID", **changes)


def record(judgement, **changes):
    return judged(bare(**changes), judgement)


def test_valid_record_has_recounted_results():
    judgement = judge(raw_of(four()), point(), thresholds(), FINE)
    made = record(judgement, raw="chat-c2-r1.raw.json", raw_sha256="ab", attempt="attempts/1")
    assert all(getattr(made, name) == getattr(judgement.figures, name) for name in FIGURES)
    assert (made.load.requests, made.completed, made.failed, made.key) == (4, 4, 0, "0" * 64)
    assert (made.deployment, made.load.name, made.raw, made.attempt) == (
        "plain",
        "chat-c2-r1",
        "chat-c2-r1.raw.json",
        "attempts/1",
    )


def test_verdict_replaces_all_earlier_results():
    earlier = record(judge(raw_of(four()), point(), thresholds(), FINE), raw="raw.json", attempt="attempts/1")
    lost = judged(
        earlier.model_copy(update={"client_cpu": 0.5}),
        judge(RawError("", reason="raw_empty"), point(), thresholds(), FINE),
    )
    kept = {"deployment", "load", "key", "key_format", "key_parts", "failure", "attempt", "started_at", "client_node", "client_argv",
            "client_exit_code", "replica_requests", "counters", "raw", "raw_sha256"}  # fmt: skip
    assert {name: getattr(lost, name) for name in kept} == {name: getattr(earlier, name) for name in kept}
    rest = {name: getattr(lost, name) for name in Measurement.model_fields if name not in {*kept, "verdict", "reasons", "thresholds"}}
    assert rest == dict.fromkeys(rest) | {"completed": 0, "failed": 0}


def test_invalid_record_has_counts_only():
    made = record(judge(raw_of(four(**FAILED)), point(), thresholds(), FINE))
    assert made.verdict == "INVALID"
    assert [getattr(made, name) for name in FIGURES] == [None] * len(FIGURES)
    assert (made.load.requests, made.completed, made.failed) == (4, 3, 1)


def test_a_record_survives_writing_and_reading(tmp_path):
    made = record(judge(raw_of(four()), point(), thresholds(), FINE))
    made.write(tmp_path / "m.json")
    assert type(made).read(tmp_path / "m.json") == made


def test_point_of_failed_deployment_has_its_failures_reason():
    failure = Failure(stage="await_ready", reason="server_exited", detail="The server exited with 1.")
    made = not_measured(bare(), failure)
    assert (made.verdict, made.failure, made.load.requests, made.completed) == ("INVALID", failure, 4, 0)
    assert [(r.code, r.severity) for r in made.reasons] == [("server_exited", "INVALID")]
    assert [getattr(made, name) for name in FIGURES] == [None] * len(FIGURES)


@pytest.mark.parametrize(
    ("gaps", "suspect"),
    [
        ((0.1, 0.1, 0.1, 0.1, 0.1), False),
        ((0.1, 0.1, 0.1, 0.1, 0.00009), False),
        ((0.1, 0.1, 0.1, 0.00009, 0.00009), True),
    ],
)
def test_tokens_in_bursts_make_point_suspect(gaps, suspect):
    each_s = 0.21 + sum(gaps)
    burst = [request(n, output_tokens=6, itls=gaps, ttft=0.2 + 0.001 * n, start=100 + n // 2 * each_s) for n in range(4)]
    judgement = judge(raw_of(burst, span_of(burst)), point(output_tokens=6), thresholds(max_burst_fraction=0.2), FINE)
    assert ("tokens_in_bursts" in codes(judgement, "SUSPECT")) is suspect, judgement.reasons
    assert judgement.figures is not None
