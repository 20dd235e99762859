"""``max-cudagraph-capture-size: workload``: the number that it stands for, and when there is none."""

from __future__ import annotations

import pytest
from deployed import HARDWARE, planned_point

from servemark.planning import resolve_capture_size
from servemark.planning.capture import captured, needed
from servemark.records import Gpu, Topology

CPU = HARDWARE.model_copy(update={"accelerator": "cpu"})
H200 = HARDWARE.model_copy(update={"accelerator": "cuda", "gpus": (Gpu(name="NVIDIA H200", memory_mib=143771),)})
A100 = HARDWARE.model_copy(
    update={"accelerator": "cuda", "gpus": (Gpu(name="NVIDIA A100-SXM4-80GB", memory_mib=81920),)}
)
ASKED = {"max-num-batched-tokens": 8192, "max-cudagraph-capture-size": "workload"}


def points(*concurrencies, **changes):
    return tuple(planned_point(n + 1, {}, concurrency=c, **changes) for n, c in enumerate(concurrencies))


def vllms_sizes(largest: int) -> list[int]:
    """As vllm/config/vllm.py lists them (_set_cudagraph_sizes, 0.25.1 and 0.32.0)."""
    sizes = [size for size in (1, 2, 4) if size <= largest]
    if largest >= 8:
        sizes += range(8, min(largest + 1, 256), 8)
    if largest >= 256:
        sizes += range(256, largest + 1, 16)
    return sizes


def test_every_number_of_requests_gets_the_next_size_of_vllms_list():
    every = vllms_sizes(4096)
    for requests in range(1, 4000):
        size = captured(requests)
        assert size == next(one for one in every if one >= requests)
        assert vllms_sizes(size)[-1] == size, "vLLM would cut it down, with a warning"


@pytest.mark.parametrize(
    ("topology", "concurrency", "seats", "size"),
    [
        ({}, 1, 1024, 1),
        ({}, 3, 1024, 4),
        ({}, 100, 1024, 104),
        ({}, 512, 1024, 512),
        ({"tensor_parallel": 4}, 512, 1024, 512),
        ({"pipeline_parallel": 2}, 512, 1024, 512),
        ({}, 2048, 512, 512),
        ({"replicas": 4}, 512, 1024, 160),
        ({"replicas": 4}, 2048, 512, 512),
        ({"replicas": 2, "data_parallel": 2}, 512, 1024, 160),
        ({"data_parallel": 4}, 2, 1024, 2),
        ({"replicas": 4}, 1, 1024, 1),
    ],
)
def test_the_largest_number_of_requests_of_one_engine(topology, concurrency, seats, size):
    assert needed(Topology(**topology), concurrency, seats) == size


def test_the_number_takes_the_words_place_and_the_largest_load_decides():
    options, refused = resolve_capture_size(ASKED | {"max-num-seqs": 256}, Topology(), points(8, 200, 64), H200)
    assert (list(options.items()), refused) == (
        [("max-num-batched-tokens", 8192), ("max-cudagraph-capture-size", 200), ("max-num-seqs", 256)],
        (),
    )


def test_without_max_num_seqs_vllms_own_limits_the_number():
    sizes = [
        resolve_capture_size(ASKED, Topology(), points(512), gpu)[0]["max-cudagraph-capture-size"]
        for gpu in (H200, A100)
    ]
    assert sizes == [512, 256]


def test_a_point_that_asks_one_replica_alone_gives_it_everything():
    options, _ = resolve_capture_size(ASKED, Topology(replicas=4), (*points(256), *points(128, ask="replica")), H200)
    assert options["max-cudagraph-capture-size"] == 128


@pytest.mark.parametrize(
    ("given", "hardware", "resolved"),
    [
        ({}, H200, {}),
        ({"max-cudagraph-capture-size": 512}, H200, {"max-cudagraph-capture-size": 512}),
        (ASKED, CPU, {"max-num-batched-tokens": 8192}),
        (ASKED | {"enforce-eager": True}, H200, {"max-num-batched-tokens": 8192, "enforce-eager": True}),
    ],
)
def test_numbers_stay_and_where_nothing_is_captured_the_option_is_left_out(given, hardware, resolved):
    assert resolve_capture_size(given, Topology(), points(4), hardware) == (resolved, ())


@pytest.mark.parametrize(
    ("changes", "asked", "words"),
    [
        ({}, points(None, request_rate=2.0), "chat-c4-r1 has a request rate and no concurrency"),
        ({}, (*points(4), *points(None, None, request_rate=2.0)), "chat-c4-r1 and 1 more has a request rate"),
        ({"speculative-config": "{}"}, points(4), "speculative decoding (speculative-config)"),
        ({"spec-tokens": 3}, points(4), "speculative decoding (spec-tokens)"),
        ({"cudagraph-capture-sizes": [1, 2]}, points(4), "cudagraph-capture-sizes may name sizes too"),
        ({"compilation-config.mode": 3}, points(4), "compilation-config.mode may name sizes too"),
    ],
)
def test_what_has_no_number_is_refused_with_the_way_out(changes, asked, words):
    _, (refused,) = resolve_capture_size(ASKED | changes, Topology(), asked, H200)
    assert refused.startswith("options.max-cudagraph-capture-size: workload, but ") and words in refused
    assert refused.endswith("; give a number instead.")


def test_a_limit_beside_a_request_rate_is_the_largest_number():
    options, _ = resolve_capture_size(ASKED, Topology(), points(40, request_rate=2.0), H200)
    assert options["max-cudagraph-capture-size"] == 40
