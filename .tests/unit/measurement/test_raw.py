"""Reading the client's per-request results: real files and unusable ones."""

import json

import pytest

from builders.paths import FIXTURES
from servemark.measurement.raw import RawError, read_raw

GOOD = FIXTURES / "bench-0.32.0-cpu-detailed.json"
KILLED = FIXTURES / "bench-0.32.0-cpu-server-killed.json"


def written(tmp_path, text):
    path = tmp_path / "raw.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def changed(tmp_path, **changes):
    data = json.loads(GOOD.read_text())
    for key, value in changes.items():
        if value is None:
            del data[key]
        else:
            data[key] = value(data[key]) if callable(value) else value
    return written(tmp_path, json.dumps(data))


def test_a_real_result_is_read_whole():
    raw = read_raw(GOOD)
    data = json.loads(GOOD.read_text())
    assert (raw.num_prompts, raw.completed, raw.failed, len(raw.requests)) == (16, 16, 0, 16)
    assert raw.duration_s == data["duration"]
    assert all(request.ok for request in raw.requests)
    assert [request.latency for request in raw.requests] == data["latencies"]
    assert raw.totals["output_throughput"] == data["output_throughput"]


def test_result_of_vllm_0_25_gives_the_same_latencies(tmp_path):
    new, old = read_raw(GOOD), read_raw(changed(tmp_path, latencies=None, queue_times=None))
    assert [r.latency for r in old.requests] == pytest.approx([r.latency for r in new.requests], abs=1e-9)


def test_requests_cut_by_killed_server_are_failed():
    raw = read_raw(KILLED)
    assert [r.ok for r in raw.requests].count(False) == raw.failed == 4
    failed = [r for r in raw.requests if not r.ok]
    assert all(r.output_tokens == 0 and r.error for r in failed)
    assert all(r.output_tokens == 200 for r in raw.requests if r.ok)


def test_request_without_token_and_error_text_is_failed(tmp_path):
    path = changed(tmp_path, ttfts=lambda ttfts: [0.0, *ttfts[1:]])
    assert [r.ok for r in read_raw(path).requests].count(False) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "raw_empty"),
        (" \n", "raw_empty"),
        (GOOD.read_text()[:-1], "raw_truncated"),
        (GOOD.read_text()[:2000], "raw_truncated"),
        ("{", "raw_truncated"),
        ("not json", "raw_broken"),
        ("{not json}", "raw_broken"),
        ("[]", "raw_broken"),
        ("[" * 200_000, "raw_broken"),
        (b"\xff\xfe\x00", "raw_broken"),
        (GOOD.read_text() + "\n" + GOOD.read_text(), "raw_extra"),
        (GOOD.read_text() + "x", "raw_extra"),
    ],
    ids=[
        "empty", "blank", "last-byte-missing", "cut-in-a-list", "one-brace", "text", "braces", "list", "deep", "binary",
        "two-documents", "trailing-text",
    ],
)  # fmt: skip
def test_file_that_is_not_one_json_object_is_refused(tmp_path, text, reason):
    with pytest.raises(RawError) as caught:
        read_raw(written(tmp_path, text))
    assert caught.value.reason == reason
    assert "raw.json" in str(caught.value)


@pytest.mark.parametrize("length", range(1, len(GOOD.read_text()), 97))
def test_truncated_result_is_refused(tmp_path, length):
    with pytest.raises(RawError) as caught:
        read_raw(written(tmp_path, GOOD.read_text()[:length]))
    assert caught.value.reason in ("raw_truncated", "raw_broken")


def test_a_missing_file_is_refused_with_its_reason(tmp_path):
    with pytest.raises(RawError) as caught:
        read_raw(tmp_path / "none.json")
    assert caught.value.reason == "raw_missing"


def test_a_folder_in_place_of_the_file_is_refused(tmp_path):
    with pytest.raises(RawError) as caught:
        read_raw(tmp_path)
    assert caught.value.reason == "raw_broken"


@pytest.mark.parametrize(
    "key",
    [
        "num_prompts", "completed", "failed", "duration", "total_input_tokens", "total_output_tokens", "input_lens",
        "output_lens", "ttfts", "itls", "start_times", "errors", "request_throughput", "output_throughput",
    ],
)  # fmt: skip
def test_a_missing_key_is_named(tmp_path, key):
    with pytest.raises(RawError, match=key) as caught:
        read_raw(changed(tmp_path, **{key: None}))
    assert caught.value.reason == "raw_incomplete"


@pytest.mark.parametrize("key", ["input_lens", "output_lens", "ttfts", "itls", "start_times", "errors", "latencies", "queue_times"])
def test_a_list_of_another_length_is_refused(tmp_path, key):
    with pytest.raises(RawError, match=key) as caught:
        read_raw(changed(tmp_path, **{key: lambda values: values[:-1]}))
    assert caught.value.reason == "raw_lengths"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_prompts", "16"),
        ("completed", True),
        ("failed", -1),
        ("duration", "1"),
        ("duration", False),
        ("ttfts", {}),
        ("ttfts", lambda v: [None, *v[1:]]),
        ("itls", lambda v: [0.1, *v[1:]]),
        ("queue_times", lambda v: ["0.1", *v[1:]]),
        ("itls", lambda v: [["a"], *v[1:]]),
        ("errors", lambda v: [None, *v[1:]]),
        ("output_lens", lambda v: [-1, *v[1:]]),
        ("output_lens", lambda v: [8.0, *v[1:]]),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(tmp_path, key, value):
    with pytest.raises(RawError, match=key) as caught:
        read_raw(changed(tmp_path, **{key: value}))
    assert caught.value.reason == "raw_types"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ttfts", lambda v: [float("nan"), *v[1:]]),
        ("latencies", lambda v: [float("inf"), *v[1:]]),
        ("itls", lambda v: [[float("-inf")], *v[1:]]),
        ("duration", float("nan")),
        ("duration", 10**400),
        ("mean_ttft_ms", float("nan")),
    ],
)
def test_a_number_that_is_not_finite_is_refused(tmp_path, key, value):
    with pytest.raises(RawError) as caught:
        read_raw(changed(tmp_path, **{key: value}))
    assert caught.value.reason == "non_finite"


def test_a_number_too_large_for_a_float_is_refused(tmp_path):
    text = GOOD.read_text().replace('"duration": 0', '"duration": 1e999, "was": 0')
    with pytest.raises(RawError) as caught:
        read_raw(written(tmp_path, text))
    assert caught.value.reason == "non_finite"
