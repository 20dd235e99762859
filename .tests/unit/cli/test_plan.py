"""``servemark plan``: the fewest nodes and why fewer do not suffice, the YAML, bad input, and the time it takes."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from builders.paths import FIXTURES
from builders.recorded_site import only
from servemark.cli import main as cli
from servemark.planning import memory
from servemark.weights import builtin

LLAMA = FIXTURES / "planning" / "Llama-3.3-70B-Instruct"
GPT_OSS = FIXTURES / "planning" / "gpt-oss-120b-config.json"
A10 = ("--gpu", "a10", "--gpus-per-node", "4", "--context", "8192")
BY_HAND = (
    "model_type=llama,hidden_size=8192,num_hidden_layers=80,num_attention_heads=64,num_key_value_heads=8,intermediate_size=28672,"
    "vocab_size=128256,torch_dtype=bfloat16"
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Plan in an empty folder, without a program in the PATH."""
    monkeypatch.chdir(tmp_path)
    only(tmp_path / "bin", monkeypatch, {})


def plan(capsys, *arguments) -> tuple[int, str, str]:
    code = cli.main(["plan", *map(str, arguments)])
    return code, *capsys.readouterr()


def planned(capsys, *arguments):
    code, out, _ = plan(capsys, *arguments, "--json")
    return code, json.loads(out)


def test_llama_70b_needs_three_nodes_of_four_a10_and_a_division_gives_two(capsys):
    """150 GB over nodes of 100 GB are two nodes by a division, as a published blueprint advises."""
    code, found = planned(capsys, LLAMA, *A10)
    assert (code, found["nodes"], found["gpus"], found["nodes_by_division"]) == (0, 3, 12, 2)
    assert found["topologies"][0]["topology"] == {"nodes": 3, "tensor_parallel": 4, "pipeline_parallel": 3}
    assert found["not_fewer"]["topology"] == {"nodes": 2, "tensor_parallel": 4, "pipeline_parallel": 2}
    code, out, _ = plan(capsys, LLAMA, *A10)
    # What a GPU has, what weights and vLLM take, what one request needs.
    assert code == 0 and all(number in out for number in ("20.1 GiB", "16.4 GiB", "5.0 GiB", "0.31 GiB"))


def test_options_without_effect_on_the_ranking_are_named(capsys):
    options = ("--option", "quantization=fp8", "--option", "kv-cache-dtype=fp8", "--option", "enforce-eager=True")
    code, found = planned(capsys, LLAMA, *A10, *options)
    assert (code, found["options_without_effect"]) == (0, ["quantization", "enforce-eager"])
    # A switch may be given with its value, and the YAML has it as one.
    (deployment,) = yaml.safe_load(found["yaml"])["deployments"].values()
    assert deployment["options"]["enforce-eager"] is True
    assert "no effect on this result: quantization" in plan(capsys, LLAMA, *A10, *options)[1]


def test_option_that_adds_topologies_has_an_effect(capsys):
    gpu = ("--gpu", "h100", "--gpus-per-node", 4, "--nodes", 2, "--context", 4096)
    _, found = planned(capsys, GPT_OSS, *gpu, "--option", "enable-expert-parallel", "--option", "block-size=16")
    assert found["options_without_effect"] == ["block-size"]


def test_options_without_effect_cost_no_second_estimate(capsys, monkeypatch):
    calls, estimate = [], memory.estimate
    monkeypatch.setattr(memory, "estimate", lambda *given: calls.append(given) or estimate(*given))
    # Two sizes: the estimates of one are remembered.
    plain = plan(capsys, LLAMA, "--gpu", "24.1GiB", *A10[2:])[0], len(calls)
    options = ("--option", "quantization=fp8", "--option", "enforce-eager", "--option", "max-num-seqs=64")
    assert (plan(capsys, LLAMA, "--gpu", "24.2GiB", *A10[2:], *options)[0], len(calls)) == (plain[0], 2 * plain[1])


def test_options_of_the_topology_are_refused_before_the_plan(capsys):
    code, out, err = plan(capsys, LLAMA, *A10, "--option", "tensor-parallel-size=4")
    assert (code, out) == (2, "") and "topology.tensor_parallel" in err


def test_unreachable_targets_are_not_reported_as_missing_memory(capsys):
    code, out, err = plan(capsys, LLAMA, *A10, "--nodes", "4", "--slo", "ttft_ms=1")
    assert code == 1 and "can meet the targets" in out and "Nothing on" not in out and "--slo" in err
    assert planned(capsys, LLAMA, *A10, "--nodes", "4", "--slo", "ttft_ms=1")[1]["miss_targets"]


