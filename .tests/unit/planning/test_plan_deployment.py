"""Plans: an impossible deployment is refused; a possible one gets its points with ledger keys."""

from __future__ import annotations

import json
import re

import pytest

from builders import report_data
from builders.deployed import HARDWARE
from builders.loads import load
from builders.planning import CHECK, CLUSTER, GPUS, KNOWN, point
from servemark.errors import PlanRefused
from servemark.launch.random_weights import LOAD_FORMAT
from servemark.measurement import key
from servemark.planning import legality
from servemark.planning.advice_data import SENTENCES
from servemark.planning.plan_deployment import refused_options
from servemark.records import Argument, Gpu, Plan, StagedPrompts
from servemark.weights import builtin


def test_random_weights_are_in_options_warnings_and_ledger_key(planned, tiny):
    real, random = planned(), planned(model=tiny.model_copy(update={"load_format": "dummy", "weight_bytes": None}))
    assert random.options == {**real.options, "load-format": LOAD_FORMAT}
    assert [text for text in random.warnings if text not in real.warnings] == [SENTENCES["random_weights"]]
    assert random.points[0].key != real.points[0].key
    assert random.estimate.weights_gib == pytest.approx(real.estimate.weights_gib, rel=0.01)


def test_advice_on_even_experts_needs_experts(planned, tiny):
    shapes = {name: tiny.model_copy(update={"load_format": "dummy", "config": config}) for name, config in builtin.CONFIGS.items()}
    said = {name: SENTENCES["even_experts"] in planned(model=shape).warnings for name, shape in shapes.items()}
    assert said == {"tiny-dense": False, "tiny-moe": True}


def test_node_without_toolkit_gets_vllms_sampler_in_plan_and_key(planned):
    names = ("VLLM_USE_FLASHINFER_SAMPLER",)
    whole, bare = (
        planned(hardware=GPUS, variables={}, check=found.model_copy(update={"serve_options": KNOWN}))
        for found in (report_data.kernel_check(names), report_data.kernel_check(names, nvcc=None))
    )
    assert whole.variables == {}
    assert bare.variables == bare.key_parts["variables"] == {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
    assert bare.points[0].key != whole.points[0].key
    assert [text for text in bare.warnings if text not in whole.warnings and "nvcc" in text]


def test_plan_has_the_all_reduces_of_tensor_parallel_ranks(planned):
    two = {"tensor_parallel": 2, "executor": "mp"}
    found = report_data.kernel_check().model_copy(update={"serve_options": KNOWN})
    assert planned(hardware=GPUS, variables={}, check=found, topology=two).all_reduce == ("CUSTOM", "PYNCCL")
    assert planned(hardware=GPUS, variables={}, check=found).all_reduce == ()


def test_ledger_key_is_constant_over_versions(planned, tiny):
    """A key of another value: an update of servemark would measure finished points again in the middle of a campaign.

    Where that is meant, raise ``FORMAT`` in measurement/key.py, or give the key a part that says what is another, say so in CHANGELOG.md,
    and write the new key here.
    """
    (one, _) = planned(model=tiny.model_copy(update={"digest": "1" * 64})).points
    assert one.key == "7e07570f5cb0ff8f13e5524607d8cc7ad9d0d0b527d28ff18203c42d3528f5b1"


def test_keys_of_a_legal_plan_can_be_recomputed(planned, tiny):
    found = planned()
    assert found.key_format == key.FORMAT
    assert (found.deployment, found.served_name, found.model_digest) == ("plain", "tiny", tiny.digest)
    assert found.environment_digest == CHECK.digest and found.warnings == CHECK.warnings
    assert [p.name for p in found.loads] == ["chat-c4-r1", "chat-c4-r2"]
    for one in found.points:
        assert one.key == key.digest(found.key_parts, key.point_parts(one.load))
    assert len({one.key for one in found.points}) == 2
    assert {one.prompts.dataset for one in found.loads} == {"random"}
    assert Plan.model_validate(json.loads(found.model_dump_json())) == found
    assert found.estimate.max_model_len == 512 and found.estimate.kv_cache_gib == 1.0


def test_served_name_is_planned_and_in_no_key(planned):
    found, named = planned(), planned(served_name="openai/gpt-oss-120b")
    assert named.served_name == "openai/gpt-oss-120b" and named.points == found.points


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"port": 20123}, True),
        ({"variables": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CACHE_ROOT": "/scratch"}}, True),
        ({"options": {"max-model-len": "512"}}, True),
        ({"options": {"max-model-len": 256}}, False),
        ({"options": {"max-model-len": 512, "dtype": "float32"}}, False),
        ({"variables": {"VLLM_CPU_KVCACHE_SPACE": "2"}}, False),
        ({"topology": {"tensor_parallel": 2}}, False),
        ({"topology": {"executor": "ray"}}, False),
        ({"topology": {"replicas": 2}}, False),
        ({"topology": {"client": "own"}}, False),
        ({"trust": True}, False),
        ({"hardware": HARDWARE.model_copy(update={"host": "elsewhere", "probed_at": "later"})}, True),
        ({"hardware": HARDWARE.model_copy(update={"cpu_model": "another CPU"})}, False),
        ({"check": CHECK.model_copy(update={"digest": "0" * 64})}, False),
        ({"points": [point(1, name="other", workload="other"), point(2)]}, True),
        ({"points": [point(1, warmups=4), point(2)]}, False),
        ({"points": [point(1, warmup_tokens=16), point(2)]}, False),
        ({"points": [point(1, requests=64), point(2)]}, False),
        ({"points": [point(1, client_options={"burstiness": 0.5}), point(2)]}, False),
    ],
)
def test_ledger_key_depends_only_on_what_changes_results(planned, changes, same):
    assert (planned(**changes).points[0].key == planned().points[0].key) is same


