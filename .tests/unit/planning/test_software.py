"""Environments that cannot serve: a CUDA build without a GPU, gpt-oss without its vocabulary."""

from __future__ import annotations

import json

import pytest

from builders import report_data
from builders.deployed import HARDWARE
from builders.paths import FIXTURES
from builders.planning import point
from servemark.errors import PlanRefused
from servemark.planning.software import never_streamed, require_software, uuids_unread, vocabulary_missing
from servemark.records import Gpu
from servemark.weights import builtin
from servemark.weights.architecture import Architecture

CONFIG = FIXTURES / "planning" / "gpt-oss-120b-config.json"
GPT_OSS = Architecture.from_config(json.loads(CONFIG.read_text()))
OTHER = Architecture.from_config(builtin.CONFIGS["tiny-dense"])
GPUS = HARDWARE.model_copy(update={"accelerator": "cuda", "gpus": (Gpu(name="NVIDIA H200", memory_mib=143771),)})
SET = {"TIKTOKEN_ENCODINGS_BASE": "/projects/encodings"}


def cuda(vllm: str):
    return report_data.check("gpu", vllm=vllm, torch_cuda="13.0", vllm_platform="cuda")


@pytest.mark.parametrize("vllm", ["0.31.0", "0.32.0+cpu", "0.33.1rc1", "1.0.0"])
def test_vocabulary_folder_is_refused_from_vllm_0_31(vllm):
    require_software("big", cuda(vllm), {}, GPUS)
    with pytest.raises(PlanRefused) as refused:
        require_software("big", cuda(vllm), SET, GPUS)
    assert refused.value.reason == "bad_option" and "Remove TIKTOKEN_ENCODINGS_BASE" in refused.value.do
    assert not vocabulary_missing(vllm, GPT_OSS, {})


@pytest.mark.parametrize("vllm", ["0.30.2", "0.19.1", "0.9.0", "dev"])
def test_gpt_oss_needs_the_vocabulary_up_to_vllm_0_30(vllm):
    require_software("big", cuda(vllm), SET, GPUS)
    assert vocabulary_missing(vllm, GPT_OSS, {})
    assert not vocabulary_missing(vllm, GPT_OSS, SET) and not vocabulary_missing(vllm, OTHER, {})


@pytest.mark.parametrize(
    ("architecture", "load_format", "api", "named"),
    [
        (GPT_OSS, "dummy", "chat", ["mixed"]),
        (GPT_OSS, "dummy", "completions", []),
        (GPT_OSS, "auto", "chat", []),
        (OTHER, "dummy", "chat", []),
    ],
)
def test_chats_with_random_weights_of_gpt_oss_are_never_streamed(architecture, load_format, api, named):
    load = point().model_copy(update={"workload": "mixed", "api": api})
    found = never_streamed(architecture, load_format, [load, load])
    assert [sentence.partition(":")[0] for sentence in found] == [f"workloads.{name}.api" for name in named]


@pytest.mark.parametrize(
    ("hidden", "named"),
    [({}, "`lock: cpu`"), ({"hidden_gpus": 4, "cuda_visible_devices": ""}, "CUDA_VISIBLE_DEVICES")],
)
def test_a_cuda_build_without_a_gpu_is_refused(hidden, named):
    without = report_data.check("gpu", vllm="0.32.0", torch_cuda="13.0", vllm_platform="none")
    with pytest.raises(PlanRefused) as refused:
        require_software("big", without, {}, HARDWARE.model_copy(update=hidden))
    assert refused.value.reason == "no_gpu" and named in refused.value.do
    require_software("big", report_data.check(), {}, HARDWARE)


@pytest.mark.parametrize(
    ("vllm", "named", "unread"),
    [
        ("0.19.1", "GPU-1d2e,GPU-3f4a", True),
        ("0.19.1", "0,1", False),
        ("0.19.1", None, False),
        ("0.25.1", "GPU-1d2e", False),
        ("0.32.0", "GPU-1d2e", False),
    ],
)
def test_older_vllm_may_not_read_uuids_of_gpus(vllm, named, unread):
    assert uuids_unread(vllm, GPUS.model_copy(update={"cuda_visible_devices": named})) is unread