def test_hub_name_without_prefix_gets_hint_with_prefix(capsys):
    code, _, err = plan(capsys, "org/name", *A10)
    assert code == 2 and "hf:org/name" in err


def test_two_nodes_do_not_fit_and_exit_with_1(capsys):
    code, out, err = plan(capsys, LLAMA, *A10, "--nodes", "2")
    assert code == 1 and "tensor_parallel 4, pipeline_parallel 2" in out and "2 node(s)" in err
    assert planned(capsys, LLAMA, *A10, "--nodes", "2")[1]["topologies"] == []


@pytest.mark.parametrize("model", [BY_HAND, LLAMA / "config.json"], ids=["by hand", "config.json"])
def test_shape_without_a_folder_gives_the_same_topologies(capsys, model):
    (_, whole), (code, found) = planned(capsys, LLAMA, *A10), planned(capsys, model, *A10)
    assert code == 0 and found["topologies"] == whole["topologies"]


def test_more_requests_in_flight_need_more_nodes(capsys):
    code, found = planned(capsys, LLAMA, *A10, "--concurrency", 64)
    assert (code, found["nodes"], found["topologies"][0]["requests_held"]) == (0, 5, 64)
    assert found["not_fewer"]["topology"]["nodes"] == 4
    assert [one["holds_load"] for one in found["topologies"][:2]] == [True, False]
    assert plan(capsys, LLAMA, *A10, "--concurrency", 64, "--nodes", 4)[0] == 1
    more, same = plan(capsys, LLAMA, *A10, "--concurrency", 64)[1], plan(capsys, LLAMA, *A10)[1]
    assert re.search(r"`topology: auto`\D* 3 ", more) and "5 node(s)" in more and "topology: auto" not in same


def test_advice_for_one_gpu_agrees_with_the_requests_that_it_holds(capsys):
    gpu = ("--gpu", "h200", "--gpus-per-node", 2, "--context", 4096, "--nodes", 1)
    found = {load: planned(capsys, GPT_OSS, *gpu, "--concurrency", load)[1]["topologies"] for load in (400, 512)}
    held, advice = ({}, {})
    for load, topologies in found.items():
        one, two = (next(e for e in topologies if e["topology"] == sizes) for sizes in ({}, {"tensor_parallel": 2}))
        held[load], advice[load] = one["requests_held"], two["advice"].get("one_gpu_suffices", "")
    assert held == {400: 400, 512: 437}
    assert "holds 437 requests of 4,096 tokens" in advice[400] and advice[512] == ""


@pytest.mark.parametrize(("gpus", "nodes", "first"), [(4, 1, (1, 4)), (3, 2, (2, 4))])
def test_pipeline_stages_inside_a_node_may_need_fewer_gpus(capsys, gpus, nodes, first):
    """The first topology needs 4 GPUs, and 3 GPUs of one node hold the load with 3 pipeline stages."""
    load = ("--gpu", "h200", "--gpus-per-node", gpus, "--nodes", nodes, "--context", 8192, "--concurrency", 64)
    found = planned(capsys, LLAMA, *load)[1]
    assert (found["nodes"], found["gpus"]) == first
    assert min(one["gpus"] for one in found["topologies"] if one["holds_load"]) == 3
    assert found["not_fewer"]["topology"] == {"tensor_parallel": 2}
    out = plan(capsys, LLAMA, *load)[1]
    (claim,) = (line for line in out.splitlines() if "the fewest that hold the model and the load" in line)
    assert "without pipeline stages" in claim and "1 node(s), 3 GPU(s)" in out and "Dividing" not in out
    assert "2 GPU(s) do not suffice" in out and "1 node(s) do not" not in out


def test_tensor_parallel_stays_within_a_node(capsys):
    _, found = planned(capsys, LLAMA, *A10, "--nodes", 8)
    every = [one["topology"] for part in ("topologies", "refused") for one in found[part]]
    assert len(every) > 50 and max(one.get("tensor_parallel", 1) for one in every) == 4