def test_balancing_changes_the_key_unless_default(planned):
    server, router = (planned(topology={"data_parallel": 2, "balancing": who}).points[0].key for who in ("server", "router"))
    assert server == planned(topology={"data_parallel": 2}).points[0].key != router
    assert "balancing" not in planned().key_parts["topology"]


def test_routing_changes_the_key_unless_default(planned):
    turn, least = (planned(topology={"replicas": 2, "routing": how}).points[0].key for how in ("round_robin", "least_requests"))
    assert turn == planned(topology={"replicas": 2}).points[0].key != least
    assert "routing" not in planned(topology={"replicas": 2}).key_parts["topology"]


def test_trust_remote_code_is_in_the_options(planned):
    assert planned(trust=True).options["trust-remote-code"] is True
    assert "trust-remote-code" not in planned().options


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"options": {"max-modle-len": 512}}, "unknown_option", "max-model-len"),
        ({"topology": {"tensor_parallel": 3}}, "illegal_topology", "tensor_parallel 3"),
        ({"topology": {"pipeline_parallel": 2, "tensor_parallel": 2}}, "illegal_topology", "4 devices"),
        (
            {"topology": {"pipeline_parallel": 2}, "options": {"max-model-len": 512, "enforce-eager": True}},
            "illegal_topology",
            "`enforce-eager: false`",
        ),
        ({"variables": {"TIKTOKEN_ENCODINGS_BASE": "/encodings"}}, "bad_option", "variables.TIKTOKEN_ENCODINGS_BASE"),
    ],
)
def test_refusal_names_the_wrong_key(planned, changes, reason, words):
    with pytest.raises(PlanRefused) as refused:
        planned(**changes)
    assert refused.value.reason == reason
    assert words in refused.value.what and refused.value.what.startswith("deployments.plain ")


@pytest.mark.parametrize(
    ("lengths", "options", "words"),
    [
        ((480, 33), {}, "480 + 33 = 513 "),
        ((64, 32), {"random-prefix-len": 417}, "417 (random-prefix-len) + 64 + 32 = 513 "),
        ((64, 32), {"random-prefix-len": "417"}, "513"),
        ((480, 32), {}, None),
        ((64, 32), {"random-prefix-len": 416}, None),
    ],
)
def test_workload_longer_than_max_model_len_is_refused(planned, lengths, options, words):
    asked = [point(input_tokens=lengths[0], output_tokens=lengths[1], client_options=options)]
    if words is None:
        assert planned(points=asked).points
        return
    with pytest.raises(PlanRefused) as refused:
        planned(points=asked)
    assert words in refused.value.what and refused.value.what.count("workloads.chat") == 1


def test_too_long_row_is_no_claim_about_every_request():
    random = load(input_tokens=480, output_tokens=33)
    staged = random.model_copy(update={"prompts": StagedPrompts(dataset="staged", name="d", input_tokens=480, output_tokens=33)})
    texts = [legality.too_long({"chat": one}, 512) for one in (random, staged)]
    assert all(len(text) == 1 and "480 + 33 = 513 " in text[0] for text in texts) and texts[0] != texts[1]
    assert legality.too_long({"chat": staged}, 513) == ()
    assert "line 17 of a.jsonl" in legality.too_long({"chat": staged}, 512, {"chat": "line 17 of a.jsonl"})[0]


