"""``topology: auto``: what the choice needs, that it is kept, and that nothing else changes it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from builders.deployed import HARDWARE
from builders.paths import FIXTURES
from servemark.config.expand import expand
from servemark.config.load import load
from servemark.config.topology import AutomaticTopology
from servemark.errors import ConfigError
from servemark.machine import hardware
from servemark.planning import assumed
from servemark.records import Topologies
from servemark.run import scheduled, topologies
from servemark.weights import builtin

LLAMA = FIXTURES / "planning" / "Llama-3.3-70B-Instruct"
RUN = Path("results/r")
SITE = {"scheduler": "slurm", "gpus_per_node": 4, "gpu_type": "a10"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def configured(site=None, model=str(LLAMA), concurrency=1, topology="auto", length=8192, **more):
    workload = {"dataset": "random", "input_tokens": 1024, "output_tokens": 1024, "requests": 8, **more}
    workload["concurrency"] = concurrency if isinstance(concurrency, dict) else [concurrency]
    data = {
        "run": "r",
        "models": {"m": {"source": model, "load_format": "dummy"}},
        "environments": {"e": {"lock": "auto"}},
        "deployments": {"d": {"model": "m", "environment": "e", "topology": topology, "options": {"max-model-len": length}}},
        "workloads": {"w": workload},
    }
    if site:
        Path("site.yaml").write_text(yaml.safe_dump(site))
        data["cluster"] = "./site.yaml"
    Path("my.yaml").write_text(yaml.safe_dump(data))
    return expand(load(Path("my.yaml")))


def chosen(config, **more):
    found, choices = topologies.resolved(config, RUN, **more)
    shape = found.deployments["d"].topology
    return (shape.nodes, shape.tensor_parallel, shape.pipeline_parallel, shape.replicas), choices


def test_cluster_file_decides_with_a_model_that_is_not_staged():
    config = configured(SITE)
    assert isinstance(config.deployments["d"].topology, AutomaticTopology)
    shape, choices = chosen(config)
    assert shape == (3, 4, 3, 1) and "16.4 GiB" in choices["d"].why
    assert config.model_dump(mode="json")["deployments"]["d"]["topology"] == "auto"


def test_job_requests_the_nodes_of_the_choice():
    found, _ = topologies.resolved(configured(SITE), RUN)
    assert scheduled.deployment_request(found, "d", 1).nodes == 3


def test_key_gpu_comes_before_the_type_of_slurm():
    assert chosen(configured(SITE | {"gpu_type": "big", "gpu": "h200"}))[0] == (1, 2, 1, 1)
    assert chosen(configured(SITE | {"gpu": "80GiB,2TB/s,312TFLOP/s"}))[0] == (1, 2, 1, 1)


def test_probed_hardware_comes_before_the_cluster_file():
    RUN.mkdir(parents=True)
    assumed.node(assumed.gpu("h200")[0], 8).write(RUN / "hardware.json")
    config = configured({"scheduler": "slurm", "gpus_per_node": 4, "gpu_type": "unheard-of"})
    shape, choices = chosen(config)
    assert shape == (1, 2, 1, 1) and "4 x NVIDIA H200" in choices["d"].why


def test_load_decides_how_many_gpus_but_never_how_many_nodes():
    few, many, more = (chosen(configured(SITE | {"gpu": "h200"}, concurrency=count))[0] for count in (1, 400, 5000))
    assert few == (1, 2, 1, 1) and many == (1, 4, 1, 1) and more[0] == 1


def test_highest_load_of_a_search_decides_as_a_load_of_its_own_does():
    site, targets = SITE | {"gpu": "80GiB,2TB/s,312TFLOP/s"}, {"slo": {"ttft_ms": {"p95": 500}}, "requests": 1000}
    search = {"search": {"from": 1, "to": 256}}
    (shape, choices), (asked, others) = chosen(configured(site, concurrency=search, **targets)), chosen(configured(site, concurrency=256))
    assert shape == asked and shape != chosen(configured(site))[0]
    assert "256" in choices["d"].why and choices["d"].why == others["d"].why


def test_kept_choice_survives_another_load_and_another_estimate():
    config = configured(SITE)
    _, choices = chosen(config)
    topologies.keep(RUN, choices)
    assert chosen(configured(SITE | {"gpu": "h200"}, concurrency=400))[0] == (3, 4, 3, 1)
    # Without a model, a cluster file or a probe.
    assert chosen(configured({"scheduler": "slurm"}), choose=False)[0] == (3, 4, 3, 1)
    (RUN / topologies.FILE).unlink()
    assert chosen(configured(SITE | {"gpu": "h200"}))[0] == (1, 2, 1, 1)


def test_another_model_gets_its_own_choice_and_others_are_kept():
    topologies.keep(RUN, chosen(configured(SITE))[1])
    builtin.make("tiny-dense", Path("tiny"))
    shape, choices = chosen(configured(SITE, model=str(Path("tiny").absolute()), length=4096))
    assert shape == (1, 1, 1, 1)
    topologies.keep(RUN, {"other": choices["d"]})
    assert set(Topologies.read(RUN / topologies.FILE).deployments) == {"d", "other"}


def test_job_without_a_kept_choice_is_refused():
    with pytest.raises(ConfigError):
        topologies.resolved(configured(SITE), RUN, choose=False)


@pytest.mark.parametrize("site", [{"gpu_type": "unheard-of"}, {"gpu_type": None}, {"gpus_per_node": 0}], ids=str)
def test_unknown_gpus_are_refused_with_the_key_to_set(site):
    with pytest.raises(ConfigError) as refused:
        topologies.resolved(configured({name: value for name, value in (SITE | site).items() if value is not None}), RUN)
    assert refused.value.reason == "topology_not_chosen" and "`gpu`" in refused.value.do


def test_model_that_fits_nowhere_is_refused(monkeypatch):
    monkeypatch.setattr(hardware, "probe", lambda: assumed.node(assumed.gpu("a10")[0], 4))
    with pytest.raises(ConfigError) as refused:
        topologies.resolved(configured(), RUN)
    assert refused.value.reason == "topology_not_chosen"


def test_machine_without_a_cluster_is_probed(monkeypatch):
    monkeypatch.setattr(hardware, "probe", lambda: HARDWARE)
    shape, choices = chosen(configured(model="builtin:tiny-dense", length=4096))
    assert shape == (1, 1, 1, 1) and "CPUs" in choices["d"].why


def test_configuration_without_auto_needs_no_probe_and_no_file(monkeypatch):
    monkeypatch.setattr(hardware, "probe", lambda: pytest.fail("probed"))
    config = configured(topology={"tensor_parallel": 2})
    assert topologies.resolved(config, RUN) == (config, {})
    topologies.keep(RUN, {})
    assert not RUN.exists()


def test_sweep_over_options_keeps_auto_and_over_the_topology_replaces_it():
    text = yaml.safe_load(Path("my.yaml").read_text()) if configured(SITE) else {}
    for key, values, kept in (("options.max-num-seqs", [8, 16], True), ("topology.tensor_parallel", [2, 4], False)):
        Path("my.yaml").write_text(yaml.safe_dump(text | {"sweeps": [{"over": "deployments.d", "grid": {key: values}}]}))
        found = expand(load(Path("my.yaml"))).deployments.values()
        assert [isinstance(one.topology, AutomaticTopology) for one in found] == [kept, kept]
        sizes = [one.topology.tensor_parallel for one in found]
        assert sizes == ([1, 1] if kept else [2, 4])
