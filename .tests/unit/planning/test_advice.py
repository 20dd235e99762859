"""Advice: each rule speaks where its figure holds, with the key that leads out, and is silent a step away from that."""

from __future__ import annotations

import json

import pytest

from builders import report_data
from builders.deployed import HARDWARE
from builders.paths import ROOT
from servemark.config.expand import Point, points
from servemark.config.load import load
from servemark.config.model import Deployment, Verdict
from servemark.errors import PlanRefused
from servemark.planning.advice import REQUESTS_PER_SLOT
from servemark.planning.advice_precision import ROUNDING
from servemark.planning.cuda_graphs import dense
from servemark.planning.plan_deployment import plan
from servemark.records import Gpu, Plan
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
QUIET = {"no-enable-prefix-caching": True, "stream-interval": 20}
MEMORY_MIB = {
    "NVIDIA H200": 143771,
    "NVIDIA H100 80GB HBM3": 81559,
    "NVIDIA GH200 480GB": 97871,
    "NVIDIA A100-SXM4-80GB": 81920,
    "another GPU": 143771,
}


def gpus(name: str):
    return HARDWARE.model_copy(
        update={"accelerator": "cuda", "gpus": (Gpu(name=name, memory_mib=MEMORY_MIB[name]),) * 8, "memory_gib": 1000.0}
    )


def point(concurrency: int | None = 64, **changes) -> Point:
    values = {
        "name": f"chat-c{concurrency}-r1",
        "workload": "chat",
        "concurrency": concurrency,
        "request_rate": None,
        "repetition": 1,
        "seed": 1,
        "requests": 5 * (concurrency or 100),
        "input_tokens": 1024,
        "output_tokens": 1024,
        "warmups": 0,
        "warmup_tokens": 32,
        "client_options": {},
    }
    return Point(**(values | changes))


