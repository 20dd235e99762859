"""``workload`` in the options of CUDA graphs: the number or list in its place, and the refusals."""

from __future__ import annotations

import pytest

from builders.deployed import HARDWARE
from builders.loads import load
from servemark.launch import command_lines
from servemark.planning.cuda_graphs import coarse, dense, given, needed, rounded_up, shares, sparse
from servemark.planning.cuda_graphs import resolve as resolve_capture_size
from servemark.records import Gpu, Topology

CPU = HARDWARE.model_copy(update={"accelerator": "cpu"})
H200 = HARDWARE.model_copy(update={"accelerator": "cuda", "gpus": (Gpu(name="NVIDIA H200", memory_mib=143771),)})
A100 = HARDWARE.model_copy(update={"accelerator": "cuda", "gpus": (Gpu(name="NVIDIA A100-SXM4-80GB", memory_mib=81920),)})
ASKED = {"max-num-batched-tokens": 8192, "max-cudagraph-capture-size": "workload"}
LISTED = {"max-num-batched-tokens": 8192, "cudagraph-capture-sizes": "workload"}


def points(*concurrencies, **changes):
    return tuple(load(name=f"chat-c4-r{n + 1}", concurrency=c, **changes) for n, c in enumerate(concurrencies))


def vllms_sizes(largest: int) -> list[int]:
    """As vllm/config/vllm.py lists them (_set_cudagraph_sizes, 0.25.1 and 0.32.0)."""
    sizes = [size for size in (1, 2, 4) if size <= largest]
    if largest >= 8:
        sizes += range(8, min(largest + 1, 256), 8)
    if largest >= 256:
        sizes += range(256, largest + 1, 16)
    return sizes


def test_requests_are_rounded_up_to_a_size_of_vllms_list():
    every = vllms_sizes(4096)
    for requests in range(1, 4000):
        size = rounded_up(requests)
        assert dense(requests) == tuple(vllms_sizes(requests))
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


def test_largest_load_decides_the_number():
    options, refused = resolve_capture_size(ASKED | {"max-num-seqs": 256}, Topology(), points(8, 200, 64), H200)
    assert (list(options.items()), refused) == (
        [("max-num-batched-tokens", 8192), ("max-cudagraph-capture-size", 200), ("max-num-seqs", 256)],
        (),
    )


def test_vllms_max_num_seqs_limits_the_number():
    sizes = [resolve_capture_size(ASKED, Topology(), points(512), gpu)[0]["max-cudagraph-capture-size"] for gpu in (H200, A100)]
    assert sizes == [512, 256]


def test_ask_replica_gives_one_replica_all_requests():
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
def test_numbers_stay_and_workload_is_removed_without_capture(given, hardware, resolved):
    assert resolve_capture_size(given, Topology(), points(4), hardware) == (resolved, ())


@pytest.mark.parametrize(
    ("changes", "asked", "words"),
    [
        ({}, points(None, request_rate=2.0), "chat-c4-r1 "),
        ({}, (*points(4), *points(None, None, request_rate=2.0)), "chat-c4-r1 and 1 more "),
        ({"speculative-config": "{}"}, points(4), "(speculative-config)"),
        ({"spec-tokens": 3}, points(4), "(spec-tokens)"),
        ({"compilation-config": '{"mode": 0, "cudagraph_capture_sizes": [1, 2]}'}, points(4), "compilation-config "),
        ({"compilation-config.max_cudagraph_capture_size": 8}, points(4), "compilation-config.max_cudagraph_capture_size "),
        ({"compilation-config": '{"mode": '}, points(4), "compilation-config "),
    ],
)
def test_workload_without_a_number_is_refused_with_a_remedy(changes, asked, words):
    _, (refused,) = resolve_capture_size(ASKED | changes, Topology(), asked, H200)
    assert refused.startswith("options.max-cudagraph-capture-size: workload") and words in refused
    _, (refused,) = resolve_capture_size(LISTED | changes, Topology(), asked, H200)
    assert refused.startswith("options.cudagraph-capture-sizes: workload") and words in refused