def test_target_leaves_out_topologies_whose_bound_exceeds_it(capsys):
    h200 = ("--gpu", "h200", "--gpus-per-node", 4, "--context", 8192, "--concurrency", 64)
    (_, free), (code, bound) = planned(capsys, LLAMA, *h200), planned(capsys, LLAMA, *h200, "--slo", "tpot_ms=20")
    assert code == 0 and len(bound["topologies"]) + len(bound["miss_targets"]) == len(free["topologies"])
    assert all(one["least_tpot_ms"] <= 20 for one in bound["topologies"])
    assert bound["miss_targets"] and all(one["least_tpot_ms"] > 20 for one in bound["miss_targets"])
    assert plan(capsys, LLAMA, *h200, "--slo", "tpot_ms=1", "--nodes", 1)[0] == 1


def test_options_of_the_server_count(capsys):
    _, found = planned(capsys, LLAMA, *A10, "--option", "kv-cache-dtype=fp8")
    _, plain = planned(capsys, LLAMA, *A10)
    fp8, bf16 = (one["topologies"][0]["kv_cache_tokens"] for one in (found, plain))
    assert fp8 == pytest.approx(2 * bf16, rel=0.01) and "kv-cache-dtype: fp8" in found["yaml"]


@pytest.mark.parametrize(("option", "load", "longest"), [("4096", 4096, 4096), ("auto", 131_072, None)])
def test_max_model_len_without_context_is_the_length_of_a_request(capsys, option, load, longest):
    gpu = ("--gpu", "a10", "--gpus-per-node", 4)
    code, out, _ = plan(capsys, LLAMA, *gpu, "--option", f"max-model-len={option}")
    assert code == 0 and f"of {load // 2} + {load // 2} tokens" in out
    found = planned(capsys, LLAMA, *gpu, "--option", f"max-model-len={option}")[1]["topologies"][0]["max_model_len"]
    assert longest is None or found == longest


def test_server_may_take_longer_requests_than_the_load_has(capsys):
    code, found = planned(capsys, LLAMA, *A10, "--option", "max-model-len=16K")
    assert (code, found["topologies"][0]["max_model_len"]) == (0, 16_384)


def test_gpu_by_hand_with_the_same_numbers_gives_the_same_ranking(capsys):
    (_, named), (code, own) = (
        planned(capsys, LLAMA, "--gpu", gpu, "--gpus-per-node", 4, "--context", 8192)
        for gpu in ("a10", f"{23028 / 1024}GiB,0.6TB/s,125TFLOP/s")
    )
    assert code == 0 and own["topologies"] == named["topologies"]
    memory_only = planned(capsys, LLAMA, "--gpu", "24GiB", "--gpus-per-node", 4, "--context", 8192)[1]
    assert memory_only["nodes"] == 3 and memory_only["topologies"][0]["bound_output_tokens_per_s"] is None and memory_only["no_bound"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["nowhere", *A10],
        ["num_hidden_layers=80", *A10],
        ["hidden_size=8192,oops", *A10],
        ["", *A10],
        ["x" * 5000, *A10],
        ["~nobody-of-this-name/model", *A10],
        [f"{BY_HAND},hidden_size=4096", *A10],
        [f"{BY_HAND},quantization_config=fp8,quantization_config.quant_method=fp8", *A10],
        [str(LLAMA), "--gpu", "a11", "--gpus-per-node", "4"],
        [str(LLAMA), "--gpu", "24GiB,0.6TB/s", "--gpus-per-node", "4"],
        [str(LLAMA), "--gpu", "24GiB,0TB/s,0TFLOP/s", "--gpus-per-node", "4"],
        [str(LLAMA), "--gpu", "24GiB,1TB/s,0TFLOP/s", "--gpus-per-node", "4"],
        [str(LLAMA), "--gpu", "0.0001GiB", "--gpus-per-node", "4", "--context", "100"],
        [str(LLAMA), "--gpu", "99999999999999999999999GiB", "--gpus-per-node", "4"],
        [str(LLAMA), *A10, "--slo", "tpot=20"],
        [str(LLAMA), *A10, "--slo", "ttft_ms=1,ttft_ms=2"],
        [str(LLAMA), *A10, "--slo", ""],
        [str(LLAMA), *A10, "--option", "block-size=16", "--option", "block_size=32"],
        [str(LLAMA), "--gpu", "24GiB", "--gpus-per-node", "4", "--slo", "tpot_ms=20"],
        [str(LLAMA), *A10, "--nodes", "0"],
        [str(LLAMA), *A10, "--output-tokens", "8192"],
        [str(LLAMA), *A10, "--output-tokens", "0"],
        [str(LLAMA), "--gpu", "a10", "--gpus-per-node", "4", "--context", "1"],
        [str(LLAMA), *A10, "--option", "kv-cache-dtype="],
        [str(LLAMA), *A10, "--nodes", "8", "--concurrency", "64", "--option", "max-model-len=4096"],
        [str(LLAMA), *A10, "--option", "max-model-len=long"],
        [str(LLAMA), *A10, "--option", f"max-num-batched-tokens={'9' * 5000}"],
        [str(LLAMA), *A10, "--option", "max-cudagraph-capture-size=99999999999999999999"],
        [str(LLAMA), "--gpu", "a10", "--gpus-per-node", "4", "--option", "max-model-len=99999999999999999999"],
        [str(LLAMA), *A10, "--option", "kv-cach-dtype=fp8"],
        [str(LLAMA), *A10, "--option", "gpu-memory-utilization=much"],
    ],
    ids=lambda arguments: " ".join(arguments)[:100],
)
def test_bad_input_exits_with_2(capsys, arguments):
    # A folder that would be a model: no argument may stand for it by accident.
    Path("config.json").write_text((LLAMA / "config.json").read_text())
    code, out, err = plan(capsys, *arguments)
    assert (code, out) == (2, "") and "what to do" in err and len(err) < 1500