def test_refused_plan_names_the_longest_row(planned):
    staged = load().model_copy(update={"prompts": StagedPrompts(dataset="staged", name="d", input_tokens=480, output_tokens=33)})
    with pytest.raises(PlanRefused, match=r"line 17 of a\.jsonl"):
        planned(points=(staged,), longest_rows={staged.workload: "line 17 of a.jsonl"})


GRAPHS = {"max-model-len": 512, "max-cudagraph-capture-size": "workload"}


def test_graphs_for_workload_are_a_number_in_plan_and_key(planned):
    loads = [point(1), point(2, concurrency=30)]
    found = planned(hardware=GPUS, points=loads, options=GRAPHS)
    assert found.options["max-cudagraph-capture-size"] == 32
    assert found.key_parts["options"]["max-cudagraph-capture-size"] == "32"
    assert found.points[0].key != planned(hardware=GPUS, points=[point(1)], options=GRAPHS).points[0].key
    assert "max-cudagraph-capture-size" not in planned(points=loads, options=GRAPHS).options


def test_graphs_for_a_workload_without_a_limit_are_refused(planned):
    with pytest.raises(PlanRefused, match="chat-q2-r1") as refused:
        planned(hardware=GPUS, points=[point(name="chat-q2-r1", concurrency=None, request_rate=2.0)], options=GRAPHS)
    assert refused.value.reason == "bad_option"


@pytest.mark.parametrize("kept", ["keep", "none"])
def test_compile_cache_does_not_change_the_key(planned, kept):
    assert planned(compile_cache=kept) == planned()


def test_content_of_named_files_is_in_the_key_and_their_path_is_not(planned):
    def made(path, digest):
        given = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_TUNED_CONFIG_FOLDER": path}
        return planned(variables=given, contents={path: digest})

    one, moved, changed = made("/a", "1"), made("/b", "1"), made("/a", "2")
    assert one.points[0].key == moved.points[0].key != changed.points[0].key
    assert (one.variables["VLLM_TUNED_CONFIG_FOLDER"], one.contents) == ("/a", {"/a": "1"})
    assert one.key_parts["variables"]["VLLM_TUNED_CONFIG_FOLDER"] == "sha256:1"
    option = planned(options={"max-model-len": 512, "compilation-config": '{"plugin": "/a"}'}, contents={"/a": "1"})
    assert option.key_parts["options"]["compilation-config"] == {"plugin": "sha256:1"}


TWO_NODES = {"nodes": 2, "tensor_parallel": 2, "pipeline_parallel": 2, "executor": "ray"}


def test_deployments_variables_override_the_clusters(planned):
    found = planned(cluster=CLUSTER, variables={"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "8"})
    assert found.variables == {"NCCL_NET": "IB", "OMP_NUM_THREADS": "8", "VLLM_CPU_KVCACHE_SPACE": "1"}
    assert found.modules == ("brics/nccl",)
    assert found.key_parts["variables"] == found.variables and found.key_parts["modules"] == ["brics/nccl"]


def test_inherited_variables_count_in_the_key_like_given_ones(planned, monkeypatch):
    monkeypatch.setenv("NCCL_PROTO", "Simple")
    none, space = planned(), {"VLLM_CPU_KVCACHE_SPACE": "1"}
    ring = planned(inherited={"NCCL_ALGO": "Ring"})
    assert none == planned(inherited={}), "what is not handed in is not looked at"
    assert none.inherited == {} and none.key_parts["variables"] == space
    assert (ring.inherited, ring.variables) == ({"NCCL_ALGO": "Ring"}, space)
    assert ring.key_parts["variables"] == {"NCCL_ALGO": "Ring", **space}
    assert ring.points[0].key == planned(variables={"NCCL_ALGO": "Ring", **space}).points[0].key
    assert len({none.points[0].key, ring.points[0].key, planned(inherited={"NCCL_ALGO": "Tree"}).points[0].key}) == 3


def test_variables_of_the_cluster_are_checked(planned):
    harmful = CLUSTER.model_copy(update={"variables": {"TIKTOKEN_ENCODINGS_BASE": "/encodings"}})
    with pytest.raises(PlanRefused, match=r"variables\.TIKTOKEN_ENCODINGS_BASE") as refused:
        planned(cluster=harmful)
    assert refused.value.reason == "bad_option"


def test_refusal_names_the_variable_that_hides_gpus(planned):
    gpus = (Gpu(name="NVIDIA H200", memory_mib=143771),)
    hidden = HARDWARE.model_copy(update={"accelerator": "cuda", "gpus": gpus, "hidden_gpus": 3, "cuda_visible_devices": "1"})
    with pytest.raises(PlanRefused, match=r"has 1 \(CUDA_VISIBLE_DEVICES .*\b3 .*\b4 "):
        planned(hardware=hidden, topology={"tensor_parallel": 2})


def test_devices_are_counted_on_every_node(planned):
    found = planned(cluster=CLUSTER, topology=TWO_NODES)
    assert (found.topology.nodes, found.topology.devices_per_node, found.topology.world_size) == (2, 2, 4)
    with pytest.raises(PlanRefused, match="4 devices"):
        planned(cluster=CLUSTER, topology={**TWO_NODES, "nodes": 1})


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"interface": "ib0"}, False),
        ({"modules": ()}, False),
        ({"modules": ("brics/nccl", "gcc")}, False),
        ({"variables": {"NCCL_NET": "IB"}}, False),
        ({"partition": "gpu", "account": "me", "qos": "q", "max_minutes": 9, "scratch": "/x", "extra": ("--x",)}, True),
        ({"gpus_per_node": 4, "gpu_type": "h100", "constraint": "ib"}, True),
    ],
)
def test_cluster_keys_that_change_results_are_in_the_key(planned, change, same):
    def key_on(cluster):
        return planned(cluster=cluster, topology=TWO_NODES).points[0].key

    assert (key_on(CLUSTER.model_copy(update=change)) == key_on(CLUSTER)) is same


