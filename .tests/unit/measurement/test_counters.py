"""The servers' own counters object to a result that does not agree with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import edited
from builders.loads import load
from builders.requests import FINE, codes, request, thresholds
from servemark.measurement import counters
from servemark.measurement.raw import RawResult
from servemark.measurement.verdict import ServerFacts, judge
from servemark.records import EngineCounters, LoadPoint, Measurement, ServerCounters

REQUESTS, SLOTS, WARMUPS, INPUT, OUTPUT = 40, 4, 8, 100, 3
VOCABULARY = 100_000


def asked(**changes) -> LoadPoint:
    sizes = {"requests": REQUESTS, "warmups": WARMUPS, "warmup_tokens": 2, "input_tokens": INPUT, "output_tokens": OUTPUT}
    return load(**{"concurrency": SLOTS, **sizes, **changes})


def result(ttft=0.2) -> RawResult:
    sent = [request(number, start=100.0, ttft=ttft, latency=0.5, input_tokens=INPUT) for number in range(REQUESTS)]
    return edited.made(edited.in_slots(sent, SLOTS))


def engine(number=0, part=1.0, warm=True, **changes) -> EngineCounters:
    """Return an engine that served this part of the load, and of the warm-ups if ``warm``."""
    values = {
        "finished": round((REQUESTS + warm * WARMUPS) * part), "generated": round((REQUESTS * OUTPUT + warm * WARMUPS * 2) * part),
        "ttft_count": round((REQUESTS + warm * WARMUPS) * part), "ttft_s": 0.19 * (REQUESTS + warm * WARMUPS) * part,
        "prefix_queries": round((REQUESTS + warm * WARMUPS) * INPUT * part), "prefix_hits": 0,
    }  # fmt: skip
    return EngineCounters(replica=f"r{number}", engine="0", **(values | changes))


def counted(*engines: EngineCounters, measured: tuple[EngineCounters, ...] | None = None, **changes) -> ServerCounters:
    after = (engine(warm=False),) if measured is None else measured
    return ServerCounters(engines=engines or (engine(),), measured=after, **{"vocabulary": VOCABULARY, **changes})


def found(seen: ServerCounters, raw: RawResult | None = None, point: LoadPoint | None = None) -> set[str]:
    facts = replace(FINE, counters=seen)
    return codes(judge(raw or result(), point or asked(), thresholds(), facts))


def test_agreeing_counters_give_no_reason():
    assert found(counted()) == set()
    assert found(counted(measured=())) == set(), "no scrape after the warm-ups"


OBJECTIONS = {
    "one request more than sent": (counted(engine(finished=REQUESTS + WARMUPS + 1)), {"foreign_requests"}),
    "a preemption": (counted(measured=(engine(warm=False, preemptions=1),)), {"preempted"}),
    "no token of the warm-ups": (counted(engine(generated=REQUESTS * OUTPUT)), {"server_tokens_differ"}),
    "fewer tokens than the client counted": (counted(engine(generated=100)), {"server_tokens_differ"}),
    "an idle replica": (
        counted(engine(), engine(1, 0.0), measured=(engine(warm=False), engine(1, 0.0))), {"engine_idle"},
    ),
    "half of the prompts' tokens in the cache": (
        counted(measured=(engine(warm=False, prefix_hits=REQUESTS * INPUT // 2),)), {"prefix_hits_unwanted"},
    ),
    "a mean TTFT above the client's": (
        counted(measured=(engine(warm=False, ttft_s=0.22 * REQUESTS),)), {"ttft_differs_from_server"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OBJECTIONS)
def test_objection_of_the_counters_makes_point_suspect(name):
    seen, expected = OBJECTIONS[name]
    judgement = judge(result(), asked(), thresholds(), replace(FINE, counters=seen))
    assert (codes(judgement), judgement.verdict) == (expected, "SUSPECT")


@pytest.mark.parametrize("factor", [0.001, 0.5, 0.9])
def test_shortened_ttft_is_compared_with_the_servers(factor):
    short = edited.made([edited.with_ttft(one, factor) for one in result().requests])
    assert "ttft_differs_from_server" in found(counted(), short)


def test_ttft_halved_in_half_of_the_requests_is_found():
    half = [edited.with_ttft(one, 0.5) if number % 2 else one for number, one in enumerate(result().requests)]
    assert "ttft_differs_from_server" in found(counted(), edited.made(half))


def test_ttft_of_warmups_is_not_compared():
    slow_warmups = engine(ttft_s=0.19 * REQUESTS + 100.0)
    assert found(counted(slow_warmups)) == set()
    few = engine(warm=False, ttft_count=REQUESTS // 2 - 1, ttft_s=100.0)
    assert found(counted(measured=(few,))) == set(), "most requests came before the first scrape after the warm-ups"


def test_ttft_is_compared_over_the_last_requests():
    """The first requests of a burst are slow, and the servers' scrape may have come after them."""
    slow = [edited.with_ttft(one, 5.0) if number < SLOTS else one for number, one in enumerate(result().requests)]
    late = engine(warm=False, ttft_count=REQUESTS - SLOTS, ttft_s=0.19 * (REQUESTS - SLOTS))
    assert "ttft_differs_from_server" not in found(counted(measured=(late,)), edited.made(edited.in_slots(slow, SLOTS)))


