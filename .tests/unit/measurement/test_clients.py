"""Several client processes: their merged result file, and the checks of the client itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from builders import measured
from builders.paths import FIXTURES
from builders.requests import FINE, codes, point, thresholds
from servemark.in_model_env import bench_client
from servemark.measurement import clients
from servemark.measurement.merge import merge
from servemark.measurement.raw import Client, RawError, Request, read_data, read_raw
from servemark.measurement.statistics import span_of
from servemark.measurement.verdict import judge, judged

REAL = FIXTURES / "bench-0.32.0-cpu-detailed.json"
ASKED = {"requests": 16, "concurrency": 4, "input_tokens": 24, "output_tokens": 8}
PAIR = {**ASKED, "concurrency": 8}  # four requests in flight in each process
LISTS = (
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "latencies",
    "start_times",
    "queue_times",
    "errors",
    "generated_texts",
)
EASY = thresholds(min_duration_s=0.1, max_client_cpu=1.0, min_client_overlap=0.0)


def part_of(data: dict, first: int, last: int, late_s: float = 0.0) -> dict:
    """Return the result of a process that sends only these requests of a real result."""
    part = {**data, **{key: data[key][first:last] for key in LISTS if key in data}}
    part["start_times"] = [start + late_s for start in part["start_times"]]
    ends = [start + latency for start, latency in zip(part["start_times"], part["latencies"], strict=True)]
    seconds = max(ends) - min(part["start_times"]) + 0.001
    tokens = sum(part["input_lens"]), sum(part["output_lens"])
    gaps = [gap for one in part["itls"] for gap in one]
    count = last - first
    return part | {
        "num_prompts": count, "completed": count, "max_concurrency": 4, "duration": seconds,
        "total_input_tokens": tokens[0], "total_output_tokens": tokens[1], "request_throughput": count / seconds,
        "output_throughput": tokens[1] / seconds, "total_token_throughput": sum(tokens) / seconds,
        "mean_ttft_ms": 1000 * sum(part["ttfts"]) / count, "mean_itl_ms": 1000 * sum(gaps) / len(gaps),
    }  # fmt: skip


def written(folder: Path, *datas: dict) -> list:
    found = []
    for index, data in enumerate(datas):
        (folder / f"{index}.json").write_text(json.dumps(data))
        found.append(read_data(folder / f"{index}.json"))
    return found


@pytest.fixture
def pair(tmp_path) -> list:
    """The two halves of a real result; the second half is shifted to a later time."""
    data = json.loads(REAL.read_text())
    return written(tmp_path, part_of(data, 0, 8), part_of(data, 8, 16, late_s=0.05))


def merged(tmp_path: Path, parts: list, cpu=None) -> Path:
    path = tmp_path / "merged.json"
    path.write_text(json.dumps(merge(parts, cpu or [()] * len(parts))))
    return path


def as_the_clock_counts(requests: tuple) -> tuple:
    """Return the requests with times in whole nanoseconds."""
    times = ("ttft", "latency", "start", "waited")
    return tuple(
        replace(one, itls=tuple(round(gap, 9) for gap in one.itls), **{name: round(getattr(one, name), 9) for name in times})
        for one in requests
    )


def test_merged_file_has_no_texts_and_times_in_nanoseconds(pair):
    texts = [text for data, _ in pair for text in data["generated_texts"]]
    made = merge(pair, [(), ()])
    assert "generated_texts" not in made and made["output_characters"] == [len(text) for text in texts]
    kept = json.dumps(made)
    assert not any(text in kept for text in texts if len(text) > 3)
    gaps = [gap for data, _ in pair for row in data["itls"] for gap in row]
    for before, after in zip(gaps, [gap for row in made["itls"] for gap in row], strict=True):
        assert abs(before - after) < 1e-12, "the client's clock counts nanoseconds, so no time is lost"


def test_merged_file_has_the_results_of_all_requests(tmp_path, pair):
    raw = read_raw(merged(tmp_path, pair))
    first, second = (part for _, part in pair)
    assert raw.requests == as_the_clock_counts(first.requests + second.requests)
    assert (raw.num_prompts, raw.completed, raw.failed) == (16, 16, 0)
    starts = [request.start for request in raw.requests]
    ends = [request.start + request.latency for request in raw.requests]
    assert raw.duration_s == pytest.approx(max(ends) - min(starts), abs=1e-9)
    judgement = judge(raw, point(**PAIR, clients=2), EASY, FINE)
    assert (judgement.verdict, judgement.reasons) == ("VALID", ())
    assert judgement.figures.output_throughput == pytest.approx(16 * 8 / raw.duration_s)
    ttfts = sorted(request.ttft for request in raw.requests)
    assert judgement.figures.ttft_ms.p50 == pytest.approx(500 * (ttfts[7] + ttfts[8])), "of all, not of the parts"
    data = json.loads((tmp_path / "merged.json").read_text())
    assert data["max_concurrency"] == 8 and data["model_id"] == pair[0][0]["model_id"]
    assert "median_ttft_ms" in pair[0][0] and "median_ttft_ms" not in data
    assert [entry["listed"] for entry in data["clients"]] == [8, 8]
    assert [entry["first_start"] for entry in data["clients"]] == pytest.approx([min(starts[:8]), min(starts[8:])], abs=1e-9)


TIMED = ("duration", "request_throughput", "output_throughput", "total_token_throughput")


def timed(data: dict) -> dict:
    return {key: data[key] for key in TIMED}


def test_one_process_keeps_all_values_but_duration_and_throughput(tmp_path):
    ((data, raw),) = written(tmp_path, json.loads(REAL.read_text()))
    one = merge([(data, raw)], [[(raw.requests[0].start, 3.0)]])
    other = ("clients", "output_characters", "generated_texts", "ttfts", "itls", "latencies", "start_times", "queue_times")
    assert {key: value for key, value in one.items() if key not in (*TIMED, *other)} == {
        key: value for key, value in data.items() if key not in (*TIMED, *other)
    }
    ends = [start + latency for start, latency in zip(data["start_times"], data["latencies"], strict=True)]
    seconds = max(ends) - min(data["start_times"])
    assert timed(one) == pytest.approx(
        {"duration": seconds, "request_throughput": 16 / seconds, "output_throughput": 128 / seconds,
         "total_token_throughput": (data["total_input_tokens"] + 128) / seconds}
    )  # fmt: skip
    (tmp_path / "one.json").write_text(json.dumps(one))
    again = read_raw(tmp_path / "one.json")
    assert again.requests == again.clients[0].requests == as_the_clock_counts(raw.requests)
    judgement = judge(again, point(**ASKED), EASY, FINE)
    assert (judgement.verdict, judgement.client_cpu) == ("VALID", None), "one sample is not enough"


def test_duration_of_closed_loop_excludes_wait_of_processes(tmp_path, pair):
    """vLLM's duration includes the wait before a process's first request. At a rate no process waits then, and vLLM's duration counts."""
    waited = [data | {"duration": data["duration"] + 7.0} for data, _ in pair]
    expected = timed(merge(pair, [(), ()]))
    assert timed(merge(written(tmp_path, *waited), [(), ()])) == expected
    paced = [data | {"request_rate": 2.5} for data in waited]
    assert merge(written(tmp_path, *paced), [(), ()])["duration"] == pytest.approx(expected["duration"] + 7.0, abs=0.1)


