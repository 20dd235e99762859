"""Advice: each code is given if its condition is true, with the numbers and keys of the plan, and not just outside the condition."""

from __future__ import annotations

import json
import re

import pytest
from pydantic import ValidationError

from builders import loads, report_data
from builders.deployed import HARDWARE
from builders.paths import ROOT
from servemark.config.expand import points
from servemark.config.load import load
from servemark.config.model import Deployment
from servemark.errors import PlanRefused
from servemark.measurement.thresholds import Verdict
from servemark.planning import plan_deployment
from servemark.planning.advice import CONDITIONS, REQUESTS_PER_SLOT, advise
from servemark.planning.advice_data import NUMBERS, SENTENCES, Data
from servemark.planning.cuda_graphs import dense
from servemark.planning.plan_deployment import DeploymentSpec, plan
from servemark.planning.precision import ROUNDING
from servemark.records import Gpu, LoadPoint, Plan
from servemark.weights import builtin

GPT_OSS = json.loads((ROOT / ".tests" / "fixtures" / "planning" / "gpt-oss-120b-config.json").read_text())
OPTIONS = (
    "api-server-count block-size compilation-config cudagraph-capture-sizes dtype enable-expert-parallel enable-prefix-caching "
    "enforce-eager gpu-memory-utilization kv-cache-dtype kv-cache-memory-bytes max-cudagraph-capture-size max-model-len "
    "max-num-batched-tokens max-num-seqs moe-backend performance-mode quantization speculative-config stream-interval"
)
KNOWN = (
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_LOGGING_LEVEL",
    "VLLM_HOST_IP",
    "VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE",
    *ROUNDING,
)
CHECK = report_data.check(
    "gpu",
    vllm="0.32.0",
    torch_cuda="13.0",
    vllm_platform="cuda",
    serve_options=tuple(OPTIONS.split()),
    variables=KNOWN,
)
UNKNOWN_ATTENTION = {**builtin.CONFIGS["tiny-dense"], "model_type": "of-tomorrow", "attn_type_list": [1, 0]}
UNKNOWN_BITS = {**builtin.CONFIGS["tiny-dense"], "quantization_config": {"quant_method": "of-tomorrow"}}
QUIET = {"no-enable-prefix-caching": True, "stream-interval": 20}
MEMORY_MIB = {
    "NVIDIA H200": 143771,
    "NVIDIA H100 80GB HBM3": 81559,
    "NVIDIA GH200 480GB": 97871,
    "NVIDIA A100-SXM4-80GB": 81920,
    "NVIDIA A100-SXM4-40GB": 40960,
    "another GPU": 143771,
}


def gpus(name: str):
    return HARDWARE.model_copy(
        update={"accelerator": "cuda", "gpus": (Gpu(name=name, memory_mib=MEMORY_MIB[name]),) * 8, "memory_gib": 1000.0}
    )


def point(concurrency: int | None = 64, **changes) -> LoadPoint:
    values = {"concurrency": concurrency, "requests": 5 * (concurrency or 100), "warmup_tokens": 32}
    return loads.load(**(values | {"input_tokens": 1024, "output_tokens": 1024} | changes))


def planned(
    gpu="NVIDIA H200",
    load=(64,),
    options=None,
    check=None,
    variables=None,
    model=GPT_OSS,
    inherited=None,
    visible=None,
    load_format="auto",
    **topology,
) -> Plan:
    """A plan of gpt-oss-120b, or of another config.json, on nodes of eight GPUs.

    Args:
        load: points, or the concurrency of each.
        options: in addition to QUIET, with which there is no advice.
        visible: CUDA_VISIBLE_DEVICES of the probed machine.
        topology: the deployment's.
    """
    deployment = Deployment.model_validate(
        {
            "model": "big",
            "environment": "gpu",
            "topology": topology,
            "options": {name: value for name, value in (QUIET | (options or {})).items() if value is not None},
            "variables": variables or {},
        }
    )
    manifest = report_data.manifest("big").model_copy(update={"config": model, "weight_bytes": None, "load_format": load_format})
    asked = [one if isinstance(one, LoadPoint) else point(one) for one in load]
    hardware = gpus(gpu) if gpu in MEMORY_MIB else HARDWARE
    hardware = hardware.model_copy(update={"cuda_visible_devices": visible})
    found = CHECK.model_copy(update=check or {})
    spec = DeploymentSpec(deployment=deployment, points=asked, inherited=inherited or {})
    return plan("big", spec, hardware, found, manifest)


