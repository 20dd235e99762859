"""Chunks that a server owes, CPU windows of the client, thresholds and their ranges, and checks by archive format."""

from __future__ import annotations

import heapq

import pytest
from pydantic import ValidationError

from builders import edited
from builders.requests import FINE, as_client, codes, point, raw_of, request, samples, thresholds
from servemark.measurement import clients, laws
from servemark.measurement.reasons import TABLE
from servemark.measurement.thresholds import Verdict, changed, looser, parsed, stored
from servemark.measurement.verdict import judge


@pytest.mark.parametrize(
    ("tokens", "options", "chunks"),
    [
        (1, {}, 1),
        (2, {}, 2),
        (1024, {}, 1024),
        (1024, {"stream-interval": "20"}, 53),
        (21, {"stream-interval": 20}, 2),
        (22, {"stream-interval": 20}, 3),
        (101, {"speculative-config": {"num_speculative_tokens": 3}}, 26),
        (101, {"speculative-config": '{"num_speculative_tokens": 3}'}, 26),
        (101, {"speculative-config": "x", "stream-interval": "x"}, 101),
    ],
)
def test_due_chunks_follow_from_interval_and_speculation(tokens, options, chunks):
    assert laws.due_chunks(tokens, options) == chunks


@pytest.mark.parametrize(
    ("cores", "share"),
    [
        (lambda _: 0.5, 0.0),
        (lambda _: 0.9, 1.0),
        (lambda second: 0.99 if second < 50 else 0.0, 0.5),
        (lambda second: 0.99 if second < 3 else 0.1, 0.0),
    ],
)
def test_busy_share_is_that_of_busy_windows(cores, share):
    requests = [request(number, start=100.0 + 2.5 * number) for number in range(40)]
    raw = raw_of(requests, 99.998)
    client = as_client(raw, cpu=samples(100.0, 100.0, cores))
    assert clients.busy_share(client, 0.85) == pytest.approx(share, abs=0.06)


def test_few_samples_leave_cpu_time_unknown():
    raw = raw_of([request(number, start=100.0 + 2.5 * number) for number in range(40)], 99.998)
    every = samples(100.0, 100.0)
    assert clients.cpu_known(as_client(raw, cpu=every))
    assert not clients.cpu_known(as_client(raw, cpu=every[:40])) and not clients.cpu_known(as_client(raw, cpu=every[::10]))


@pytest.mark.parametrize(("ramp_up_s", "kept"), [(20.0, True), (None, False)])
def test_slots_that_ramp_up_later_need_not_be_full_before(ramp_up_s, kept):
    """Eight slots start over 20 s and serve 80 requests of 2.5 s."""
    free = [100.0 + 2.5 * slot for slot in range(8)]
    sent = [request(number, start=heapq.heapreplace(free, free[0] + 2.5)) for number in range(80)]
    asked = point(requests=80, concurrency=8, ramp_up_s=ramp_up_s)
    found = codes(judge(edited.made(sent), asked, thresholds(), FINE))
    assert ("concurrency_not_kept" not in found) is kept


LOOSEST = {
    "max_failed_fraction": 1.0, "min_requests_per_slot": 0.0, "output_tokens_tolerance": 1.0, "input_tokens_tolerance": 1.0,
    "max_burst_fraction": 1.0, "max_client_cpu": 1.0, "max_rate_deviation": 1.0, "min_client_overlap": 0.0, "min_in_flight": 0.0,
}  # fmt: skip


@pytest.mark.parametrize("name", LOOSEST)
def test_threshold_that_passes_everything_is_refused(name):
    with pytest.raises(ValidationError):
        Verdict(**{name: LOOSEST[name]})
    assert getattr(stored({name: LOOSEST[name]}), name) == LOOSEST[name], "earlier runs may have had it"


@pytest.mark.parametrize("values", [{"unknown": 1.0}, {"min_duration_s": "x"}, {"min_duration_s": -1}, {"min_duration_s": True}])
def test_stored_thresholds_must_be_numbers(values):
    with pytest.raises(ValueError):
        stored(values)


def test_thresholds_are_stated_where_they_differ():
    values = Verdict(min_requests_per_slot=2.0, max_client_cpu=0.5).model_dump()
    assert changed(values) == "min_requests_per_slot=2 max_client_cpu=0.5" and looser(values) == "min_requests_per_slot=2"
    assert parsed(changed(values)) == {"min_requests_per_slot": 2.0, "max_client_cpu": 0.5}
    assert changed(Verdict().model_dump()) == looser({}) == ""


def test_verdict_states_its_thresholds():
    limits = thresholds(min_duration_s=0.5)
    judgement = judge(raw_of([request(number) for number in range(4)]), point(), limits, FINE)
    assert judgement.thresholds == limits.model_dump(exclude={"max_repetition_spread"}) and judgement.verdict == "VALID"


def test_older_archive_is_judged_without_newer_checks():
    copies = edited.made([request(number // 2, start=100 + number // 2 * 2.5) for number in range(4)])
    for archive_format, found in ((None, {"requests_repeated"}), (3, {"requests_repeated"}), (2, set())):
        judgement = judge(copies, point(), thresholds(), FINE, archive_format)
        assert codes(judgement) == found and (judgement.figures is None) is bool(found)
    assert TABLE["requests_repeated"].since == 3 and TABLE["clock_odd"].since == 1