def test_requests_that_never_started_are_left_out(tmp_path):
    data = json.loads(REAL.read_text())
    for index in (14, 15):
        data["errors"][index], data["output_lens"][index] = bench_client.UNSENT, 0
        data["ttfts"][index] = data["latencies"][index] = data["start_times"][index] = 0.0
        data["itls"][index] = []
    tokens = {"completed": 14, "failed": 2, "total_output_tokens": 112, "total_input_tokens": sum(data["input_lens"][:14])}
    made = merge(written(tmp_path, data | tokens), [()])
    (tmp_path / "merged.json").write_text(json.dumps(made))
    raw = read_raw(tmp_path / "merged.json")
    assert (raw.num_prompts, raw.completed, raw.failed, len(raw.requests), len(made["output_characters"])) == (14, 14, 0, 14, 14)
    assert raw.duration_s == pytest.approx(span_of(raw.requests))


@pytest.mark.parametrize(("duration_s", "requests", "complete"), [(None, 20, False), (0.1, 20, True), (5.0, 20, False), (0.1, 10, False)])
def test_fewer_requests_are_complete_only_if_the_duration_was_over(duration_s, requests, complete):
    asked = point(**{**ASKED, "requests": requests, "sending_s": duration_s})
    judgement = judge(read_raw(REAL), asked, EASY, FINE)
    assert ("requests_unaccounted" not in codes(judgement)) == complete