def test_interface_is_not_in_the_key_on_one_node(planned):
    def key_on(interface, **topology):
        return planned(cluster=CLUSTER.model_copy(update={"interface": interface}), topology=topology).points[0].key

    assert key_on("ib0") == key_on("hsn*")
    assert key_on("ib0", client="own") != key_on("hsn*", client="own"), "the client's requests cross it"
    assert key_on("ib0", client="own") != key_on("ib0")


@pytest.mark.parametrize(("partition", "fits"), [("1,1", True), ("2,0", False), ("1", False)])
def test_a_partition_of_the_layers_is_checked(planned, partition, fits):
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_PP_LAYER_PARTITION": partition}
    if fits:
        assert planned(topology={"pipeline_parallel": 2}, variables=variables).variables == variables
    else:
        with pytest.raises(PlanRefused, match="VLLM_PP_LAYER_PARTITION"):
            planned(topology={"pipeline_parallel": 2}, variables=variables)


def test_refusal_has_all_reasons(planned):
    with pytest.raises(PlanRefused) as refused:
        planned(options={"wrong-one": 1, "wrong-two": 2}, topology={"tensor_parallel": 3})
    assert refused.value.reason == "unknown_option"
    assert refused.value.what.count("\n  - ") == 4, "two options, the heads, and the devices"


@pytest.mark.parametrize(
    ("options", "unknown"),
    [
        (["max-model-len", "no-enable-prefix-caching", "compilation-config.level"], []),
        (["no-such-thing"], [("no-such-thing", None)]),
        (["dtpe"], [("dtpe", "dtype")]),
    ],
)
def test_negations_and_parts_of_options_are_known(options, unknown):
    found = [
        re.match(r"options\.(\S+): .*?(?:; did you mean (\S+)\?|\.$)", text)
        for text in refused_options(dict.fromkeys(options, 1), [], CHECK)
    ]
    assert [(one[1], one[2]) for one in found] == unknown


def test_suggested_option_is_never_a_refused_one():
    found = CHECK.model_copy(update={"serve_options": (*KNOWN, "tensor-parallel-size")})
    (words,) = refused_options({"tensor-paralel-size": 2}, [], found)
    assert "tensor-parallel-size" not in words.replace("tensor-paralel-size", "")


def test_values_are_checked_by_the_list_of_the_environment():
    listed = {
        "serve_arguments": (
            Argument(names=("dtype",), kind="text", choices=("auto", "bfloat16")),
            Argument(names=("max-model-len",), kind="integer"),
        ),
        "client_arguments": (Argument(names=("burstiness",), kind="number"),),
    }
    found = CHECK.model_copy(update={**listed, "vllm": "9.9"})
    given = {"dtype": "bf16", "max-model-len": 512, "chat-template": "/none.jinja"}
    sentences = refused_options(given, [point(client_options={"burstiness": "fast"})], found)
    assert [text.split(":")[0] for text in sentences] == [
        "options.dtype", "options.chat-template", "options.chat-template", "workloads.chat.client_options.burstiness",
    ]  # fmt: skip
    assert "bfloat16" in sentences[0] and "9.9" in sentences[0]
    assert refused_options({"dtype": "auto"}, [point(client_options={"burstiness": 0.5})], found) == []