@pytest.mark.parametrize(
    "changes",
    [
        {"compilation-config": '{"cudagraph_mode": "FULL_DECODE_ONLY", "pass_config": {"fuse_allreduce_rms": false}}'},
        {"compilation-config.mode": 0},
        {"compilation-config": None},
    ],
)
def test_workload_next_to_a_compilation_config_without_sizes_is_a_number(changes):
    options, refused = resolve_capture_size(ASKED | changes, Topology(), points(100), H200)
    assert (options["max-cudagraph-capture-size"], refused) == (104, ())


def test_concurrency_next_to_a_request_rate_is_the_number():
    options, _ = resolve_capture_size(ASKED, Topology(), points(40, request_rate=2.0), H200)
    assert options["max-cudagraph-capture-size"] == 40


def test_the_sparse_list_of_one_load():
    options, refused = resolve_capture_size(LISTED | {"max-num-seqs": 512}, Topology(), points(512), H200)
    every = [1, 2, 4, 8, 16, *range(32, 513, 32)]
    assert (list(options.items()), refused) == (
        [("max-num-batched-tokens", 8192), ("cudagraph-capture-sizes", every), ("max-num-seqs", 512)],
        (),
    )


def test_the_list_goes_to_vllm_as_repeated_values():
    options, _ = resolve_capture_size(LISTED, Topology(), points(3, 50), H200)
    arguments = command_lines.option_arguments(options)
    assert arguments == [
        *("--max-num-batched-tokens", "8192"),
        *("--cudagraph-capture-sizes", "1", "2", "4", "8", "16", "32", "56"),
    ]


@pytest.mark.parametrize(
    ("topology", "concurrency", "both"),
    [
        ({}, 100, (100, 100)),
        ({"tensor_parallel": 4}, 100, (100, 100)),
        ({"replicas": 4}, 512, (128, 160)),
        ({"replicas": 2, "data_parallel": 2}, 510, (128, 160)),
        ({"replicas": 4}, 2, (1, 2)),
        ({"data_parallel": 4}, 1, (1, 1)),
    ],
)
def test_equal_share_and_most_requests_of_an_engine(topology, concurrency, both):
    assert shares(Topology(**topology), concurrency) == both


@pytest.mark.parametrize(
    ("topology", "asked", "seats", "beside"),
    [
        # Rounded up to vLLM's sizes, without those that the coarse list contains.
        ({}, points(64, 100, 200), 1024, {104, 200}),
        ({}, points(3, 6), 1024, {4, 8}),
        # The equal share, the two sizes above it and a quarter more: 100 and 125 become 104 and 128.
        ({"replicas": 4}, points(400), 1024, {104, 112, 120, 128}),
        ({"replicas": 4}, points(160, 400), 1024, {40, 48, 56, 104, 112, 120, 128}),
        ({"data_parallel": 4}, points(512), 640, {128, 136, 144, 160}),
        ({"data_parallel": 4}, points(2048), 640, {512, 528, 544, 640}),
        ({"data_parallel": 2}, points(40), 1024, {24, 32}),
        # A point with `ask: replica` sends all requests to one replica.
        ({"replicas": 4}, (*points(160), *points(72, ask="replica")), 1024, {40, 48, 56, 72}),
        # vLLM captures no full graph for more requests than an engine runs.
        ({}, points(512), 100, {100}),
        ({"replicas": 4}, points(2048, 64), 300, {16, 24, 300}),
    ],
)
def test_each_point_has_a_size_and_none_is_larger(topology, asked, seats, beside):
    sizes = sparse(Topology(**topology), asked, seats)
    assert set(sizes) == beside | set(coarse(max(beside))) and sizes == sorted(set(sizes))
    assert max(sizes) == max(beside) <= seats