def test_failed_request_counts_until_its_failure(tmp_path):
    data = json.loads(REAL.read_text())
    data["errors"][3], data["latencies"][3] = "timed out", 60.0
    ((_, raw),) = parts = written(tmp_path, data)
    made = merge(parts, [()])
    assert made["duration"] == pytest.approx(60.0, abs=0.2) and raw.requests[3].latency == 60.0


def test_rates_are_added_and_differing_values_left_out(tmp_path):
    data = json.loads(REAL.read_text())
    parts = [
        part_of(data, 0, 8) | {"request_rate": 2.5, "date": "1"},
        part_of(data, 8, 16) | {"request_rate": 2.5, "date": "2"},
    ]
    made = merge(written(tmp_path, *parts), [(), ()])
    assert made["request_rate"] == 5.0 and "date" not in made


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data["clients"][1].update(completed=7), "completed 7 (recounted 8) in client process 2"),
        (lambda data: data["clients"][0].update(mean_ttft_ms=1.0), "mean_ttft_ms 1 (recounted"),
        (lambda data: data["clients"][0].update(first_start=1.0), "first_start 1 (recounted"),
        (lambda data: data["clients"][0].update(duration=data["clients"][0]["duration"] * 3), "in client process 1"),
        (lambda data: data.update(mean_itl_ms=1.0), "mean_itl_ms 1 (recounted"),
        (lambda data: data.update({key: data[key] / 2 if key != "duration" else data[key] * 2 for key in
                                   ("duration", "request_throughput", "output_throughput", "total_token_throughput")}),
         "duration"),
    ],
)  # fmt: skip
def test_totals_are_compared_for_each_process_and_for_all(tmp_path, pair, change, words):
    path = merged(tmp_path, pair)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    judgement = judge(read_raw(path), point(**PAIR, clients=2), EASY, FINE)
    assert judgement.verdict == "INVALID" and "client_disagrees" in codes(judgement)
    assert words in judgement.reasons[0].detail


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda entries: entries[0].update(listed=9), "raw_lengths"),
        (lambda entries: entries[0].pop("cpu"), "raw_incomplete"),
        (lambda entries: entries[0].pop("num_prompts"), "raw_incomplete"),
        (lambda entries: entries[0].update(cpu=[[1.0]]), "raw_types"),
        (lambda entries: entries[0].update(cpu=[["a", 1]]), "raw_types"),
        (lambda entries: entries.append(3), "raw_types"),
    ],
)  # fmt: skip
def test_invalid_client_entry_is_refused(tmp_path, pair, change, reason):
    path = merged(tmp_path, pair)
    data = json.loads(path.read_text())
    change(data["clients"])
    path.write_text(json.dumps(data))
    with pytest.raises(RawError) as caught:
        read_raw(path)
    assert caught.value.reason == reason


@pytest.mark.parametrize(("asked", "suits"), [(1, False), (2, True), (3, False)])
def test_number_of_processes_must_match_configuration(tmp_path, pair, asked, suits):
    judgement = judge(read_raw(merged(tmp_path, pair)), point(**ASKED, clients=asked), EASY, FINE)
    assert ("clients_unaccounted" in codes(judgement, "INVALID")) is not suits


@pytest.mark.parametrize(("asked", "suits"), [(1, True), (2, False)])
def test_file_without_clients_counts_as_one_process(asked, suits):
    judgement = judge(read_raw(REAL), point(**ASKED, clients=asked), EASY, FINE)
    assert (judgement.verdict == "VALID") is suits and judgement.client_cpu is None


def client(begin: float, seconds: float, cpu=(), wait_s: float = 0.0) -> Client:
    """Return a process that was active for ``seconds`` and sent its first request after ``wait_s``."""
    first = Request(ok=True, input_tokens=10, output_tokens=3, ttft=0.2, itls=(0.1, 0.1), latency=0.4, start=0.0, error="")
    requests = (replace(first, start=begin + wait_s), replace(first, start=begin + seconds - 0.4))
    return Client(2, 2, 0, seconds, requests, {}, tuple(cpu))