@pytest.mark.parametrize(
    "wrong",
    [
        BY_HAND.replace("num_key_value_heads=8", "num_key_value_heads=0"),
        BY_HAND.replace("num_hidden_layers=80", "num_hidden_layers=0"),
        BY_HAND.replace("vocab_size=128256,", ""),
        BY_HAND.replace("num_hidden_layers=80", "num_hidden_layers=80000"),
        BY_HAND.replace("bfloat16", "int3"),
        f"{BY_HAND},oops",
    ],
    ids=["no KV heads", "no layers", "no vocabulary", "too many layers", "unknown dtype", "no value"],
)
def test_shape_by_hand_is_not_looked_for_in_files(capsys, wrong):
    code, out, err = plan(capsys, wrong, *A10)
    assert (code, out) == (2, "") and "MODEL" in err and "look at" not in err and "checkpoint" not in err
    assert "config.json" not in err.replace("keys of config.json", "")


def test_pasted_yaml_is_a_configuration_that_check_accepts(capsys, monkeypatch):
    builtin.make("tiny-dense", Path("tiny"))
    _, found = planned(capsys, "tiny", "--gpu", "l4", "--gpus-per-node", 2, "--context", 512, "--concurrency", 4)
    workload = {"dataset": "random", "input_tokens": 64, "output_tokens": 32, "requests": 8, "concurrency": [4]}
    pasted = yaml.safe_load(found["yaml"]) | {"run": "r", "workloads": {"w": workload}}
    # No environment can be built in this folder without wheels: a stand-in of an interpreter that finds vLLM takes its place.
    python = Path("env/bin/python")
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 1\n")
    python.chmod(0o755)
    pasted["environments"] = {"cuda": {"prefix": "env"}}
    Path("my.yaml").write_text(yaml.safe_dump(pasted))
    assert cli.main(["check", "my.yaml"]) == 0
    assert "valid" in capsys.readouterr().out


def test_pasted_topology_over_nodes_is_legal_in_a_configuration_with_a_cluster(capsys):
    from servemark.config.load import load

    found = yaml.safe_load(planned(capsys, LLAMA, *A10)[1]["yaml"])
    Path("site.yaml").write_text("{scheduler: slurm, gpus_per_node: 4}\n")
    workload = {"dataset": "random", "input_tokens": 64, "output_tokens": 32, "requests": 8, "concurrency": [4]}
    models = {name: {"source": "builtin:tiny-dense"} for name in found["deployments"]}
    Path("my.yaml").write_text(
        yaml.safe_dump(found | {"run": "r", "cluster": "./site.yaml", "models": models, "workloads": {"w": workload}})
    )
    (deployment,) = load(Path("my.yaml")).deployments.values()
    assert (deployment.topology.nodes, deployment.topology.world_size) == (3, 12)


def test_plan_takes_less_than_five_seconds_of_a_core():
    """Process start included; the time of this process's core, because other programs may have the machine."""
    options = ("quantization=fp8", "kv-cache-dtype=fp8", "enforce-eager=True", "max-num-seqs=512")
    load = ["--concurrency", "64", "--nodes", "32", *(word for option in options for word in ("--option", option))]
    command = [sys.executable, "-m", "servemark.cli", "plan", str(LLAMA), *A10, *load]
    took = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    # The best of three: a busy machine slows down a core too. An idle one takes about a second.
    assert min(took) < 5.0
