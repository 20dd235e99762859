"""What FlashInfer cannot build on the nodes is turned off before the server starts."""

from __future__ import annotations

import pytest

from builders import report_data
from servemark.planning.software import ALL_REDUCE, SAMPLER, obstacle, turned_off
from servemark.records import Topology

TP2 = Topology(devices_per_node=2, tensor_parallel=2, executor="mp")
OBSTACLES = [
    {"nvcc": None, "nvcc_cuda": None},
    {"ninja": None},
    {"compiler": None},
    {"nvcc_cuda": None},
    {"nvcc_cuda": "13.5"},
    {"nvcc_cuda": "12.8", "headers_cuda": "12.8"},
]


def check(**changes):
    return report_data.kernel_check((SAMPLER, ALL_REDUCE), **changes)


def test_a_whole_toolkit_turns_nothing_off():
    assert turned_off(check(), TP2, {}) == ({}, ())


@pytest.mark.parametrize("missing", OBSTACLES)
def test_each_obstacle_turns_the_sampler_off_with_a_sentence(missing):
    off, sentences = turned_off(check(**missing), Topology(), {})
    assert off == {SAMPLER: "0"}
    (sentence,) = sentences
    assert SAMPLER in sentence and obstacle(check(**missing).kernels, "13.0") in sentence


def test_tensor_parallel_ranks_lose_flashinfers_all_reduce_too():
    assert turned_off(check(nvcc=None), TP2, {})[0] == {SAMPLER: "0", ALL_REDUCE: "0"}


@pytest.mark.parametrize("missing", OBSTACLES)
def test_precompiled_kernels_need_no_toolkit(missing):
    assert turned_off(check(precompiled=True, **missing), TP2, {}) == ({}, ())


def test_a_vllm_that_uses_the_native_sampler_is_left_alone():
    assert turned_off(check(nvcc=None, sampler=False), Topology(), {}) == ({}, ())
    assert turned_off(check(nvcc=None, flashinfer=None), Topology(), {}) == ({}, ())


@pytest.mark.parametrize("name", ["CUDA_HOME", "CUDA_PATH", "FLASHINFER_NVCC", "PATH"])
def test_a_toolkit_that_the_variables_name_is_not_judged(name):
    assert turned_off(check(nvcc=None), TP2, {name: "/opt/cuda"}) == ({}, ())


def test_the_users_own_choice_stands_with_a_warning():
    assert turned_off(check(nvcc=None), Topology(), {SAMPLER: "0"}) == ({}, ())
    off, sentences = turned_off(check(nvcc=None), Topology(), {SAMPLER: "1"})
    assert off == {} and len(sentences) == 1 and f"variables.{SAMPLER}" in sentences[0]


def test_an_environment_without_kernel_facts_is_left_alone():
    assert turned_off(report_data.check("gpu", torch_cuda="13.0"), TP2, {}) == ({}, ())