@pytest.mark.parametrize(("largest", "few", "own"), [(1, 1, 1), (32, 6, 7), (256, 13, 35), (512, 21, 51), (2048, 37, 147)])
def test_coarse_sizes_are_few_and_in_vllms_list(largest, few, own):
    assert len(coarse(largest)) == few and len(dense(largest)) == own
    assert set(coarse(largest)) <= set(dense(largest))


def test_padding_is_below_32_requests_or_an_eighth():
    sizes = coarse(4096)
    for step in range(1, 4097):
        padding = next(size for size in sizes if size >= step) - step
        assert padding < 32 or (step > 512 and padding < step / 8)


@pytest.mark.parametrize("seats", [100, 512, 1024])
def test_list_for_many_points_is_not_longer_than_vllms(seats):
    every = sparse(Topology(), points(*range(1, 1025)), seats)
    assert len(every) == len(dense(rounded_up(seats)))


def test_vllms_max_num_seqs_limits_the_list():
    ends = [resolve_capture_size(LISTED, Topology(), points(512), gpu)[0]["cudagraph-capture-sizes"][-1] for gpu in (H200, A100)]
    assert ends == [512, 256]


@pytest.mark.parametrize(
    ("given", "hardware", "resolved"),
    [
        ({"cudagraph-capture-sizes": [3, 1, 700]}, H200, {"cudagraph-capture-sizes": [3, 1, 700]}),
        ({"cudagraph-capture-sizes": 7}, H200, {"cudagraph-capture-sizes": 7}),
        (LISTED, CPU, {"max-num-batched-tokens": 8192}),
        (LISTED | ASKED, CPU, {"max-num-batched-tokens": 8192}),
        (LISTED | {"enforce-eager": True}, H200, {"max-num-batched-tokens": 8192, "enforce-eager": True}),
    ],
)
def test_lists_stay_and_workload_is_removed_without_capture(given, hardware, resolved):
    assert resolve_capture_size(given, Topology(), points(4), hardware) == (resolved, ())


@pytest.mark.parametrize(
    ("largest", "listed"),
    [(256, [1, 512]), ("512", ["1", "256", "9000"])],
)
def test_largest_size_that_contradicts_a_list_is_refused(largest, listed):
    options = {"max-num-batched-tokens": 8192, "max-cudagraph-capture-size": largest, "cudagraph-capture-sizes": listed}
    _, (refused,) = resolve_capture_size(options, Topology(), points(512), H200)
    assert f"options.max-cudagraph-capture-size: {largest}" in refused and f"cudagraph-capture-sizes: {listed}" in refused
    assert resolve_capture_size(options, Topology(), points(512), CPU) == (options, ()), "vLLM looks at neither"


@pytest.mark.parametrize(
    "options",
    [
        {"max-cudagraph-capture-size": 512, "cudagraph-capture-sizes": [512, 1]},
        # vLLM drops sizes that no step can have before it compares the two.
        {"max-num-batched-tokens": 600, "max-cudagraph-capture-size": 512, "cudagraph-capture-sizes": [512, 1024]},
        {"max-cudagraph-capture-size": None, "cudagraph-capture-sizes": [1, 2]},
    ],
)
def test_largest_size_and_list_that_agree_stay(options):
    assert resolve_capture_size(options, Topology(), points(4), H200) == (options, ())


def test_null_overrides_a_number_from_an_anchor():
    options, refused = resolve_capture_size(
        {"max-cudagraph-capture-size": None, "cudagraph-capture-sizes": "workload"}, Topology(), points(4), H200
    )
    assert (options, refused) == ({"max-cudagraph-capture-size": None, "cudagraph-capture-sizes": [1, 2, 4]}, ())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, ("max-cudagraph-capture-size", ())),
        ({"max-cudagraph-capture-size": "9"}, ("max-cudagraph-capture-size", (1, 2, 4, 8))),
        ({"cudagraph-capture-sizes": [8, 3, 8]}, ("cudagraph-capture-sizes", (3, 8))),
    ],
)
def test_sizes_that_vllm_captures_for_given_options(options, told):
    assert given(options) == told
