"""Edited copies of real results are not VALID; the real results are."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from builders import edited
from builders.edited import made, moved, slowed, thinned, unstreamed
from builders.loads import load
from builders.paths import FIXTURES
from builders.requests import FINE, as_client, codes
from servemark.measurement import silence, stalls, thresholds
from servemark.measurement.raw import RawResult, Request, read_raw
from servemark.measurement.statistics import span_of
from servemark.measurement.thresholds import Verdict
from servemark.measurement.verdict import Judgement, judge
from servemark.report.gather import read
from servemark.verification.unpack import unpacked

C = 512
ASKED = load(concurrency=C, requests=2560, input_tokens=1024, output_tokens=1024)
FACTS = replace(FINE, options={"stream-interval": "20"})
Edit = Callable[[Sequence[Request]], RawResult]


@pytest.fixture(scope="module")
def real() -> RawResult:
    """TP4 on four H200, 2,560 requests at concurrency 512."""
    with unpacked(FIXTURES / "archives" / "h200x4-tp4.tar.zst") as found:
        (item,) = read(found.folder).points
        return read_raw(item.raw)


def judged(raw: RawResult, processes: int = 1) -> Judgement:
    return judge(raw, ASKED.model_copy(update={"clients": processes}), Verdict(), FACTS)


def every(step: int, change: Callable[[Request], Request]) -> Edit:
    return lambda requests: made([one if number % step else change(one) for number, one in enumerate(requests)])


def last(change: Callable[[Request], Request]) -> Edit:
    return lambda requests: made([*requests[:-1], change(requests[-1])])


def copied(share: float, late_s: float = 0.0) -> Edit:
    """Replace this share of the requests with copies of others, which start later."""

    def edit(requests: Sequence[Request]) -> RawResult:
        count = int(share * len(requests))
        return made([*requests[count:], *(moved(one, late_s) for one in requests[-count:])])

    return edit


def one_idle(requests: Sequence[Request]) -> RawResult:
    """Four client processes, one of which has a single request in flight."""
    shares = [requests[number::4] for number in range(4)]
    sent = [edited.in_slots(share, 128) for share in shares[:3]] + [edited.in_slots(shares[3], 1)]
    return made([one for row in zip(*sent, strict=True) for one in row], processes=4)


def without_cpu(requests: Sequence[Request]) -> RawResult:
    raw = made(requests)
    return replace(raw, clients=tuple(as_client(client, cpu=()) for client in raw.clients))


COMPILED = ((0.2, 6.2), (0.3, 4.8), (0.4, 2.7), (0.5, 2.0), (0.6, 2.0), (0.7, 2.0))
EDITS: dict[str, tuple[Edit, str, str]] = {
    "no output is streamed": (every(1, unstreamed), "INVALID", "not_streamed"),
    "half of the outputs are not streamed": (every(2, unstreamed), "INVALID", "not_streamed"),
    "2 % of the outputs are not streamed": (every(50, unstreamed), "SUSPECT", "not_streamed"),
    "the duration is 600 s longer": (lambda all_: made(all_, span_of(all_) + 600), "INVALID", "duration_differs"),
    "the duration is 1 s longer": (lambda all_: made(all_, span_of(all_) + 1), "INVALID", "duration_differs"),
    "the last request takes 600 s longer": (last(lambda one: slowed(one, 600)), "SUSPECT", "concurrency_not_kept"),
    "the last request takes 30 s longer": (last(lambda one: slowed(one, 30)), "SUSPECT", "concurrency_not_kept"),
    "the slots empty slowly": (
        lambda all_: made(edited.in_slots([slowed(one, 5 + n % 50) if n >= 2048 else one for n, one in enumerate(all_)], C)),
        "SUSPECT", "concurrency_not_kept",
    ),
    "all 2,560 requests are in flight": (lambda all_: made(edited.in_slots(all_, 2560)), "INVALID", "concurrency_exceeded"),
    "513 requests are in flight": (lambda all_: made(edited.in_slots(all_, 513)), "INVALID", "concurrency_exceeded"),
    "1 request is in flight": (lambda all_: made(edited.in_slots(all_, 1)), "INVALID", "concurrency_not_kept"),
    "450 requests are in flight": (lambda all_: made(edited.in_slots(all_, 450)), "SUSPECT", "concurrency_not_kept"),
    "one of four processes is nearly idle": (one_idle, "INVALID", "concurrency_not_kept"),
    "nothing is in flight for 30 min": (lambda all_: made(edited.paused(all_, 0.5, 1800)), "INVALID", "concurrency_not_kept"),
    "the last 1 % are sent after 8 min": (lambda all_: made(edited.paused(all_, 0.99, 480)), "INVALID", "concurrency_not_kept"),
    "all streams are frozen for 8 min near the end": (lambda all_: made(edited.frozen(all_, (0.97, 480))), "SUSPECT", "interrupted"),
    "all streams are frozen for 30 s": (lambda all_: made(edited.frozen(all_, (0.5, 30))), "SUSPECT", "interrupted"),
    "all streams are frozen for 10 s thrice": (
        lambda all_: made(edited.frozen(all_, (0.3, 10), (0.5, 10), (0.8, 10))), "SUSPECT", "stalled",
    ),
    "kernels are compiled for 20 s in six silences": (lambda all_: made(edited.frozen(all_, *COMPILED)), "SUSPECT", "stalled"),
    "half of the streams are frozen for 30 s": (lambda all_: made(edited.some_frozen(all_, C, 0.5, 30)), "SUSPECT", "stalled"),
    "the second half copies the first": (copied(0.5), "INVALID", "requests_repeated"),
    "the second half copies the first, later": (copied(0.5, 71.0), "INVALID", "requests_repeated"),
    "0.1 % are copies": (copied(0.0012, 0.01), "INVALID", "requests_repeated"),
    "no output has text": (every(1, lambda one: replace(one, characters=0)), "SUSPECT", "no_text"),
    "half of the outputs have no text": (every(2, lambda one: replace(one, characters=0)), "SUSPECT", "no_text"),
    "half of the outputs lack half of their chunks": (every(2, thinned), "SUSPECT", "chunks_missing"),
    "all outputs lack a third of their chunks": (every(1, lambda one: thinned(one, 3)), "SUSPECT", "chunks_missing"),
    "gaps are left out": (every(2, lambda one: replace(one, itls=one.itls[::2])), "INVALID", "latency_differs"),
    "the client is busy for half of the load": (
        lambda all_: made(all_, cores=lambda second: 0.99 if second < 71 else 0.01), "SUSPECT", "client_saturated_at_times",
    ),
    "the client's CPU time is not known": (without_cpu, "SUSPECT", "client_cpu_unknown"),
    "the client's CPU time stands still": (lambda all_: made(all_, cores=lambda _: 0.0), "SUSPECT", "client_cpu_unknown"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_edited_h200_result_is_not_valid(real, name):
    edit, verdict, code = EDITS[name]
    judgement = judged(edit(real.requests), 4 if "processes" in name else 1)
    assert judgement.verdict == verdict, codes(judgement)
    assert codes(judgement) & {code, *({"interrupted"} if code == "stalled" else ())}


@pytest.mark.parametrize("processes", [1, 4])
def test_h200_requests_in_full_slots_are_valid_is_valid(real, processes):
    shares = [edited.in_slots(real.requests[number::processes], C // processes) for number in range(processes)]
    sent = [one for row in zip(*shares, strict=True) for one in row]
    assert judged(made(sent, processes=processes), processes).reasons == ()


def test_untouched_h200_result_is_valid(real):
    assert judged(real).reasons == ()


def test_few_long_silences_are_found_without_samples(real):
    frozen = made(edited.frozen(real.requests, *COMPILED))
    assert list(silence.reasons(frozen, ASKED)) == []
    (found,) = stalls.reasons(frozen.good)
    assert found.code == "stalled" and "up to 6." in found.detail
    assert f"stops: {len(stalls.stops(frozen.good))}, " in found.detail
    assert stalls.stops(frozen.good).sum() - stalls.stops(real.good).sum() == pytest.approx(
        sum(seconds for _, seconds in COMPILED), rel=0.02
    )
    assert list(stalls.reasons(real.good)) == []


RATE = {"kept": None, "near-limit": 11, "not-kept": 4}
RATE_EDITS: dict[str, tuple[Edit, str]] = {
    "half of the outputs are not streamed": (every(2, unstreamed), "not_streamed"),
    "5 % are copies": (copied(0.05, 1.0), "requests_repeated"),
    "the last request takes 60 s longer": (last(lambda one: slowed(one, 60)), "slow_drain"),
    "no output has text": (every(1, lambda one: replace(one, characters=0, output_tokens=8)), "no_text"),
    "nothing is sent for 60 s": (lambda all_: made(edited.paused(all_, 0.5, 60)), "rate_not_kept"),
    "the duration is 60 s longer": (lambda all_: made(all_, span_of(all_) + 60), "rate_not_kept"),
    "gaps are left out": (every(2, lambda one: replace(one, itls=one.itls[1:])), "latency_differs"),
}


@pytest.mark.parametrize("name", RATE_EDITS)
def test_edited_result_of_a_rate_is_not_valid(name):
    edit, code = RATE_EDITS[name]
    requests = list(read_raw(FIXTURES / "bench-0.32.0-rate-kept.json").requests)
    asked = load(request_rate=20.0, concurrency=None, requests=60, input_tokens=64, output_tokens=8 if code == "no_text" else 4)
    assert code in codes(judge(edit(requests), asked, Verdict(), FINE))


def test_outputs_of_a_reasoning_parser_may_have_no_text():
    requests = list(read_raw(FIXTURES / "bench-0.32.0-rate-kept.json").requests)
    raw = every(1, lambda one: replace(one, characters=0, output_tokens=8))(requests)
    for api, options, silent in (
        ("chat", {"reasoning-parser": "qwen3"}, False),
        ("chat", {}, True),
        ("completions", {"reasoning-parser": "x"}, True),
    ):
        asked = load(request_rate=20.0, concurrency=None, requests=60, input_tokens=64, output_tokens=8, api=api)
        found = codes(judge(raw, asked, Verdict(), replace(FINE, options=options)))
        assert ("no_text" in found) is silent


def test_limit_of_a_rate_is_a_limit():
    raw = read_raw(FIXTURES / "bench-0.32.0-rate-near-limit.json")
    for concurrency, exceeded in ((11, False), (10, True)):
        asked = load(request_rate=20.0, concurrency=concurrency, requests=100, input_tokens=64, output_tokens=4)
        assert ("concurrency_exceeded" in codes(judge(raw, asked, Verdict(), FINE))) is exceeded


FILES: dict[str, tuple[dict, set[str]]] = {
    "cpu-detailed": ({"input_tokens": 24, "output_tokens": 8, "concurrency": 4}, set()),
    "cpu-server-killed": ({"input_tokens": 24, "output_tokens": 200, "concurrency": 3}, {"requests_failed", "tokens_in_bursts"}),
    "rate-kept": ({"input_tokens": 64, "output_tokens": 4, "concurrency": None, "request_rate": 20.0}, set()),
    "rate-near-limit": ({"input_tokens": 64, "output_tokens": 4, "concurrency": 11, "request_rate": 20.0}, {"rate_not_kept"}),
    "rate-not-kept": ({"input_tokens": 64, "output_tokens": 4, "concurrency": 4, "request_rate": 20.0}, {"rate_not_kept"}),
}


@pytest.mark.parametrize("name", FILES)
def test_real_file_keeps_its_verdict_with_all_checks(name):
    path = FIXTURES / f"bench-0.32.0-{name}.json"
    asked, found = FILES[name]
    limits = thresholds.stored({"min_duration_s": 0.1, "min_requests_per_slot": 2.0})
    judgement = judge(read_raw(path), load(**asked, requests=json.loads(path.read_text())["num_prompts"]), limits, FINE)
    assert codes(judgement) == found


def test_texts_are_counted_in_characters(tmp_path: Path):
    path = FIXTURES / "bench-0.32.0-cpu-detailed.json"
    data = json.loads(path.read_text())
    assert [one.characters for one in read_raw(path).requests] == [len(text) for text in data.pop("generated_texts")]
    (tmp_path / "bare.json").write_text(json.dumps(data))
    assert {one.characters for one in read_raw(tmp_path / "bare.json").requests} == {None}