def advised(**changes) -> dict[str, str]:
    """Return the advice for this plan by code; it equals the warnings of the plan."""
    given = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_deployment, "advise", lambda demand: given.update(advise(demand)) or given)
        assert planned(**changes).warnings == tuple(given.values())
    return given


def without(name: str) -> dict:
    """Return a change that removes an option of QUIET."""
    return {name: None}


PREFIX = {"client_options": {"random-prefix-len": 512}}
OLD = {"vllm": "0.19.1"}
GIVEN = {
    "random": ({"load_format": "dummy", "model": builtin.CONFIGS["tiny-dense"], "load": (point(8, input_tokens=64, output_tokens=64),)},
               "random_weights", ()),
    "random experts": ({"load_format": "dummy"}, "even_experts", ()),
    "tensor parallel over nodes": ({"nodes": 2, "tensor_parallel": 8}, "tensor_parallel_spans_nodes",
                                   ("tensor_parallel 8 spans nodes of 4 device(s)", "topology.replicas")),
    "pipeline": ({"nodes": 2, "tensor_parallel": 4, "pipeline_parallel": 2}, "pipeline_spans_nodes",
                 ("pipeline_parallel 2", "topology.replicas: 2")),
    "fewer requests than stages": ({"load": (2, 3, 64), "pipeline_parallel": 4}, "stages_idle",
                                   ("At concurrency 2, 3 ", "its 4 pipeline stages", "as few as 2)", "concurrency to 4 ")),
    "fewer requests than the stages of replicas": (
        {"load": (4,), "pipeline_parallel": 4, "replicas": 2}, "stages_idle", ("At concurrency 4 ", "as few as 2)", "concurrency to 8 ")),
    "fewer requests than the stages of one replica": (
        {"load": (point(3, ask="replica"),), "pipeline_parallel": 4, "replicas": 2}, "stages_idle", ("as few as 3)", "concurrency to 4 ")),
    "unknown attention": ({"model": UNKNOWN_ATTENTION, "load": (point(8, input_tokens=64, output_tokens=64),)}, "cache_not_estimated",
                          ("unknown attention: 'attn_type_list'", "roofline")),
    "one GPU for two": ({"tensor_parallel": 2}, "one_gpu_suffices",
                        ("60.8 of 140.4 GiB", "requests of 2,048 tokens", "The 2 GPUs", "30,335 tokens/s", "21,708 tokens/s",
                         "topology.replicas: 2")),
    "one GPU for four in two nodes": ({"nodes": 2, "tensor_parallel": 2, "pipeline_parallel": 2, "replicas": 2}, "one_gpu_suffices",
                                      ("The 4 GPUs", "topology.replicas: 8")),
    "data parallel instead": ({"load": (64, 512), "tensor_parallel": 4}, "data_parallel_instead", ("topology.data_parallel: 4",)),
    "data parallel instead, in replicas": ({"load": (1024,), "tensor_parallel": 4, "replicas": 2, "routing": "least_requests"},
                                           "data_parallel_instead", ("topology.data_parallel: 4",)),
    "in turn": ({"load": (64,), "replicas": 2}, "replicas_in_turn", ("the 2 replicas", "topology.routing: least_requests")),
    "balancing": ({"data_parallel": 4}, "engines_uneven", ("All 4 data parallel", "topology.balancing: router")),
    "multicast": ({"tensor_parallel": 2, "check": {"variables": (*KNOWN, "VLLM_ALLREDUCE_USE_SYMM_MEM")}}, "multicast",
                  ("CUSTOM, SYMM_MEM, PYNCCL", 'variables.VLLM_ALLREDUCE_USE_SYMM_MEM: "0"')),
    "queue": ({"load": (64, 512), "options": {"max-num-seqs": 256}}, "queueing",
              ("concurrency 512 an engine gets up to 512 requests and runs at most 256", "set by options.max-num-seqs.",
               "options.max-num-seqs: 512")),
    "queue at vLLM's default": ({"load": (1100,), "tensor_parallel": 2}, "queueing", ("runs at most 1024", "vLLM 0.32.0's default")),
    "queue on an A100": ({"gpu": "NVIDIA A100-SXM4-80GB", "load": (300,), "tensor_parallel": 4}, "queueing", ("runs at most 256",)),
    "queue of the batch's tokens": ({"load": (600,), "options": {"max-num-batched-tokens": 512}}, "queueing", ("runs at most 512",)),
    "queue behind one replica": ({"load": (point(600, ask="replica"),), "options": {"max-num-seqs": 512}, "replicas": 4}, "queueing",
                                 ("up to 600 requests and runs at most 512",)),
    "queue behind data parallel engines": (
        {"load": (1028,), "options": {"max-num-seqs": 256}, "data_parallel": 4, "balancing": "router"}, "queueing",
        ("up to 257 requests and runs at most 256",)),
    "cache": ({"gpu": "NVIDIA GH200 480GB", "load": (512,)}, "cache_too_small",
              ("up to 512 requests of 2048 tokens,", "options.gpu-memory-utilization")),
    "a prefix for each": ({"gpu": "NVIDIA GH200 480GB", "load": (point(128, client_options={"random-prefix-len": 8192}),)},
                          "cache_too_small", ("128 requests of 10240 tokens,",)),
    "a prefix for all": ({"gpu": "NVIDIA GH200 480GB", "load": (point(260, client_options={"random-prefix-len": 120_000}),),
                          "options": without("no-enable-prefix-caching")},
                         "cache_too_small", ("260 requests of 122048 tokens (120000 of them kept once for all)",)),
    "length": ({"options": {"max-model-len": 2176}}, "length_tight",
               ("1024 + 1024 = 2048 tokens", " 2176. ", "options.max-model-len")),
    "length with a prefix": ({"load": (point(64, **PREFIX),), "options": {"max-model-len": 2688}}, "length_tight",
                             ("512 (random-prefix-len) + 1024 + 1024 = 2560 tokens", " 2688. ")),
    "length of the model": ({"load": (point(4, input_tokens=130_000, output_tokens=2000),)}, "length_tight", ("Shorten the workload.",)),
    "requests": ({"load": (point(512, requests=1024),)}, "few_requests", ("fewer than 3 requests", "(1024 for 512)")),
    "graphs": ({"load": (512,), "options": {"max-num-seqs": 512, "max-cudagraph-capture-size": 2048}}, "graphs_too_large",
               ("max-cudagraph-capture-size captures 147 ", "up to 2048", "up to 512; 96 ", "captures 21 sizes")),
    "graphs of replicas": ({"load": (512,), "options": {"max-cudagraph-capture-size": 512}, "replicas": 4, "routing": "least_requests"},
                           "graphs_too_large", ("sizes up to 160; ",)),
    "graphs of a list": ({"load": (64, 200), "options": {"cudagraph-capture-sizes": [1, 64, 1024, 200, 512]}}, "graphs_too_large",
                         ("options.cudagraph-capture-sizes captures 5 ", "up to 1024", "up to 200; 2 ")),
    "small graphs": ({"load": (64, 512), "options": {"max-cudagraph-capture-size": 256}}, "graphs_too_small",
                     ("options.max-cudagraph-capture-size ends at 256", "512 requests at concurrency 512", "at 512")),
    "small graphs of a list": ({"load": (64, 512), "options": {"cudagraph-capture-sizes": [64, 1]}}, "graphs_too_small",
                               ("options.cudagraph-capture-sizes ends at 64",)),
    "chunks": ({"load": (2048,), "replicas": 8, "routing": "least_requests", "options": without("stream-interval")}, "client_too_slow",
               ("At concurrency 2048", "`clients`", "options.stream-interval")),
    "speculation": ({"options": {"speculative-config.method": "eagle3", "speculative-config.model": "/draft"}}, "speculation",
                    ("(speculative-config.method, speculative-config.model)",)),
    "a KV cache of 8 bits": ({"options": {"kv-cache-dtype": "fp8"}}, "fewer_bits", ("options.kv-cache-dtype: fp8",)),
    "weights rounded at the start": ({"options": {"quantization": "fp8"}}, "fewer_bits", ("options.quantization: fp8",)),
    "inputs of 8 bits": ({"variables": {"VLLM_HUMMING_INPUT_QUANT_CONFIG": '{"a_dtype": "float8e4m3"}'}}, "fewer_bits",
                         ('variables.VLLM_HUMMING_INPUT_QUANT_CONFIG: {"a_dtype": "float8e4m3"}',)),
    "inputs by a file": ({"variables": {"VLLM_HUMMING_INPUT_QUANT_CONFIG": "/etc/humming.json"}}, "fewer_bits", ("/etc/humming.json",)),
    "two that round": ({"options": {"kv-cache-dtype": "fp8"}, "variables": {"VLLM_MARLIN_INPUT_DTYPE": "int8"}}, "fewer_bits",
                       ("options.kv-cache-dtype: fp8; variables.VLLM_MARLIN_INPUT_DTYPE: int8:",)),
    "sums of 16 bits": ({"variables": {"VLLM_HUMMING_USE_F16_ACCUM": "1"}}, "fewer_bits", ("VLLM_HUMMING_USE_F16_ACCUM: 1",)),
    "unknown variable": ({"variables": {"VLLM_USE_RAY_SPMD_WORKER": "1"}}, "unknown_variables",
                         ("vLLM 0.32.0 ", "VLLM_USE_RAY_SPMD_WORKER.")),
    "misspelt variable": ({"variables": {"VLLM_LOGING_LEVEL": "INFO", "VLLM_X": "1"}}, "unknown_variables",
                          ("VLLM_LOGING_LEVEL (did you mean VLLM_LOGGING_LEVEL?), VLLM_X.",)),
    "inherited variables": ({"inherited": {"UCX_TLS": "rc", "NCCL_ALGO": "Ring"}, "variables": {"NCCL_NET": "IB"}},
                            "inherited_variables", ("NCCL_ALGO, UCX_TLS.",)),
    "vocabulary": ({"check": OLD}, "vocabulary_fetched", ("vLLM 0.19.1", "variables.TIKTOKEN_ENCODINGS_BASE")),
    "GPUs by UUID": ({"check": OLD, "variables": {"TIKTOKEN_ENCODINGS_BASE": "/encodings"}, "visible": "GPU-1d2e,GPU-3f4a"},
                     "gpu_uuids_unread", ("vLLM 0.19.1",)),
}  # fmt: skip