def planned(
    gpu="NVIDIA H200", load=(64,), options=None, check=None, variables=None, model=GPT_OSS, inherited=None, **topology
) -> Plan:
    """A plan of gpt-oss-120b, or of another config.json, on nodes of eight GPUs.

    Args:
        load: points, or the concurrency of each.
        options: on top of those that leave nothing to say.
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
    manifest = report_data.manifest("big").model_copy(update={"config": model, "weight_bytes": None})
    asked = [one if isinstance(one, Point) else point(one) for one in load]
    hardware = gpus(gpu) if gpu in MEMORY_MIB else HARDWARE
    found = CHECK.model_copy(update=check or {})
    return plan("big", deployment, False, asked, hardware, found, manifest, inherited=inherited)


def without(name: str) -> dict:
    """What takes an option of QUIET back."""
    return {name: None}


SPEAKS = {
    "queue": ({"load": (64, 512), "options": {"max-num-seqs": 256}},
              "At concurrency 512 an engine gets up to 512 requests and runs 256 at a time (options.max-num-seqs): up to 256 wait"),
    "queue at vLLM's default": ({"load": (1100,), "tensor_parallel": 4},
                                "runs 1024 at a time (vLLM 0.32.0's default here): up to 76 wait in the server"),
    "queue on an A100": ({"gpu": "NVIDIA A100-SXM4-80GB", "load": (300,), "tensor_parallel": 4}, "runs 256 at a time"),
    "queue of the batch's tokens": ({"load": (600,), "options": {"max-num-batched-tokens": 512}}, "runs 512 at a time"),
    "queue behind one replica": ({"load": (point(600, ask="replica"),), "options": {"max-num-seqs": 512}, "replicas": 4},
                                 "gets up to 600 requests and runs 512"),
    "queue behind data parallel engines": ({"load": (1028,), "options": {"max-num-seqs": 256}, "data_parallel": 4},
                                           "gets up to 257 requests and runs 256"),
    "cache": ({"gpu": "NVIDIA GH200 480GB", "load": (512,)},
              "an engine runs up to 512 requests of 2048 tokens, and its KV cache is expected to hold about"),
    "length": ({"options": {"max-model-len": 2176}},
               "asks for 1024 + 1024 = 2048 tokens, and the longest request is planned to have 2176: vLLM answers 400"),
    "length with a prefix": ({"load": (point(64, client_options={"random-prefix-len": 512}),), "options": {"max-model-len": 2688}},
                             "asks for 512 (random-prefix-len) + 1024 + 1024 = 2560 tokens, and the longest request is planned to"),
    "a prefix for each": ({"gpu": "NVIDIA GH200 480GB", "load": (point(128, client_options={"random-prefix-len": 8192}),)},
                          "an engine runs up to 128 requests of 10240 tokens, and its KV cache is expected to hold about"),
    "a prefix for all": ({"gpu": "NVIDIA GH200 480GB", "load": (point(260, client_options={"random-prefix-len": 120_000}),),
                          "options": without("no-enable-prefix-caching")},
                         "260 requests of 122048 tokens, of which 120000 are kept once for all, and its KV cache is expected to hold"),
    "prefixes of no length": ({"load": (point(64, client_options={"random-prefix-len": "0"}),),
                               "options": without("no-enable-prefix-caching")}, "Prefix caching is on"),
    "length of the model": ({"load": (point(4, input_tokens=130_000, output_tokens=2000),)}, "Shorten the workload."),
    "requests": ({"load": (point(512, requests=1024),)}, "fewer than 3 requests for each place (1024 for 512)"),
    "engines": ({"load": (64, 512), "tensor_parallel": 4}, "43,443 at 1.12 s with topology: {data_parallel: 4}"),
    "engines of replicas": ({"load": (1024,), "tensor_parallel": 4, "replicas": 2}, "Measure topology.data_parallel: 4 beside it."),
    "pipeline": ({"nodes": 2, "tensor_parallel": 4, "pipeline_parallel": 2},
                 "pipeline_parallel 2 spans nodes. Where a node holds the model, topology.replicas: 2"),
    "tensor parallel": ({"nodes": 2, "tensor_parallel": 8}, "8 over two nodes of 4 GH200 gave 0.59"),
    "experts": ({"data_parallel": 4, "options": {"enable-expert-parallel": True}}, "12.5k without this option"),
    "balancing": ({"data_parallel": 4}, "Where requests are alike, topology.balancing: router keeps them equal."),
    "in turn": ({"load": (64,), "replicas": 2}, "and 22,239 with topology.routing: least_requests"),
    "Ray": ({"tensor_parallel": 2, "executor": "ray", "check": {"vllm": "0.15.1"}},
            "vLLM 0.15.1 turns asynchronous scheduling off with executor: ray"),
    "graphs": ({"load": (512,), "options": {"max-num-seqs": 512, "max-cudagraph-capture-size": 2048}},
               "2048 captures 147 sizes, and the load that is planned needs them for 512 requests an engine: 96 of them"),
    "graphs of replicas": ({"load": (512,), "options": {"max-cudagraph-capture-size": 512}, "replicas": 4},
                           "needs them for 160 requests an engine"),
    "small graphs": ({"load": (64, 512), "options": {"max-cudagraph-capture-size": 256}},
                     "ends at 256, less than the 512 requests that an engine runs at concurrency 512"),
    "graphs of a list": ({"load": (64, 200), "options": {"cudagraph-capture-sizes": [1, 64, 1024, 200, 512]}},
                         "sizes up to 1024 captures 5 sizes, and the load that is planned needs them for 200 requests an engine: 2 of"),
    "small graphs of a list": ({"load": (64, 512), "options": {"cudagraph-capture-sizes": [64, 1]}},
                               "options.cudagraph-capture-sizes ends at 64, less than the 512 requests"),
    "prefixes": ({"options": without("no-enable-prefix-caching")}, "options.no-enable-prefix-caching: true"),
    "prefixes on purpose": ({"options": without("no-enable-prefix-caching") | {"enable-prefix-caching": True}}, "Prefix caching is on"),
    "speculation": ({"options": {"speculative-config.method": "eagle3", "speculative-config.model": "/draft"}},
                    "without options.speculative-config.method and options.speculative-config.model beside it"),
    "chunks": ({"load": (2048,), "replicas": 8, "options": without("stream-interval")}, "for each process of the client"),
    "a KV cache of 8 bits": ({"options": {"kv-cache-dtype": "fp8"}},
                             "options.kv-cache-dtype: fp8 (KV cache in fp8): the server calculates in fewer bits"),
    "weights rounded at the start": ({"options": {"quantization": "fp8"}}, "options.quantization: fp8 (weights rounded when"),
    "inputs of 8 bits": ({"variables": {"VLLM_HUMMING_INPUT_QUANT_CONFIG": '{"a_dtype": "float8e4m3"}'}},
                         "variables.VLLM_HUMMING_INPUT_QUANT_CONFIG (inputs of the quantised matrices in float8e4m3): the server"),
    "inputs by a file": ({"variables": {"VLLM_HUMMING_INPUT_QUANT_CONFIG": "/etc/humming.json"}}, "in what that file says"),
    "two that round": ({"options": {"kv-cache-dtype": "fp8"}, "variables": {"VLLM_MARLIN_INPUT_DTYPE": "int8"}},
                       "(KV cache in fp8); variables.VLLM_MARLIN_INPUT_DTYPE (inputs of the quantised matrices in int8): the server"),
    "sums of 16 bits": ({"variables": {"VLLM_HUMMING_USE_F16_ACCUM": "1"}}, "VLLM_HUMMING_USE_F16_ACCUM (sums in 16 bits)"),
    "unknown variable": ({"variables": {"VLLM_USE_RAY_SPMD_WORKER": "1"}},
                         "vLLM 0.32.0 does not have it among its variables, so it does nothing. Remove it."),
    "misspelt variable": ({"variables": {"VLLM_LOGING_LEVEL": "INFO"}}, "Did you mean VLLM_LOGGING_LEVEL? Otherwise remove it."),
    "variable that is an option now": ({"variables": {"VLLM_MXFP4_USE_MARLIN": "1"}}, "options.moe-backend: marlin has taken its place."),
    "variable before its option": ({"variables": {"VLLM_MXFP4_USE_MARLIN": "1"}, "options": without("moe-backend"), "check": {
        "serve_options": tuple(option for option in OPTIONS.split() if option != "moe-backend")}}, "so it does nothing. Remove it."),
    "NCCL": ({"variables": {"NCCL_FORCE_FLUSH": "0"}}, "Did you mean NCCL_NET_FORCE_FLUSH?"),
    "debugging": ({"variables": {"VLLM_LOGGING_LEVEL": "debug"}}, "variables.VLLM_LOGGING_LEVEL: debug is for finding faults"),
    "one variable of the shell": ({"inherited": {"NCCL_ALGO": "Ring"}},
                                  "From the shell, NCCL_ALGO reaches the servers and may decide figures, so the ledger's key has it"),
    "variables of the shell": ({"inherited": {"UCX_TLS": "rc", "NCCL_ALGO": "Ring"}, "variables": {"NCCL_NET": "IB"}},
                               "From the shell, NCCL_ALGO, UCX_TLS reach the servers and may decide figures, so the ledger's key has them"),
    "blocking": ({"variables": {"CUDA_LAUNCH_BLOCKING": "1"}}, "variables.CUDA_LAUNCH_BLOCKING: 1 is for finding faults"),
}  # fmt: skip


@pytest.mark.parametrize("case", SPEAKS)
def test_advice_is_given_where_its_figure_holds(case):
    changes, words = SPEAKS[case]
    told = [text for text in planned(**changes).warnings if words in text]
    assert len(told) == 1, planned(**changes).warnings


SILENT = {
    "nothing to say": {},
    "as many as an engine runs": {"load": (512,), "options": {"max-num-seqs": 512}},
    "as many as all engines run": {"load": (1024,), "options": {"max-num-seqs": 256}, "replicas": 4},
    "vLLM's default is enough": {"load": (1024,), "replicas": 2},
    "twice the default": {"load": (1040,), "options": {"performance-mode": "throughput"}, "tensor_parallel": 2, "pipeline_parallel": 2},
    "a rate of requests": {"load": (point(None, request_rate=900.0),), "options": {"max-num-seqs": 16}},
    "the cache holds them": {"gpu": "NVIDIA GH200 480GB", "load": (128,)},
    "room for prompts that come out longer": {"options": {"max-model-len": 2304}},
    "three requests for each place": {"load": (point(64, requests=192),)},
    "few requests for four devices": {"load": (500,), "tensor_parallel": 4},
    "few requests for each replica": {"load": (1000,), "tensor_parallel": 4, "replicas": 2},
    "two devices": {"load": (512,), "tensor_parallel": 2},
    "experts cut": {"data_parallel": 4, "balancing": "router"},
    "the least busy": {"load": (64,), "replicas": 2, "routing": "least_requests"},
    "in turn, one request each": {"load": (2,), "replicas": 2, "routing": "round_robin"},
    "no more requests than engines": {"data_parallel": 4, "load": (4,)},
    "experts spread over one engine": {"tensor_parallel": 4, "options": {"enable-expert-parallel": True}},
    "Ray with asynchronous scheduling": {"tensor_parallel": 2, "executor": "ray"},
    "a pipeline inside a node": {"pipeline_parallel": 2},
    "replicas across nodes": {"nodes": 2, "replicas": 2, "tensor_parallel": 2},
    "graphs that fit": {"load": (512,), "options": {"max-num-seqs": 512, "max-cudagraph-capture-size": 512}},
    "graphs for the load": {"load": (512,), "replicas": 4, "options": {"max-cudagraph-capture-size": "workload"}},
    "sparse graphs for the load": {"load": (96, 100, 512), "options": {"cudagraph-capture-sizes": "workload", "max-num-seqs": 512}},
    "sparse graphs of replicas": {"load": (64, 512), "replicas": 4, "options": {"cudagraph-capture-sizes": "workload"}},
    "graphs of a load without limit": {"load": (point(None, request_rate=9.0),), "options": {"max-cudagraph-capture-size": 1024}},
    "no graphs": {"load": (64,), "options": {"max-cudagraph-capture-size": 2048, "enforce-eager": True}},
    "shared prefixes": {"load": (point(64, client_options={"random-prefix-len": 512}),), "options": without("no-enable-prefix-caching")},
    "a prefix kept once": {"gpu": "NVIDIA GH200 480GB", "load": (point(128, client_options={"random-prefix-len": 8192}),),
                           "options": without("no-enable-prefix-caching")},
    "no caching in other words": {"options": without("no-enable-prefix-caching") | {"enable-prefix-caching": False}},
    "many processes of the client": {"load": (point(2048, clients=16),), "replicas": 8, "options": without("stream-interval")},
    "few chunks": {"load": (64,), "options": without("stream-interval")},
    "a GPU of unknown peaks": {"gpu": "another GPU", "load": (2048,), "replicas": 8, "options": without("stream-interval")},
    "known variables": {"variables": {"VLLM_LOGGING_LEVEL": "INFO", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8"}},
    "variables that an older check did not ask for": {"variables": {"VLLM_USE_RAY_SPMD_WORKER": "1"}, "check": {"variables": ()}},
    "the model's own numbers": {"options": {"kv-cache-dtype": "bfloat16", "quantization": "mxfp4"},
                                "variables": {"VLLM_HUMMING_USE_F16_ACCUM": "0"}},
    "the model's own numbers by another name": {"options": {"quantization": "gpt_oss_mxfp4"},
                                                "variables": {"VLLM_HUMMING_INPUT_QUANT_CONFIG": '{"a_dtype": "bfloat16"}'}},
    "debugging off": {"variables": {"CUDA_LAUNCH_BLOCKING": "0"}},
}  # fmt: skip


@pytest.mark.parametrize("case", SILENT)
def test_no_advice_is_given_a_step_away(case):
    changes = SILENT[case]
    least_busy = {"routing": "least_requests"} if "replicas" in changes else {}
    assert planned(**least_busy | changes).warnings == ()


def test_of_a_dense_model_on_each_device_nothing_is_known():
    dense = builtin.CONFIGS["tiny-dense"]
    load = (point(512, input_tokens=64, output_tokens=64),)
    assert planned("another GPU", load, model=dense, tensor_parallel=2).warnings == ()


def test_on_a_cpu_nothing_is_said_that_was_learned_on_gpus():
    plain = {"model": builtin.CONFIGS["tiny-moe"], "gpu": "none", "check": {"torch_cuda": None, "vllm_platform": "cpu"}}
    shape = {"input_tokens": 64, "output_tokens": 32}
    space = {"VLLM_CPU_KVCACHE_SPACE": "1"}
    options = without("no-enable-prefix-caching") | without("stream-interval") | {"max-cudagraph-capture-size": 2048}
    run = {**plain, "options": options, "variables": space, "tensor_parallel": 2}
    assert planned(**run, load=(point(256, **shape),)).warnings == ()
    (told,) = planned(**run, load=(point(300, **shape),)).warnings
    assert "runs 256 at a time (vLLM 0.32.0's default here)" in told


def test_advice_changes_nothing_of_what_is_started_and_measured():
    silent = planned(load=(512,), variables={"OMP_NUM_THREADS": "8"})
    told = planned(load=(512,), variables={"OMP_NUM_THREADS": "8"}, options={"max-num-seqs": 256})
    assert told.warnings and told.options == {**silent.options, "max-num-seqs": 256}
    assert told.topology == silent.topology and told.variables == silent.variables


@pytest.mark.parametrize("file", ["config.yaml", "examples/two-nodes-ray.yaml"])
def test_the_demo_and_the_example_on_cpu_need_no_advice(file, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = load(ROOT / "config" / file)
    manifest = report_data.manifest().model_copy(update={"config": builtin.CONFIGS["tiny-dense"]})
    check = report_data.check(serve_options=tuple(OPTIONS.split()), variables=KNOWN)
    assert config.deployments
    for name, deployment in config.deployments.items():
        assert plan(name, deployment, False, points(config, name), HARDWARE, check, manifest).warnings == ()


@pytest.mark.parametrize(("length", "fits"), [(2047, False), ("2k", False), (2048, True), ("2K", True)])
def test_a_length_below_what_a_workload_asks_for_is_refused(length, fits):
    if fits:
        assert planned(options={"max-model-len": length}).estimate.max_model_len == 2048
        return
    with pytest.raises(
        PlanRefused, match=r"workloads\.chat asks for 1024 \+ 1024 = 2048 tokens, and options\.max-model-len"
    ) as refused:
        planned(options={"max-model-len": length})
    assert refused.value.reason == "bad_option"


@pytest.mark.parametrize(
    ("size", "number"), [(1, 1), (2, 2), (4, 3), (8, 4), (255, 34), (256, 35), (512, 51), (1024, 83), (2048, 147)]
)
def test_graphs_are_counted_as_vllm_logs_them(size, number):
    """51 and 147 stand in recorded logs of 0.25.1, 83 in 0.32.0's words about gpt-oss."""
    assert len(dense(size)) == number


@pytest.mark.parametrize(
    ("options", "way_out"),
    [
        (
            {"max-cudagraph-capture-size": 2048},
            "Set it to 512 or `workload`, or have the 21 sizes of `options.cudagraph-capture-sizes: workload` instead, "
            "unless",
        ),
        (
            {"cudagraph-capture-sizes": [1, 512, 2048]},
            "Let the list end at 512, or write `workload` in its place (21 sizes for this load), unless",
        ),
    ],
)
def test_too_many_graphs_have_both_words_as_ways_out(options, way_out):
    (told,) = planned(load=(512,), options=options).warnings
    assert way_out in told


def test_few_requests_are_what_the_verdict_takes_for_few_by_default():
    assert Verdict().min_requests_per_slot == REQUESTS_PER_SLOT
