"""What an environment can serve: a CUDA build needs a GPU, and the vocabulary of gpt-oss comes from where its version looks."""

from __future__ import annotations

import json

import pytest

from builders import report_data
from builders.paths import FIXTURES
from servemark.errors import PlanRefused
from servemark.planning import software
from servemark.weights import builtin
from servemark.weights.architecture import Architecture

CONFIG = FIXTURES / "planning" / "gpt-oss-120b-config.json"
SET = {"TIKTOKEN_ENCODINGS_BASE": "/projects/encodings"}


@pytest.fixture(scope="module")
def gpt_oss() -> Architecture:
    return Architecture.from_config(json.loads(CONFIG.read_text()))


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Architecture:
    directory = tmp_path_factory.mktemp("tiny")
    builtin.make("tiny-dense", directory)
    return Architecture.from_config(json.loads((directory / "config.json").read_text()))


def cuda(vllm: str):
    return report_data.check("gpu", vllm=vllm, torch_cuda="13.0", vllm_platform="cuda")


@pytest.mark.parametrize("vllm", ["0.31.0", "0.32.0+cpu", "0.33.1rc1", "1.0.0"])
def test_from_vllm_0_31_on_the_vocabularys_folder_is_refused_for_every_model(gpt_oss, other, vllm):
    for model in (gpt_oss, other):
        assert software("big", cuda(vllm), model, {}, "cuda") == ()
        with pytest.raises(PlanRefused, match=r"variables\.TIKTOKEN_ENCODINGS_BASE is set, and vLLM") as refused:
            software("big", cuda(vllm), model, SET, "cuda")
        assert refused.value.reason == "bad_option" and "Remove TIKTOKEN_ENCODINGS_BASE" in refused.value.do


@pytest.mark.parametrize("vllm", ["0.30.2", "0.19.1", "0.9.0", "dev"])
def test_up_to_vllm_0_30_gpt_oss_needs_it_and_other_models_do_not(gpt_oss, other, vllm):
    (told,) = software("big", cuda(vllm), gpt_oss, {}, "cuda")
    assert f"vLLM {vllm} fetches" in told and "o200k_base.tiktoken" in told
    assert software("big", cuda(vllm), gpt_oss, SET, "cuda") == ()
    assert software("big", cuda(vllm), other, {}, "cuda") == software("big", cuda(vllm), other, SET, "cuda") == ()


def test_a_cuda_build_without_a_gpu_serves_nothing(other):
    without = report_data.check("gpu", vllm="0.32.0", torch_cuda="13.0", vllm_platform="none")
    with pytest.raises(
        PlanRefused, match=r"environment gpu is a CUDA 13\.0 build, and the probed machine has no GPU"
    ) as refused:
        software("big", without, other, {}, "cpu")
    assert refused.value.reason == "no_gpu" and refused.value.do.startswith("Run where the GPUs are")
    with pytest.raises(PlanRefused, match=r"has no GPU for us: CUDA_VISIBLE_DEVICES is '' and hides 4") as refused:
        software("big", without, other, {}, "cpu", "CUDA_VISIBLE_DEVICES is '' and hides 4 of 4 GPU(s)")
    assert refused.value.do.startswith("To use its GPUs, change or unset CUDA_VISIBLE_DEVICES")
    assert software("big", report_data.check(), other, {}, "cpu") == ()


@pytest.mark.parametrize(
    ("vllm", "named", "told"),
    [
        ("0.19.1", "GPU-1d2e,GPU-3f4a", 1),
        ("0.19.1", "0,1", 0),
        ("0.19.1", None, 0),
        ("0.25.1", "GPU-1d2e", 0),
        ("0.32.0", "GPU-1d2e", 0),
    ],
)
def test_gpus_named_by_uuid_may_be_too_much_for_an_older_vllm(other, vllm, named, told):
    found = software("big", cuda(vllm), other, {}, "cuda", "", named)
    assert len(found) == told and all("Export their numbers instead" in text for text in found)
