"""Formatting of numbers and terms."""

from __future__ import annotations

import pytest

from builders import report_data
from servemark.records import Topology
from servemark.report import formatting

THIN = "\u202f"
FIXED = "\u00a0"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\u2013"),
        (float("nan"), "\u2013"),
        (float("inf"), "\u2013"),
        (0, "0"),
        (0.01234, "0.0123"),
        (0.5, "0.500"),
        (9.999, "10.0"),
        (99.96, "100"),
        (12.34, "12.3"),
        (820.28, "820"),
        (39368.4, f"39{THIN}368"),
        (1234567, f"1{THIN}234{THIN}567"),
        (-3.456, "-3.46"),
    ],
)
def test_number_keeps_at_least_three_significant_digits(value, text):
    assert formatting.number(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "\u2013"), (float("nan"), "\u2013"), (0.04, "0.0"), (1228.26, f"1{THIN}228.3")])
def test_seconds_have_one_decimal(value, text):
    assert formatting.seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(2.0, f"2.00{FIXED}s"), (None, "\u2013"), (float("nan"), "\u2013")])
def test_quantity_has_no_break_before_unit(value, text):
    assert formatting.quantity(value, "s") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.34, "+12.3"),
        (-4, "\u22124.00"),
        (0, "0"),
        (None, "\u2013"),
        (float("nan"), "\u2013"),
        (-1200, f"\u22121{THIN}200"),
    ],
)
def test_difference_has_its_sign(value, text):
    assert formatting.signed(value) == text


@pytest.mark.parametrize(("low", "high", "text"), [(797, 823, "797\u2013823"), (797.1, 797.2, "797"), (None, None, "\u2013")])
def test_spread_of_equal_ends_is_one_number(low, high, text):
    assert formatting.spread(low, high) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (950, "950"),
        (1_080_576, f"1.08{FIXED}million"),
        (116_829_000_000, f"117{FIXED}billion"),
        (2 * 10**12, f"2.00{FIXED}trillion"),
    ],
)
def test_amount_names_large_counts(count, text):
    assert formatting.amount(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(12, f"12.0{FIXED}B"), (2048, f"2.00{FIXED}KiB"), (2_161_152, f"2.06{FIXED}MiB"), (2**31, f"2.00{FIXED}GiB")],
)
def test_size_uses_binary_units(count, text):
    assert formatting.size(count) == text


@pytest.mark.parametrize(
    ("concurrency", "rate", "text"),
    [
        (8, None, f"concurrency{FIXED}8"),
        (None, 2.5, f"2.5{FIXED}requests/s"),
        (16, 4.0, f"4{FIXED}requests/s, at most 16 at once"),
        (None, None, "all at once"),
    ],
)
def test_load_names_concurrency_rate_or_both(concurrency, rate, text):
    assert formatting.load(concurrency, rate) == text


def test_planned_and_measured_point_read_the_same():
    measured = report_data.measurement(concurrency=4, repetition=2)
    (planned,) = report_data.plan("plain", (measured,)).loads
    assert formatting.point(planned) == formatting.point(measured.load) == f"chat, concurrency{FIXED}4, repetition{FIXED}2"


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (Topology(), "1 node \u00d7 1 device, one process"),
        (
            Topology(nodes=2, devices_per_node=4, tensor_parallel=4, pipeline_parallel=2, executor="ray"),
            "2 nodes \u00d7 4 devices, TP 4, PP 2, Ray executor",
        ),
        (
            Topology(devices_per_node=4, data_parallel=2, replicas=2, executor="mp"),
            "1 node \u00d7 4 devices, DP 2, 2 replicas, multiprocessing executor",
        ),
        (
            Topology(devices_per_node=4, data_parallel=4, balancing="router", executor="mp"),
            "1 node \u00d7 4 devices, DP 4, engines balanced by the router, multiprocessing executor",
        ),
        (
            Topology(devices_per_node=2, replicas=2, routing="least_requests"),
            "1 node \u00d7 2 devices, 2 replicas, requests to the least busy, one process",
        ),
    ],
)
def test_topology_shows_only_parallel_sizes_above_one(shape, text):
    assert formatting.topology(shape).replace(FIXED, " ") == text


def test_reasons_give_the_failure_before_the_checks():
    failed = report_data.troubled().measurements
    texts = [formatting.reasons(item) for item in failed if item.verdict == "INVALID"]
    assert texts[0][0].startswith("server_exited: The server ended")
    assert texts[-1] == ["requests_failed: 15 of 32 requests failed: HTTP 500."]
    assert formatting.reasons(report_data.measurement()) == []


def test_printable_replaces_control_characters():
    assert formatting.printable("a\x1b[31mb\nc\u202ed\u2028e é") == "a?[31mb?c?d?e é"


@pytest.mark.parametrize("name", ["hf-token", "HF_TOKEN", "api_key", "api-key", "AWS_SECRET", "db_password", "token"])
def test_plain_hides_values_of_secret_names(name):
    assert formatting.plain({"x": [{name: "s3cret"}]}) == {"x": [{name: "(hidden)"}]}


@pytest.mark.parametrize("name", ["input_tokens", "max-num-batched-tokens", "tokenizer", "source"])
def test_plain_shows_values_of_similar_names(name):
    assert formatting.plain({name: "shown"}) == {name: "shown"}


def test_plain_turns_everything_into_yaml_types():
    assert formatting.plain({1: (1, 2.5, None, True, {"a": Topology})}) == {"1": [1, 2.5, None, True, {"a": str(Topology)}]}