@pytest.mark.parametrize("case", GIVEN)
def test_advice_is_given_if_its_condition_is_true(case):
    changes, code, words = GIVEN[case]
    sentence = advised(**changes).get(code, "")
    assert sentence and not [word for word in words if word not in sentence], sentence
    assert "{" not in sentence.replace('{"a_dtype"', ""), "a placeholder is left"


def test_each_sentence_has_its_condition_and_a_plan_that_gets_it():
    assert SENTENCES.keys() == CONDITIONS.keys() == {code for _, code, _ in GIVEN.values()}


NOT_GIVEN = {
    "no reason": {},
    "as many as an engine runs": {"load": (512,), "options": {"max-num-seqs": 512}},
    "as many as all engines run": {"load": (1024,), "options": {"max-num-seqs": 256}, "replicas": 4},
    "vLLM's default is enough": {"load": (1024,), "replicas": 2},
    "twice the default, with a load larger than the cache of one GPU": {
        "load": (1040,), "options": {"performance-mode": "throughput"}, "tensor_parallel": 2, "pipeline_parallel": 2},
    "a rate of requests": {"load": (point(None, request_rate=900.0),), "options": {"max-num-seqs": 16}},
    "the cache holds them": {"gpu": "NVIDIA GH200 480GB", "load": (128,)},
    "room for prompts that come out longer": {"options": {"max-model-len": 2304}},
    "three requests for each slot": {"load": (point(64, requests=192),)},
    "few requests for four devices": {"load": (500,), "tensor_parallel": 4},
    "few requests for each replica": {"load": (1000,), "tensor_parallel": 4, "replicas": 2},
    "two devices": {"load": (512,), "tensor_parallel": 2},
    "experts cut": {"data_parallel": 4, "balancing": "router"},
    "the least busy": {"load": (64,), "replicas": 2, "routing": "least_requests"},
    "in turn, one request each": {"load": (2,), "replicas": 2, "routing": "round_robin"},
    "no more requests than engines": {"data_parallel": 4, "load": (4,)},
    "experts spread over one engine": {"tensor_parallel": 4, "options": {"enable-expert-parallel": True}},
    "a pipeline inside a node": {"pipeline_parallel": 2},
    "as many requests as stages": {"load": (4,), "pipeline_parallel": 4},
    "as many requests as the stages of replicas": {"load": (8,), "pipeline_parallel": 4, "replicas": 2},
    "a rate of requests for stages": {"load": (point(None, request_rate=9.0),), "pipeline_parallel": 4},
    "a model larger than a GPU": {"gpu": "NVIDIA A100-SXM4-40GB", "tensor_parallel": 4},
    "a load larger than the cache of one GPU": {"gpu": "NVIDIA GH200 480GB", "load": (800,), "tensor_parallel": 2},
    "a load larger than the cache of one GPU, which two replicas would hold": {
        "gpu": "NVIDIA GH200 480GB", "load": (512,), "tensor_parallel": 2},
    "engines of one GPU": {"replicas": 4},
    "a cache of fixed size that does not fit on one GPU": {"tensor_parallel": 4, "options": {"kv-cache-memory-bytes": "90G"}},
    "replicas across nodes": {"nodes": 2, "replicas": 2, "tensor_parallel": 2},
    "graphs that fit": {"load": (512,), "options": {"max-num-seqs": 512, "max-cudagraph-capture-size": 512}},
    "graphs for the load": {"load": (512,), "replicas": 4, "options": {"max-cudagraph-capture-size": "workload"}},
    "sparse graphs for the load": {"load": (96, 100, 512), "options": {"cudagraph-capture-sizes": "workload", "max-num-seqs": 512}},
    "sparse graphs of replicas": {"load": (64, 512), "replicas": 4, "options": {"cudagraph-capture-sizes": "workload"}},
    "graphs of a load without limit": {"load": (point(None, request_rate=9.0),), "options": {"max-cudagraph-capture-size": 1024}},
    "no graphs": {"load": (64,), "options": {"max-cudagraph-capture-size": 2048, "enforce-eager": True}},
    "a prefix kept once": {"gpu": "NVIDIA GH200 480GB", "load": (point(128, client_options={"random-prefix-len": 8192}),),
                           "options": without("no-enable-prefix-caching")},
    "many processes of the client": {"load": (point(2048, clients=16),), "replicas": 8, "options": without("stream-interval")},
    "few chunks": {"load": (64,), "options": without("stream-interval")},
    "a GPU of unknown peaks": {"gpu": "another GPU", "load": (2048,), "replicas": 8, "options": without("stream-interval")},
    "weights of unknown bits": {"load": (2048,), "replicas": 8, "options": without("stream-interval"), "model": UNKNOWN_BITS},
    "known variables": {"variables": {"VLLM_LOGGING_LEVEL": "INFO", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8"}},
    "variables that an older check did not ask for": {"variables": {"VLLM_USE_RAY_SPMD_WORKER": "1"}, "check": {"variables": ()}},
    "the model's own numbers": {"options": {"kv-cache-dtype": "bfloat16", "quantization": "mxfp4"},
                                "variables": {"VLLM_HUMMING_USE_F16_ACCUM": "0"}},
    "the model's own numbers by another name": {"options": {"quantization": "gpt_oss_mxfp4", "kv-cache-dtype": "auto"},
                                                "variables": {"VLLM_HUMMING_INPUT_QUANT_CONFIG": '{"a_dtype": "bfloat16"}'}},
    "a given vocabulary": {"check": OLD, "variables": {"TIKTOKEN_ENCODINGS_BASE": "/encodings"}},
    "GPUs by number": {"check": OLD, "variables": {"TIKTOKEN_ENCODINGS_BASE": "/encodings"}, "visible": "0,1"},
    "GPUs by UUID for a vLLM that reads them": {"visible": "GPU-1d2e"},
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_GIVEN)
def test_no_advice_just_outside_its_condition(case):
    changes = NOT_GIVEN[case]
    least_busy = {"routing": "least_requests"} if "replicas" in changes else {}
    spread = changes.get("tensor_parallel", 1) * changes.get("pipeline_parallel", 1) > 1
    # One H200 holds gpt-oss-120b and these loads.
    expected = {"one_gpu_suffices"} if spread and "larger" not in case and "does not fit" not in case else set()
    assert advised(**least_busy | changes).keys() == expected


def test_advice_measured_on_gpus_is_not_given_for_cpu():
    dense = builtin.CONFIGS["tiny-dense"]
    load = (point(512, input_tokens=64, output_tokens=64),)
    assert advised(gpu="another GPU", load=load, model=dense, tensor_parallel=2).keys() == {"one_gpu_suffices"}
    plain = {"model": builtin.CONFIGS["tiny-moe"], "gpu": "none", "check": {"torch_cuda": None, "vllm_platform": "cpu"}}
    shape = {"input_tokens": 64, "output_tokens": 32}
    space = {"VLLM_CPU_KVCACHE_SPACE": "1"}
    options = without("no-enable-prefix-caching") | without("stream-interval") | {"max-cudagraph-capture-size": 2048}
    run = {**plain, "options": options, "variables": space, "tensor_parallel": 2}
    assert advised(**run, load=(point(256, **shape),)) == {}
    found = advised(**run, load=(point(300, **shape),))
    assert found.keys() == {"queueing"} and "runs at most 256" in found["queueing"]
    assert advised(**plain, options=options, variables=space, replicas=2, load=(point(64, **shape),)) == {}


def test_each_measured_number_is_used_and_not_repeated_in_code():
    """A sentence, ``measured("name")`` or a comment uses each number."""
    workflow = ROOT / "workflow"
    folders = ("lib", "rules", "scripts", "templates")
    code = "\n".join(
        path.read_text()
        for folder in folders
        for path in sorted((workflow / folder).rglob("*"))
        if path.suffix in (".py", ".smk", ".j2", ".yaml") and path.name != "advice.yaml"
    )
    used = code + "\n".join(SENTENCES.values())
    named = {kind for kind in NUMBERS if kind.startswith("activations_")}  # by an f-string
    assert [name for name in NUMBERS.keys() - named if not re.search(rf"\b{name}\b", used)] == []
    figures = {f"{number.value:{form}}" for number in NUMBERS.values() for form in (",.0f", ".0f") if number.value > 1000}
    figures -= {"20,000", "20000"}  # also the number of other things
    assert [figure for figure in sorted(figures) if re.search(rf"\b{figure}\b", code)] == []


def test_number_without_a_source_is_refused():
    number = NUMBERS["tp4_rate"].model_dump()
    Data.model_validate({"numbers": {"one": number}, "sentences": {}})
    for field in number:
        with pytest.raises(ValidationError):
            Data.model_validate({"numbers": {"one": {k: v for k, v in number.items() if k != field}}, "sentences": {}})


def test_advice_changes_neither_options_nor_topology():
    silent = planned(load=(512,), variables={"OMP_NUM_THREADS": "8"})
    told = planned(load=(512,), variables={"OMP_NUM_THREADS": "8"}, options={"max-num-seqs": 256})
    assert told.warnings and told.options == {**silent.options, "max-num-seqs": 256}
    assert told.topology == silent.topology and told.variables == silent.variables


@pytest.mark.parametrize("file", ["config.yaml", "examples/two-nodes.yaml"])
def test_shipped_cpu_configurations_get_no_advice(file, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = load(ROOT / "config" / file)
    manifest = report_data.manifest().model_copy(update={"config": builtin.CONFIGS["tiny-dense"]})
    check = report_data.check(serve_options=tuple(OPTIONS.split()), variables=KNOWN)
    assert config.deployments
    for name, deployment in config.deployments.items():
        assert plan(name, DeploymentSpec(deployment=deployment, points=points(config, name)), HARDWARE, check, manifest).warnings == ()


@pytest.mark.parametrize(("length", "fits"), [(2047, False), ("2k", False), (2048, True), ("2K", True)])
def test_length_below_the_workloads_is_refused(length, fits):
    if fits:
        assert planned(options={"max-model-len": length}).estimate.max_model_len == 2048
        return
    with pytest.raises(PlanRefused, match=r"workloads\.chat .* 2048 tokens, .*max-model-len") as refused:
        planned(options={"max-model-len": length})
    assert refused.value.reason == "bad_option"


@pytest.mark.parametrize(("size", "number"), [(1, 1), (2, 2), (4, 3), (8, 4), (255, 34), (256, 35), (512, 51), (1024, 83), (2048, 147)])
def test_number_of_graphs_equals_vllms_log(size, number):
    """51 and 147 are in recorded logs of 0.25.1, 83 in a log of 0.32.0 with gpt-oss."""
    assert len(dense(size)) == number


def test_few_requests_uses_the_default_of_the_verdict():
    assert Verdict().min_requests_per_slot == REQUESTS_PER_SLOT
