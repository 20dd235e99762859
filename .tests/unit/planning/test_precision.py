"""Which settings decide what a server calculates."""

from __future__ import annotations

import pytest

from servemark.planning.precision import arithmetic, fewer_bits

BF16 = {"torch_dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("options", "variables", "config"),
    [
        ({"max-model-len": 4096, "enforce-eager": True}, {"OMP_NUM_THREADS": "8"}, BF16),
        ({"dtype": "auto", "kv-cache-dtype": "auto", "load-format": "auto"}, {}, BF16),
        ({"dtype": "bfloat16", "kv-cache-dtype": "bfloat16"}, {}, BF16),
        ({"dtype": "bfloat16"}, {}, {"text_config": {"dtype": "bfloat16"}}),
        ({"dtype": "half"}, {}, {"torch_dtype": "float16"}),
        ({"load-format": "runai_streamer"}, {"VLLM_HUMMING_USE_F16_ACCUM": "0"}, BF16),
        ({"quantization": "gpt_oss_mxfp4"}, {}, {**BF16, "quantization_config": {"quant_method": "mxfp4"}}),
    ],
)
def test_settings_that_change_no_number_leave_nothing(options, variables, config):
    assert arithmetic(options, variables, config) == {}


@pytest.mark.parametrize(
    ("options", "variables", "found"),
    [
        ({"dtype": "float32"}, {}, {"dtype": "float32"}),
        ({"dtype": "half"}, {}, {"dtype": "float16"}),
        ({"kv-cache-dtype": "fp8"}, {}, {"kv-cache-dtype": "fp8"}),
        ({"quantization": "fp8"}, {}, {"quantization": "fp8"}),
        ({"load-format": "servemark_random_2"}, {}, {"load-format": "servemark_random_2"}),
        ({"load-format": "bitsandbytes"}, {}, {"load-format": "bitsandbytes"}),
        ({"hf-overrides": {"rope_theta": 1}}, {}, {"hf-overrides": "{'rope_theta': 1}"}),
        ({}, {"VLLM_MARLIN_INPUT_DTYPE": "int8"}, {"VLLM_MARLIN_INPUT_DTYPE": "int8"}),
    ],
)
def test_settings_that_change_the_numbers_are_named(options, variables, found):
    assert arithmetic(options, variables, BF16) == found


def test_auto_and_the_dtype_of_a_32_bit_checkpoint_differ():
    # vLLM's choice then depends on the platform.
    assert arithmetic({"dtype": "float32"}, {}, {"torch_dtype": "float32"}) == {"dtype": "float32"}


def test_fewer_bits_leaves_out_the_checkpoints_own():
    assert fewer_bits({"quantization": "mxfp4", "kv-cache-dtype": "bfloat16", "dtype": "float16"}, {}, "mxfp4") == {}
    assert fewer_bits({"quantization": "fp8"}, {"VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8": "1"}, None) == {
        "options.quantization": "fp8",
        "variables.VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8": "1",
    }
