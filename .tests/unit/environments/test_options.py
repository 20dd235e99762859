"""Options compared with vLLM 0.32.0's parsers, as the shipped list has them."""

from __future__ import annotations

import json

import pytest

from servemark.environments import known_options, lockfiles, options
from servemark.records import Argument

KNOWN = known_options.shipped("0.32.0")


def refused(given, serve=True):
    assert KNOWN
    return {fault.option: fault for fault in options.faults(given, KNOWN.by_name[0 if serve else 1], "0.32.0")}


@pytest.mark.parametrize(
    "given",
    [
        {"dtype": "bfloat16", "kv-cache-dtype": "fp8_e4m3", "quantization": "fp8", "moe-backend": "flashinfer-cutlass"},
        {"max-num-seqs": 1, "max-num-batched-tokens": "16k", "max-model-len": "16K", "kv-cache-memory-bytes": "25.6g"},
        {"max-model-len": "auto"},
        {"max-model-len": -1, "gpu-memory-utilization": 1, "cpu-offload-gb": 0, "max-logprobs": -1, "max-lora-rank": 16},
        {"enforce-eager": True, "enable-prefix-caching": False, "no-enable-log-requests": True, "disable-log-stats": True},
        {"quantization": None, "safetensors-load-strategy": "None", "max-log-len": "", "distributed-timeout-seconds": "None"},
        {"compilation-config": '{"mode": 3, "pass_config": {"fuse_norm_quant": true}, "compile_sizes": [1, 2]}'},
        {"compilation-config": "{}", "compilation-config.mode": 3, "compilation-config.pass_config.fuse_norm_quant": True},
        {"kv-transfer-config": '{"kv_connector": "X", "kv_connector_extra_config": {"any": {"thing": 1}}, "kv_port": 1g}'},
        {"speculative-config": '{"method": "ngram", "num_speculative_tokens": 3}'},
        {"hf-overrides": '{"any": 1}', "additional-config": "a.b.C", "override-generation-config": '{"top_p": 0.9}'},
        {"cudagraph-capture-sizes": [1, 2, 4], "served-model-name": ["a", "b"], "allowed-origins": '["*"]'},
        {"lora-modules": ["a=/a", "b=/b"], "logits-processors": "a.B", "generation-config": "vllm"},
        {"tool-call-parser": "any-plugin", "attention-backend": "FLASH_ATTN", "tokenizer-mode": "mine"},
    ],
)
def test_values_that_vllm_takes_pass(given):
    assert refused(given) == {}


