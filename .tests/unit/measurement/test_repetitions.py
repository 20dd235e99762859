"""Repetitions of a load that differ: which verdict they get, and where it stands."""

from __future__ import annotations

import math

import pytest

from builders.report_data import invalid, measurement
from servemark.measurement import repetitions
from servemark.measurement.reasons import TABLE
from servemark.measurement.thresholds import Verdict

LIMIT: float = Verdict.model_fields["max_repetition_spread"].default
CODE = "repetitions_differ"


def outputs(*values: float, **changes):
    return [measurement("plain", 8, number, output=value, **changes) for number, value in enumerate(values, 1)]


def codes(items):
    return [[reason.code for reason in item.reasons] for item in items]


@pytest.mark.parametrize(
    ("values", "suspect"),
    [
        ((174.0, 130.0), True),
        ((370.0, 297.0), True),
        ((100.0, 104.0), False),
        ((100.0, 115.0), False),
        ((100.0, 116.0), True),
        ((100.0, 100.0, 120.0), True),
        ((100.0, 110.0, 120.0), False),
        ((100.0,), False),
    ],
)
def test_repetitions_that_differ_make_their_load_suspect(values, suspect):
    found = repetitions.judged(outputs(*values), LIMIT)
    assert {item.verdict for item in found} == {"SUSPECT" if suspect else "VALID"}
    assert codes(found) == [[CODE] if suspect else []] * len(values)
    assert TABLE[CODE].severities == ("SUSPECT",) and TABLE[CODE].since == 3


def test_reason_states_both_numbers_and_the_limit():
    for item in repetitions.judged(outputs(174.0, 130.0), LIMIT):
        (reason,) = item.reasons
        assert all(text in reason.detail for text in ("130", "174", f"{math.log(174 / 130) / math.sqrt(2):.1%}", f"{LIMIT:.1%}"))


def test_spread_does_not_grow_with_the_number_of_repetitions():
    few, many = (repetitions.spread([100.0, 110.0] * count) for count in (2, 20))
    assert few.high / few.low == many.high / many.low and many.deviation < few.deviation
    assert repetitions.spread([100.0]) is None and repetitions.spread([0.0, 100.0]) is None


def test_only_accepted_repetitions_of_one_load_are_compared():
    others = [measurement("ray-tp2", 8, 1, output=50.0), measurement("plain", 4, 1, output=50.0), invalid("plain", repetition=3)]
    items = [*outputs(100.0, 101.0), *others]
    assert [item.verdict for item in repetitions.judged(items, LIMIT)] == [item.verdict for item in items]
    bad = repetitions.judged([*outputs(100.0, 200.0), *others], LIMIT)
    assert [item.verdict for item in bad] == ["SUSPECT", "SUSPECT", "VALID", "VALID", "INVALID"]
    assert codes(bad)[-1] == ["requests_failed"]


def test_request_rate_is_judged_by_its_latency():
    # The client decides the throughput of a request rate.
    same, slower = outputs(100.0, 100.0, request_rate=2.0), [measurement("plain", None, 1, tpot=8.0, request_rate=2.0)]
    slower += [measurement("plain", None, 2, tpot=16.0, request_rate=2.0)]
    assert {item.verdict for item in repetitions.judged(same, LIMIT)} == {"VALID"}
    assert {item.verdict for item in repetitions.judged(slower, LIMIT)} == {"SUSPECT"}


def doubted(item):
    return item.model_copy(update={"verdict": "SUSPECT", "reasons": tuple(invalid().reasons)})


def test_suspect_repetition_leaves_the_valid_ones_of_its_load_valid():
    first, second, third = outputs(50.0, 100.0, 101.0)
    items = [doubted(first), second, third]
    assert [item.verdict for item in repetitions.judged(items, LIMIT)] == ["SUSPECT", "VALID", "VALID"]
    assert codes(repetitions.judged(items, LIMIT)) == [["requests_failed", CODE], [], []]
    assert [item.thresholds[repetitions.LIMIT] for item in repetitions.judged(items, LIMIT)] == [LIMIT] * 3
    differing = [doubted(first), second, outputs(200.0)[0]]
    assert codes(repetitions.judged(differing, LIMIT)) == [["requests_failed", CODE], [CODE], [CODE]]


def test_suspect_repetitions_are_compared_with_all_of_their_load():
    first, second, third = outputs(50.0, 100.0, 200.0)
    items = [doubted(first), second, doubted(third)]
    assert codes(repetitions.judged(items, LIMIT)) == [["requests_failed", CODE], [], ["requests_failed", CODE]]


def test_archive_before_format_6_compares_suspect_repetitions_with_valid_ones():
    first, second = outputs(50.0, 100.0)
    items = [doubted(first), second]
    assert codes(repetitions.judged(items, LIMIT, 5)) == [["requests_failed", CODE], [CODE]]
    assert codes(repetitions.judged(items, LIMIT, 6)) == [["requests_failed", CODE], []]


def test_reasons_of_each_repetition_are_kept():
    first, second = outputs(100.0, 200.0)
    assert codes(repetitions.judged([doubted(first), doubted(second)], LIMIT)) == [["requests_failed", CODE]] * 2


def test_results_from_before_the_check_keep_their_verdicts():
    items = outputs(100.0, 200.0)
    assert repetitions.judged(items, None) == items


def test_limit_decides():
    assert {item.verdict for item in repetitions.judged(outputs(100.0, 200.0), 0.5)} == {"VALID"}
    assert {item.verdict for item in repetitions.judged(outputs(100.0, 100.1), 0.0)} == {"SUSPECT"}