def test_window_ends_with_last_request_and_lasts_the_duration():
    assert clients.window(client(100.0, 10.0)) == pytest.approx((100, 110))
    assert clients.window(client(100.0, 10.0, wait_s=3.0)) == pytest.approx((100, 110)), "waiting for the first arrival counts"
    first, last = client(100.0, 10.0).requests
    for ok in (True, False):
        some = (replace(first, ok=ok), replace(last, ok=False, latency=0.0))
        failed = replace(client(100.0, 10.0), requests=some)
        assert clients.window(failed) == pytest.approx((100, 110)), "the end of a failed request is not known"
    assert clients.window(replace(failed, requests=())) is None
    assert clients.span_s([replace(failed, requests=())]) == 10.0


def test_span_and_overlap_of_several_processes():
    three = [client(100.0, 10.0), client(101.0, 10.0), client(102.0, 7.0)]
    assert (clients.span_s(three), clients.overlap_s(three)) == pytest.approx((11.0, 7.0))
    assert clients.overlap_s([client(100.0, 5.0), client(106.0, 5.0)]) == 0.0
    assert clients.span_s([client(100.0, 10.0)]) == 10.0, "one process: its own number"


def test_cpu_cores_count_the_measurement_only():
    # One core during imports, half a core during the measurement, one core during the writing of the result.
    samples = [(t, float(t - 90)) for t in range(90, 100)] + [(100 + t, 10 + t / 2) for t in range(11)] + [(111.0, 16.0)]
    assert clients.cpu_cores(client(100.0, 10.0, samples)) == pytest.approx(0.5)
    assert clients.cpu_cores(client(100.2, 1.0, samples)) is None
    known = [client(100.0, 10.0), client(100.0, 10.0, samples)]
    assert clients.busiest(known) == (2, pytest.approx(0.5)) and clients.busiest(known[:1]) is None


@pytest.mark.parametrize(
    ("cores", "late_s", "expected"),
    [(0.84, 0.0, set()), (0.86, 0.0, {"client_saturated"}), (0.2, 0.9, set()), (0.2, 1.1, {"clients_out_of_step"})],
)
def test_busy_client_and_poor_overlap_are_suspect(cores, late_s, expected):
    def cpu(begin: float, share: float) -> list[tuple[float, float]]:
        return [(begin + t, 3 + t * share) for t in range(21)]

    two = [client(100.0, 20.0, cpu(100.0, 0.1)), client(100.0 + late_s, 20.0 - late_s, cpu(100.0 + late_s, cores))]
    duration_s = clients.span_s(two)
    found = {reason.code: reason for reason in clients.reasons(two, duration_s, thresholds(min_client_overlap=0.95))}
    assert found.keys() == expected and {reason.severity for reason in found.values()} <= {"SUSPECT"}
    if "client_saturated" in found:
        assert re.findall(r"[\d.]+%?", found["client_saturated"].detail)[:4] == ["2", "2", "86%", "85%"]
    if "clients_out_of_step" in found:
        assert re.findall(r"\d+\.\d+", found["clients_out_of_step"].detail) == ["18.90", "20.00"]
    assert list(clients.reasons(two[:1], 20.0, thresholds(min_client_overlap=1.0))) == [], "a single process always overlaps with itself"


def test_record_has_clients_target_and_cpu(tmp_path, pair):
    path = merged(tmp_path, pair)
    data = json.loads(path.read_text())
    begin = data["clients"][1]["first_start"]
    data["clients"][1]["cpu"] = [[begin, 7.0], [begin + 0.01, 7.003125]]
    path.write_text(json.dumps(data))
    bare = measured.record(**PAIR, clients=2, ask="replica")
    record = judged(bare, judge(read_raw(path), bare.load, EASY, FINE))
    assert (record.load.clients, record.load.ask, record.client_cpu) == (2, "replica", pytest.approx(0.3125, abs=1e-4))
    broken = judged(bare, judge(read_raw(path), point(**ASKED, clients=3), EASY, FINE))
    assert (broken.verdict, broken.client_cpu) == ("INVALID", None)