@pytest.mark.parametrize(
    ("option", "value", "nearest"),
    [
        ("dtype", "bf16", "bfloat16"),
        ("kv-cache-dtype", "fp7", "fp8"),
        ("quantization", "gptqq", "gptq"),
        ("moe-backend", "cutlas", "cutlass"),
        ("scheduling-policy", "FCFS", "fcfs"),
        ("max-num-seqs", -1, None),
        ("max-num-seqs", 0, None),
        ("max-num-seqs", "many", None),
        ("max-num-seqs", 2.5, None),
        ("max-num-seqs", [1, 2], None),
        ("max-num-seqs", True, None),
        ("max-model-len", 0, None),
        ("max-model-len", -2, None),
        ("max-model-len", "25.6K", None),
        ("max-num-batched-tokens", "lots", None),
        ("gpu-memory-utilization", 0, None),
        ("gpu-memory-utilization", 1.5, None),
        ("gpu-memory-utilization", "90%", None),
        ("grpc-port", 70000, None),
        ("max-lora-rank", 17, None),
        ("enforce-eager", "yes", None),
        ("enforce-eager", "false", None),
        ("enforce-eager", 1, None),
        ("disable-log-stats", False, None),
        ("max-num-seqs", False, None),
        ("chat-template", True, None),
        ("chat-template", "--x", None),
        ("cudagraph-capture-sizes", [], None),
        ("cudagraph-capture-sizes", [1, "two"], None),
        ("compilation-config", '{"mode": 3', None),
        ("compilation-config", "{'mode': 3}", None),
        ("compilation-config", "[3]", None),
        ("compilation-config", '{"modes": 3}', "mode"),
        ("compilation-config.modes", 3, "mode"),
        ("kernel-config", '{"ir_op_priority": {"rms_norms": []}}', "rms_norm"),
        ("kernel-config.ir_op_priority.rms_norms", [], "rms_norm"),
        ("speculative-config", '{"num_speculative_token": 3}', "num_speculative_tokens"),
        ("structured-outputs-config", '{"backend": "xgramar"}', "xgrammar"),
        ("hf-overrides", "{'a': 1}", None),
        ("override-generation-config", "top_p=1", None),
        ("dtype.x", "auto", None),
        ("dtpe", "auto", "dtype"),
        ("no-dtype", True, None),
        ("max-num-seq", 4, "max-num-seqs"),
    ],
)
def test_values_that_vllm_refuses_are_refused_with_the_nearest_value_first(option, value, nearest):
    fault = refused({option: value})[option]
    assert (fault.allowed[0] if nearest else None) == nearest
    assert (nearest or fault.option) in f"{fault.option} {fault.sentence()}"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("burstiness", 0),
        ("burstiness", "fast"),
        ("top-k", "many"),
        ("extra-body", "{"),
        ("no-such-thing", 1),
        ("ramp-up-strategy", "cubic"),
    ],
)
def test_options_of_the_client_are_checked_too(option, value):
    assert set(refused({option: value}, serve=False)) == {option}
    assert refused({"burstiness": 0.5, "top-k": 5, "extra-body": '{"a": 1}', "ramp-up-strategy": "linear"}, serve=False) == {}


def test_nothing_is_refused_if_nothing_is_known():
    assert list(options.faults({"dtpe": 1}, {}, "1")) == []
    assert known_options.of_versions(["0.32.0", "0.0.1"]) == () != known_options.of_versions(["0.32.0"])


def test_option_that_servemark_sets_is_never_suggested():
    assert KNOWN
    (fault,) = options.faults({"tensor-paralel-size": 2}, KNOWN.by_name[0], "0.32.0", lambda name: name == "tensor-parallel-size")
    assert "tensor-parallel-size" not in fault.allowed


@pytest.mark.parametrize(("value", "missing"), [("there.jinja", False), ("none.jinja", True), ("{{ messages }}", False), (None, False)])
def test_chat_template_is_a_file_or_a_template(tmp_path, monkeypatch, value, missing):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.jinja").touch()
    assert bool(options.missing_file({"chat-template": value})) is missing


def test_shipped_list_is_of_the_version_in_the_lock_files():
    assert lockfiles.vllm_versions("cpu") == lockfiles.vllm_versions("cuda13") == ("0.32.0",)
    assert set(lockfiles.vllm_versions("auto")) >= {"0.32.0"}
    assert KNOWN and len(KNOWN.serve) > 300 and len(KNOWN.client) > 90


def test_stand_in_lists_the_options_of_the_shipped_list(standin, tmp_path):
    import subprocess

    subprocess.run([standin.python, known_options.SCRIPT, tmp_path / "listed.json"], check=True)
    found = known_options.parsed(tmp_path / "listed.json", "0")
    assert KNOWN
    for ours, theirs in ((found.serve, KNOWN.serve), (found.client, KNOWN.client)):
        # The stand-in has no configuration classes, which state bounds and keys.
        bare = {"keys": {}, "least": None, "above": None, "most": None, "below": None}
        assert [one.model_copy(update=bare) for one in ours] == [one.model_copy(update=bare) for one in theirs]


def test_argument_is_recorded_without_its_defaults():
    text = Argument(names=("dtype",), kind="text", choices=("auto",), least=0.0).model_dump_json()
    assert json.loads(text) == {"names": ["dtype"], "kind": "text", "choices": ["auto"], "least": 0.0}
    assert Argument.model_validate_json(text).least == 0.0
