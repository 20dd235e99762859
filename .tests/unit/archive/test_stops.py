"""Stops of a server: times in which no request received a token, from the per-request results of published archives."""

import json
from itertools import accumulate, pairwise
from statistics import median

import pytest

from builders.published import PAGE, rows
from servemark.measurement import stalls
from servemark.measurement.raw import read_raw

AT_LEAST_S = 0.25
TENSOR_PARALLEL = ("two-gpus-search-tp2", "two-gpus-tp2", "four-gpus-tp4")
ENGINES = ("two-gpus-search-engines", "two-gpus-engines", "four-gpus-engines-512")


@pytest.mark.parametrize("name", TENSOR_PARALLEL)
def test_stops_of_the_page_follow_from_the_archive(unpack, name):
    for row, stops, duration in measured(unpack(name)):
        longest = f"{max(stops):.2f} s" if stops else "-"
        total = float(row["total_tokens_per_s"])
        load = f"| {row['concurrency']} | {row['repetition']} | {len(stops)} | {longest}"
        rates = f"{total:,.0f} | {without(total, stops, duration):,.0f}"
        assert f"{load} | {sum(stops):.1f} of {duration:.1f} s | {rates} | `{name}` |" in PAGE


def test_reason_states_the_stops_of_the_page(unpack):
    folder = unpack("four-gpus-tp4")
    details = {}
    for row, found, _ in measured(folder):
        raw = read_raw(folder / f"deployments/{row['deployment']}/points/{row['point']}.requests.json")
        assert stalls.stops(raw.good) == pytest.approx(found)
        details[row["repetition"]] = [one.detail for one in stalls.reasons(raw.good)]
    assert details["2"] == []
    for repetition, words in (("1", ("server: 7, 11.6 s", "3.4 s")), ("3", ("server: 1, 4.2 s", "4.2 s"))):
        (detail,) = details[repetition]
        assert all(word in detail for word in words)


@pytest.mark.parametrize("name", ENGINES)
def test_engines_never_stop(unpack, name):
    assert [stops for _, stops, _ in measured(unpack(name)) if stops] == []


@pytest.mark.parametrize(
    ("tensor_parallel", "engines", "concurrency", "ratio"),
    [
        ("two-gpus-search-tp2", "two-gpus-search-engines", "256", "1.12"),
        ("two-gpus-tp2", "two-gpus-engines", "512", "1.01"),
        ("four-gpus-tp4", "four-gpus-engines-512", "512", "1.23"),
    ],
)
def test_ratio_without_the_stops_is_that_of_the_page(unpack, tensor_parallel, engines, concurrency, ratio):
    rate = {
        name: median(
            without(float(row["total_tokens_per_s"]), stops, duration)
            for row, stops, duration in measured(unpack(name))
            if row["concurrency"] == concurrency
        )
        for name in (tensor_parallel, engines)
    }
    assert f"{rate[engines] / rate[tensor_parallel]:.2f}" == ratio
    assert f"{ratio} times" in PAGE


def measured(folder):
    """Return row, stops in seconds and duration in seconds of each measurement of an unpacked archive."""
    found = []
    for row in rows(folder):
        raw = json.loads((folder / f"deployments/{row['deployment']}/points/{row['point']}.requests.json").read_text())
        arrived = sorted(
            time
            for start, ttft, waits in zip(raw["start_times"], raw["ttfts"], raw["itls"], strict=True)
            for time in accumulate(waits, initial=start + ttft)
        )
        waits = (later - earlier for earlier, later in pairwise(arrived))
        found.append((row, [wait for wait in waits if wait > AT_LEAST_S], raw["duration"]))
    return found


def without(rate, stops, duration):
    return rate * duration / (duration - sum(stops))
