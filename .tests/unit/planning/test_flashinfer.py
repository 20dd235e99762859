"""Parts of FlashInfer without kernels are turned off in the plan."""

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


def test_complete_toolkit_turns_nothing_off():
    assert turned_off(check(), TP2, {}) == ({}, ())


@pytest.mark.parametrize("missing", OBSTACLES)
def test_each_obstacle_turns_the_sampler_off_with_a_sentence(missing):
    off, sentences = turned_off(check(**missing), Topology(), {})
    assert off == {SAMPLER: "0"}
    (sentence,) = sentences
    assert SAMPLER in sentence and obstacle(check(**missing).kernels, "13.0") in sentence


def test_flashinfers_all_reduce_is_off_for_tensor_parallel():
    assert turned_off(check(nvcc=None), TP2, {})[0] == {SAMPLER: "0", ALL_REDUCE: "0"}


@pytest.mark.parametrize("missing", OBSTACLES)
def test_precompiled_kernels_need_no_toolkit(missing):
    assert turned_off(check(precompiled=True, **missing), TP2, {}) == ({}, ())


def test_vllm_without_flashinfers_sampler_stays_unchanged():
    assert turned_off(check(nvcc=None, sampler=False), Topology(), {}) == ({}, ())
    assert turned_off(check(nvcc=None, flashinfer=None), Topology(), {}) == ({}, ())


@pytest.mark.parametrize("name", ["CUDA_HOME", "CUDA_PATH", "FLASHINFER_NVCC", "PATH"])
def test_toolkit_named_by_variables_is_not_checked(name):
    assert turned_off(check(nvcc=None), TP2, {name: "/opt/cuda"}) == ({}, ())


def test_variable_of_the_user_is_kept_with_a_warning():
    assert turned_off(check(nvcc=None), Topology(), {SAMPLER: "0"}) == ({}, ())
    off, sentences = turned_off(check(nvcc=None), Topology(), {SAMPLER: "1"})
    assert off == {} and len(sentences) == 1 and f"variables.{SAMPLER}" in sentences[0]


def test_environment_without_kernel_facts_stays_unchanged():
    assert turned_off(report_data.check("gpu", torch_cuda="13.0"), TP2, {}) == ({}, ())
