"""Planned and logged all-reduces, and the switches that turn NVLink multicast off."""

from __future__ import annotations

import pytest

from builders import report_data
from builders.paths import FIXTURES
from servemark.planning.all_reduce import FUSED, all_reduce, multicast, observed
from servemark.records import Topology

LOGS = FIXTURES / "logs"
TP2 = Topology(devices_per_node=2, tensor_parallel=2, executor="mp")
NEW = ("VLLM_ALLREDUCE_USE_FLASHINFER", "VLLM_ALLREDUCE_USE_SYMM_MEM")
ALL = (FUSED, "FLASHINFER", "CUSTOM", "SYMM_MEM", "PYNCCL")


def check(variables=NEW, **changes):
    return report_data.kernel_check(variables, **changes)


def planned(options=(), variables=(), found=None, topology=TP2):
    return all_reduce(topology, found or check(), dict(options), dict(variables), "cuda")


def test_one_rank_and_cpu_have_no_all_reduce():
    assert planned(topology=Topology()) == ()
    assert all_reduce(TP2, check(), {}, {}, "cpu") == ()


def test_expected_all_reduces_on_one_node():
    assert planned() == ALL


@pytest.mark.parametrize(
    ("options", "variables", "gone"),
    [
        ({}, {"VLLM_ALLREDUCE_USE_FLASHINFER": "0"}, {"FLASHINFER"}),
        ({}, {"VLLM_ALLREDUCE_USE_SYMM_MEM": "0"}, {"SYMM_MEM"}),
        ({"disable-custom-all-reduce": True}, {}, {"CUSTOM"}),
        ({"compilation-config": {"pass_config": {"fuse_allreduce_rms": False}}}, {}, {FUSED}),
        ({"compilation-config": '{"pass_config": {"fuse_allreduce_rms": false}}'}, {}, {FUSED}),
        ({"enforce-eager": True}, {}, {FUSED}),
        ({"optimization-level": 1}, {}, {FUSED}),
    ],
)
def test_each_switch_turns_off_its_own_all_reduce(options, variables, gone):
    assert planned(options, variables) == tuple(name for name in ALL if name not in gone)


def test_flashinfer_is_not_used_without_a_toolkit():
    assert planned(found=check(nvcc=None)) == ("CUSTOM", "SYMM_MEM", "PYNCCL")


def test_older_vllm_has_fewer_all_reduces():
    assert planned(found=check(variables=("VLLM_ALLREDUCE_USE_SYMM_MEM",))) == ("CUSTOM", "SYMM_MEM", "PYNCCL")


def test_ranks_over_nodes_use_nccl():
    assert planned(topology=Topology(nodes=2, tensor_parallel=2, executor="ray")) == ("PYNCCL",)


def test_multicast_advice_names_every_switch():
    found = multicast(ALL, {})
    assert found["ways"] == ", ".join(ALL) and "CUSTOM" not in found["may"]
    for switch in (*NEW, "fuse_allreduce_rms: false", "NCCL_NVLS_ENABLE"):
        assert switch in found["switches"]


def test_no_multicast_advice_after_vllms_switches_are_set():
    fused_off = {"compilation-config": {"pass_config": {"fuse_allreduce_rms": False}}}
    assert multicast(planned(fused_off, dict.fromkeys(NEW, "0")), {}) is False
    left = multicast(planned(fused_off), {"NCCL_NVLS_ENABLE": "0"})
    assert "NCCL_NVLS_ENABLE" not in left["switches"] and FUSED not in left["may"]


def test_all_reduces_are_read_from_the_log():
    assert observed((LOGS / "vllm-0.25.1-h200x4-gpt-oss-tp4.log").read_text()) == ("CUSTOM", "PYNCCL")
    assert observed((LOGS / "vllm-0.32.0-h200x2-dp2-graphs-twice.log").read_text()) == ()
    line = "x Using ['FLASHINFER', 'PYNCCL'] all-reduce backends (in dispatch order) for group 'tp:0' out of\n"
    assert observed("'pass_config': {'fuse_allreduce_rms': True}\n" + line) == (FUSED, "FLASHINFER", "PYNCCL")
