"""Valid configurations, and the examples in the documents."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from pathlib import Path

import jsonschema
import pydantic
import pytest
import yaml

from builders.paths import ROOT
from servemark.cli import reference
from servemark.config.expand import expand, points
from servemark.config.load import load, validate
from servemark.config.resolved import read_resolved
from servemark.config.topology import AskedTopology
from servemark.errors import ConfigError

CONFIG = ROOT / "config"
PAGE = ROOT / reference.CONFIGURATION


def small(**changes):
    return {
        "run": "demo",
        "models": {"tiny": {"source": "builtin:tiny-dense"}},
        "environments": {"cpu": {"lock": "cpu"}},
        "deployments": {"plain": {"model": "tiny", "environment": "cpu"}},
        "workloads": {"chat": {"dataset": "random", "input_tokens": 64, "output_tokens": 32, "requests": 32, "concurrency": 4}},
        **changes,
    }


def deployment(**keys):
    config = validate(small(deployments={"plain": {"model": "tiny", "environment": "cpu", **keys}}))
    return config.deployments["plain"]


def test_defaults_are_those_of_the_documents():
    config = validate(small())
    assert (str(config.cache), config.share_ledger, config.sweeps, config.accept_invalid) == (
        "results/cache",
        False,
        (),
        (),
    )
    assert config.timeouts.model_dump() == {
        "build": 3600, "cluster": 120, "copy_model": 3600, "start": 1800, "stall": 300, "point": 7200, "no_progress": 120, "stop": 30,
    }  # fmt: skip
    assert config.verdict.model_dump() == {
        "max_failed_fraction": 0, "min_duration_s": 1, "min_requests_per_slot": 3,
        "output_tokens_tolerance": 0, "input_tokens_tolerance": 0.05, "max_burst_fraction": 0.2, "max_foreign_cpu": 0.1,
        "max_client_cpu": 0.85, "min_client_overlap": 0.9, "max_rate_deviation": 0.05, "min_in_flight": 0.9,
        "max_repetition_spread": 0.1,
    }  # fmt: skip
    chat = config.workloads["chat"]
    assert (chat.repetitions, chat.seed, chat.warmups, chat.request_rate) == (1, 1, "auto", None)
    assert (chat.clients, chat.ask) == (1, "endpoint")
    plain = config.deployments["plain"]
    assert (plain.port, plain.options, plain.variables, plain.workloads) == ("auto", {}, {}, None)
    assert config.models["tiny"].trust_remote_code is False


@pytest.mark.parametrize(
    ("topology", "executor"),
    [
        ({}, "single"),
        ({"tensor_parallel": 2}, "mp"),
        ({"pipeline_parallel": 2}, "mp"),
        ({"tensor_parallel": 2, "executor": "ray"}, "ray"),
        ({"executor": "ray"}, "ray"),
        ({"data_parallel": 2}, "mp"),
        ({"replicas": 4}, "single"),
    ],
)
def test_default_executor_depends_on_the_ranks(topology, executor):
    assert deployment(topology=topology).topology.executor == executor


@pytest.mark.parametrize(
    ("topology", "devices_per_node", "all_nodes"),
    [
        ({}, 1, 1),
        ({"tensor_parallel": 4}, 4, 1),
        ({"replicas": 4, "client": "own"}, 4, 2),
        ({"nodes": 2, "replicas": 4}, 2, 2),
        ({"nodes": 2, "tensor_parallel": 2, "executor": "ray"}, 1, 2),
        ({"nodes": 2, "tensor_parallel": 4, "pipeline_parallel": 2}, 4, 2),
        ({"nodes": 4, "tensor_parallel": 8, "replicas": 2, "client": "own"}, 4, 5),
        ({"nodes": 2, "data_parallel": 4}, 2, 2),
        ({"nodes": 4, "tensor_parallel": 4, "data_parallel": 2, "executor": "ray"}, 2, 4),
    ],
)
def test_ranks_divide_over_nodes(topology, devices_per_node, all_nodes):
    found = AskedTopology(**topology)
    assert (found.devices_per_node, found.all_nodes) == (devices_per_node, all_nodes)
    record = found.record()
    assert record.devices_per_node * record.nodes == record.world_size
    assert record.model_dump(exclude={"devices_per_node"}) == found.model_dump()


def test_options_keep_values_and_get_kebab_case_names():
    options = {
        "max_model_len": 512,
        "enforce-eager": True,
        "no-enable-prefix-caching": True,
        "generation-config": None,
        "compilation-config.cudagraph_mode": "NONE",
        "cudagraph_capture_sizes": [1, 2],
        "kv_cache_dtype": "fp8",
        "gpu-memory-utilization": 0.9,
    }
    assert deployment(options=options).options == {
        "max-model-len": 512,
        "enforce-eager": True,
        "no-enable-prefix-caching": True,
        "generation-config": None,
        "compilation-config.cudagraph_mode": "NONE",
        "cudagraph-capture-sizes": [1, 2],
        "kv-cache-dtype": "fp8",
        "gpu-memory-utilization": 0.9,
    }


@pytest.mark.parametrize(
    "options",
    [
        {"max-cudagraph-capture-size": "workload"},
        {"max-cudagraph-capture-size": "512"},
        {"cudagraph-capture-sizes": "workload"},
        {"cudagraph-capture-sizes": 8},
        {"cudagraph-capture-sizes": ["1", 2]},
        {"max-cudagraph-capture-size": 512, "cudagraph-capture-sizes": [1, 512]},
        {"max-cudagraph-capture-size": None, "cudagraph-capture-sizes": "workload"},
    ],
)
def test_sizes_of_cuda_graphs_stay_as_given(options):
    assert deployment(options=options).options == options


def test_numbers_in_variables_become_text():
    assert deployment(variables={"A": 1, "B": 0.5, "C": "x", "_D": ""}).variables == {
        "A": "1", "B": "0.5", "C": "x", "_D": "",
    }  # fmt: skip


@pytest.mark.parametrize("port", ["auto", 1024, 8000, 65535])
def test_a_port_is_auto_or_a_number(port):
    assert deployment(port=port).port == port


@pytest.mark.parametrize(("given", "kept"), [(False, ()), (True, ("*/*",)), (["plain/*"], ("plain/*",)), ([], ())])
def test_accept_invalid_becomes_a_list_of_patterns(given, kept):
    assert validate(small(accept_invalid=given)).accept_invalid == kept


@pytest.mark.parametrize("source", ["builtin:tiny-moe", "./here", "/abs/model", "../up/model", "a/b/c"])
def test_valid_sources_stay_as_given(source):
    assert validate(small(models={"tiny": {"source": source}})).models["tiny"].source == str(
        source if source.startswith("builtin") else Path(source)
    )


def test_existing_folder_with_a_hub_like_name_is_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    assert validate(small(models={"tiny": {"source": "models/tiny"}})).models["tiny"].source == "models/tiny"


def test_tilde_is_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    config = validate(small(cache="~/cache", environments={"cpu": {"prefix": "~/env"}}, models={"tiny": {"source": "~/m"}}))
    assert (str(config.cache), str(config.environments["cpu"].prefix), config.models["tiny"].source) == (
        "/home/someone/cache",
        "/home/someone/env",
        "/home/someone/m",
    )


def test_number_as_run_name_is_accepted():
    assert validate(small(run=2026)).run == "2026"


@pytest.mark.parametrize("name", ["openai/gpt-oss-120b", "Qwen3", "llama3:8b", "a/b/c_1.2"])
def test_served_name_of_a_model(name):
    config = validate(small(models={"tiny": {"source": "builtin:tiny-dense", "served_name": name}, "other": {"source": "./x"}}))
    assert (config.served_name("tiny"), config.served_name("other")) == (name, "other")


def test_cache_inside_the_results_is_refused():
    with pytest.raises(ConfigError, match=r"--config: cache: "):
        validate(small(run="cache"))


def test_ordered_mappings_are_accepted():
    assert validate(json.loads(json.dumps(small()), object_pairs_hook=OrderedDict)) == validate(small())


def test_a_configuration_is_frozen():
    config = validate(small())
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        config.run = "other"
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        config.workloads["chat"].seed = 2


def test_configuration_equals_its_json_form():
    config = validate(small(sweeps=[{"over": "workloads.chat", "grid": {"seed": [1, 2]}}], accept_invalid=True))
    assert validate(json.loads(config.model_dump_json(exclude_unset=True))) == config


def test_resolved_configuration_is_read_back_unchanged(tmp_path):
    sweeps = [{"over": "deployments.plain", "grid": {"topology.tensor_parallel": [1, 2]}}]
    config = expand(validate(small(sweeps=sweeps, accept_invalid=["plain-*/*"], cache=str(tmp_path))))
    path = tmp_path / "config.json"
    path.write_text(config.model_dump_json())
    assert read_resolved(path) == config


@pytest.mark.parametrize("text", ["{", "[]", '{"run": "demo"}', None])
def test_invalid_resolved_configuration_is_refused(tmp_path, text):
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_resolved(path)
    assert str(path) in caught.value.what and caught.value.do


@pytest.mark.parametrize(("shared", "folder"), [(False, "results/demo/ledger"), (True, "results/cache/ledger")])
def test_ledger_is_in_the_results_unless_it_is_shared(shared, folder):
    assert validate(small(share_ledger=shared)).ledger_folder == Path(folder)


def test_types_work_without_validation_context():
    assert AskedTopology(tensor_parallel=2).executor == "mp"


# the documents


@pytest.mark.parametrize("path", [CONFIG / "config.yaml", *sorted((CONFIG / "examples").glob("*.yaml"))], ids=lambda p: p.name)
def test_shipped_configurations_fit_the_schema_and_the_types(path, monkeypatch):
    monkeypatch.chdir(CONFIG.parent)
    jsonschema.validate(yaml.safe_load(path.read_text()), reference.json_schema())
    assert load(path).deployments


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "../x"},
        {"models": {}},
        {"deployments": {"Plain": {"model": "tiny", "environment": "cpu"}}},
        {"environments": {"cpu": {"container": "x.sif"}}},
        {"share_ledger": "yes"},
        {"nonsense": 1},
    ],
    ids=str,
)
def test_the_schema_refuses_what_the_types_refuse(changes):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(small(**changes), reference.json_schema())
    with pytest.raises(ConfigError):
        validate(small(**changes))


def _blocks(language):
    return [text for kind, text in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE) if kind == language]


def test_examples_of_configuration_md_are_valid(tmp_path):
    smallest, topology, sweeps = _blocks("yaml")
    assert AskedTopology(**yaml.safe_load(topology)["topology"]).devices_per_node == 4
    path = tmp_path / "my.yaml"
    path.write_text(smallest + sweeps)
    config = load(path)
    assert config.run == "first" and len(config.sweeps) == 2


def test_message_in_configuration_md_is_the_real_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    smallest = _blocks("yaml")[0]
    compact = '  plain: {model: tiny, environment: cpu, variables: {VLLM_CPU_KVCACHE_SPACE: "1"}}\n'
    assert smallest.count(compact) == 1
    spread = "  plain:\n    model: tinny\n    topolgy: {tensor_parallel: 2}\n    environment: cpu\n"
    Path("my.yaml").write_text(smallest.replace(compact, spread))
    with pytest.raises(ConfigError) as caught:
        load(Path("my.yaml"))
    assert f"{caught.value}\n" in _blocks("")


@pytest.mark.parametrize(
    ("prices", "key"),
    [
        ({"gpu_hour": 2.5, "currency": "EUR"}, None),
        ({"gpu_hour": 2.5, "kwh": 0.3, "currency": "EUR"}, None),
        ({"gpu_hour": -1.0, "currency": "EUR"}, "prices.gpu_hour"),
        ({"gpu_hour": 2.5}, "prices"),
        ({"gpu_hour": 2.5, "currency": "E U R"}, "prices.currency"),
    ],
)
def test_prices_need_a_gpu_hour_and_a_currency(prices, key):
    if key is None:
        config = validate(small(prices=prices))
        assert config.prices is not None and config.prices.currency == "EUR"
    else:
        with pytest.raises(ConfigError) as refused:
            validate(small(prices=prices))
        assert key in str(refused.value)


@pytest.mark.parametrize(
    ("slo", "key"),
    [
        ({"ttft_ms": {"p95": 500, "p50": 100}, "tpot_ms": {"p99": 50.5}}, None),
        ({}, "slo"),
        ({"ttft_ms": {}}, "slo.ttft_ms"),
        ({"ttft_ms": {"p95": 0}}, "slo.ttft_ms.p95"),
        ({"ttft_ms": {"p90": 1}}, "slo.ttft_ms.p90"),
        ({"itl_ms": {"p95": 1}}, "slo.itl_ms"),
        ({"e2el_ms": {"p50": 200, "p95": 100}}, "slo.e2el_ms.p50"),
    ],
)
@pytest.mark.parametrize("of", ["run", "workload"])
def test_latency_targets_have_known_names_and_rising_limits(slo, key, of):
    workloads = {"chat": {**small()["workloads"]["chat"], "slo": slo}}
    given, place = (small(slo=slo), "") if of == "run" else (small(workloads=workloads), "workloads.chat.")
    if key is None:
        assert validate(given)
    else:
        with pytest.raises(ConfigError) as refused:
            validate(given)
        assert f"{place}{key}" in str(refused.value)
        if key.endswith("p90"):
            assert "allowed: p50, p95, p99" in str(refused.value)


def test_latency_targets_are_in_no_load_point():
    chat = small()["workloads"]["chat"]
    with_targets = expand(validate(small(workloads={"chat": {**chat, "slo": {"ttft_ms": {"p95": 500}}}}, slo={"tpot_ms": {"p50": 10}})))
    assert points(with_targets, "plain") == points(expand(validate(small())), "plain")