@pytest.mark.parametrize(
    ("vocabulary", "before", "hits", "unwanted"),
    [
        (VOCABULARY, 0, INPUT, False),
        (VOCABULARY, 0, 2 * INPUT, True),
        (1000, 0, 9 * INPUT, False),
        (1000, 0, 20 * INPUT, True),
        (1000, 1000, 40 * INPUT, False),
        (None, 0, 40 * INPUT, False),
    ],
)
def test_hits_by_chance_depend_on_vocabulary_and_earlier_prompts(vocabulary, before, hits, unwanted):
    seen = counted(measured=(engine(warm=False, prefix_hits=hits),), vocabulary=vocabulary, finished_before=before)
    assert (found(seen) == {"prefix_hits_unwanted"}) is unwanted


def test_shared_prefix_may_be_in_the_cache():
    shared = asked(input_tokens=INPUT // 4, client_options={"random-prefix-len": 3 * INPUT // 4})
    assert found(counted(measured=(engine(warm=False, prefix_hits=REQUESTS * 75),)), point=shared) == set()
    assert found(counted(measured=(engine(warm=False, prefix_hits=REQUESTS * 90),)), point=shared) == {"prefix_hits_unwanted"}


def test_chat_template_may_be_in_the_cache():
    chat = asked(api="chat", template_tokens=25)
    at = counted(measured=(engine(warm=False, prefix_hits=REQUESTS * 25),))
    above = counted(measured=(engine(warm=False, prefix_hits=REQUESTS * 90),))
    grown = edited.made([replace(one, input_tokens=INPUT + 25) for one in result().requests])
    assert (found(at, grown, chat), found(above, grown, chat)) == (set(), {"prefix_hits_unwanted"})
    unknown = chat.model_copy(update={"template_tokens": None})
    assert found(above, grown, unknown) == set(), "neither lengths nor hits can be judged"
    assert "input_tokens_differ" in found(at, result(), chat)


def test_idle_engine_needs_enough_requests_in_flight():
    pair = counted(engine(), engine(1, 0.0), measured=(engine(warm=False), engine(1, 0.0)))
    assert found(pair, point=asked(ask="replica")) == set(), "the other replica is not asked"
    single = edited.made(edited.in_slots(result().requests, 1))
    assert found(pair, single, asked(concurrency=1)) == set()


def test_idle_engine_needs_enough_counted_requests():
    late = (engine(part=0.1, warm=False), engine(1, 0.0))
    assert found(counted(engine(), engine(1, 0.0), measured=late)) == set(), "the first scrape came when nine of ten requests had finished"


def test_each_process_of_a_rate_sends_a_warmup():
    assert counters.sent_warmups(asked(warmups=2, clients=4)) == 2
    assert counters.sent_warmups(asked(warmups=2, clients=4, request_rate=1.0)) == 4
    assert counters.sent_warmups(asked(warmups=2, request_rate=1.0)) == 2


def test_hit_share_and_acceptance_follow_from_the_measured_part():
    seen = counted(measured=(engine(warm=False, prefix_hits=1000, drafts=10, draft_tokens=30, accepted_tokens=15),))
    assert (counters.hit_share(seen), counters.acceptance_length(seen)) == (0.25, 2.5)
    assert (counters.hit_share(None), counters.acceptance_length(counted())) == (None, None)


def test_record_keeps_counters_and_options_for_a_later_verdict():
    options = {"stream-interval": "20"}
    bare = Measurement(
        deployment="plain",
        load=asked(),
        key="0" * 64,
        key_parts={"deployment": {"options": options}},
        verdict="INVALID",
        counters=counted(),
    )
    facts = ServerFacts.of(bare)
    assert (facts.counters, facts.options) == (counted(), options)
