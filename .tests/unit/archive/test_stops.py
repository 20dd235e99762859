"""Stops of a server: times in which no request received a token, from the per-request results of published archives."""

import re
from itertools import pairwise
from statistics import median

import pytest

from builders.published import ARCHIVES, PAGE, rows
from servemark.measurement import stalls
from servemark.measurement.raw import read_raw

TENSOR_PARALLEL = ("two-gpus-search-tp2", "two-gpus-tp2", "four-gpus-tp4")
OTHERS = sorted(path.name.removesuffix(".tar.zst") for path in ARCHIVES.glob("*.tar.zst"))
OTHERS = [name for name in OTHERS if name not in (*TENSOR_PARALLEL, "two-gpus-engines-cut")]
SENTENCES = " ".join(PAGE.split())


def test_stops_of_the_page_follow_from_the_archives(unpack):
    (section,) = re.findall(r"## Stops of TP2 and TP4\n(.*?)\n## ", PAGE, re.DOTALL)
    shown = [line for line in section.splitlines() if line.startswith("| ") and line.endswith("` |")]
    found = []
    for name in TENSOR_PARALLEL:
        for row, stops, duration in measured(unpack(name)):
            longest = f"{max(stops):.2f} s" if stops else "-"
            load = f"| {row['concurrency']} | {row['repetition']} | {len(stops)} | {longest} | {sum(stops):.1f} of {duration:.1f} s"
            total = float(row["total_tokens_per_s"])
            found.append(f"{load} | {total:,.0f} | {without(total, stops, duration):,.0f} | `{name}` |")
    assert shown == found
    assert len(shown) == 12 and sum("| - |" not in line for line in shown) == 7


def test_stops_are_times_without_any_token(unpack):
    for row, stops, _ in measured(folder := unpack("four-gpus-tp4")):
        raw = read_raw(folder / f"deployments/{row['deployment']}/points/{row['point']}.requests.json")
        moments = []
        for request in raw.good:
            moments.append(request.start + request.ttft)
            for wait in request.itls:
                moments.append(moments[-1] + wait)
        moments.sort()
        longest = sorted((later - earlier for earlier, later in pairwise(moments)), reverse=True)
        assert longest[: len(stops)] == pytest.approx(sorted(stops, reverse=True)) and longest[len(stops)] < stalls.STOP_S


@pytest.mark.parametrize("name", OTHERS)
def test_other_servers_never_stop(unpack, name):
    assert [stops for _, stops, _ in measured(unpack(name)) if stops] == []


def test_engines_that_share_every_expert_stop_once(unpack):
    ((_, (stop,), _),) = measured(unpack("two-gpus-engines-cut"))
    assert f"stopped once, for {stop:.2f} s" in SENTENCES


@pytest.mark.parametrize(
    ("tensor_parallel", "engines", "concurrency", "without_stops", "with_stops"),
    [
        ("two-gpus-search-tp2", "two-gpus-search-engines", "256", "is {} times the median of TP2 without the stops", "are {}, 1.01"),
        ("two-gpus-tp2", "two-gpus-engines", "512", "concurrency 256, and {} times at 512.", "are 1.35, {} and"),
        ("four-gpus-tp4", "four-gpus-engines-512", "512", "On four GPUs it is {} times the median of TP4.", "1.01 and {}."),
    ],
)
def test_ratios_with_and_without_the_stops_are_those_of_the_page(unpack, tensor_parallel, engines, concurrency, without_stops, with_stops):
    rates, shorter = {}, {}
    for name in (tensor_parallel, engines):
        found = [one for one in measured(unpack(name)) if one[0]["concurrency"] == concurrency]
        rates[name] = median(float(row["total_tokens_per_s"]) for row, _, _ in found)
        shorter[name] = median(without(float(row["total_tokens_per_s"]), stops, duration) for row, stops, duration in found)
    for rate, sentence in ((shorter, without_stops), (rates, f"ratios of whole runs {with_stops}" if concurrency == "256" else with_stops)):
        assert sentence.format(f"{rate[engines] / rate[tensor_parallel]:.2f}") in SENTENCES


def test_spreads_without_the_stops_are_those_of_the_page(unpack):
    spread = {}
    for name, concurrency in (
        ("two-gpus-search-tp2", "32"),
        ("two-gpus-search-tp2", "256"),
        ("two-gpus-tp2", "512"),
        ("four-gpus-tp4", "512"),
    ):
        rates = [
            without(float(row["total_tokens_per_s"]), stops, duration)
            for row, stops, duration in measured(unpack(name))
            if row["concurrency"] == concurrency
        ]
        spread[name, concurrency] = 100 * (max(rates) / min(rates) - 1)
    two = [spread["two-gpus-search-tp2", load] for load in ("32", "256")]
    assert min(two) > 1 and max(two) < 2 and spread["two-gpus-tp2", "512"] < 0.3 and round(spread["four-gpus-tp4", "512"]) == 9
    assert "within 2 % at 32 and 256, and within 0.3 % at 512. Those of TP4 differ by 9 %." in SENTENCES


def test_reason_states_the_stops_of_the_page(unpack):
    folder = unpack("four-gpus-tp4")
    details = {}
    for row, _, _ in measured(folder):
        raw = read_raw(folder / f"deployments/{row['deployment']}/points/{row['point']}.requests.json")
        details[row["repetition"]] = [one.detail for one in stalls.reasons(raw.good)]
    assert details["2"] == []
    for repetition, words in (("1", ("11.6 of 87.", "stops: 7, the longest 3.4 s")), ("3", ("4.2 of 86.", "stops: 1, the longest 4.2 s"))):
        (detail,) = details[repetition]
        assert all(word in detail for word in words)


def measured(folder):
    """Return row, stops in seconds and duration in seconds of each measurement of an unpacked archive, by load and repetition."""
    found = []
    for row in sorted(rows(folder), key=lambda row: (int(row["concurrency"]), int(row["repetition"]))):
        (results,) = folder.glob(f"deployments/*/points/{row['point']}.requests.json")
        raw = read_raw(results)
        assert len(raw.good) == len(raw.requests)
        found.append((row, list(stalls.stops(raw.good)), raw.duration_s))
    return found


def without(rate, stops, duration):
    return rate * duration / (duration - sum(stops))
