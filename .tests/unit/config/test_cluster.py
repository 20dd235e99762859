"""Cluster files: their content in the configuration, and messages with their own file and line."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from builders.paths import ROOT
from servemark.cli import reference
from servemark.config.cluster import Site
from servemark.config.expand import expand
from servemark.config.load import load, validate
from servemark.config.resolved import read_resolved
from servemark.errors import ConfigError

CONFIG = ROOT / "config"
SHIPPED = sorted((CONFIG / "clusters").glob("*.yaml"))

EXPERIMENT = """\
run: demo
cluster: site
models:
  tiny: {source: "builtin:tiny-dense"}
environments:
  cpu: {lock: cpu}
deployments:
  plain:
    model: tiny
    environment: cpu
    topology: {nodes: 2, tensor_parallel: 2, pipeline_parallel: 2}
workloads:
  chat: {dataset: random, input_tokens: 64, output_tokens: 32, requests: 32, concurrency: 4}
"""
SITE = """\
scheduler: slurm
gpus_per_node: 4
variables:
  NCCL_NET: IB
small_jobs:
  minutes: 5
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """An empty checkout; the function writes both files and returns the experiment's path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config" / "clusters").mkdir(parents=True)

    def write(site: str = SITE, experiment: str = EXPERIMENT) -> Path:
        Path("config/clusters/site.yaml").write_text(site)
        Path("my.yaml").write_text(experiment)
        return Path("my.yaml")

    return write


def refused(path: Path, **more) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, **more)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("value", ["24:00:00", "1:30", "1:30.5"])
def test_time_with_colons_is_refused_instead_of_read_in_base_60(checkout, value):
    text = refused(checkout(site=SITE.replace("minutes: 5", f"minutes: {value}")))
    assert "site.yaml:6" in text and value in text


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_cluster_files_fit_the_schema_and_the_types(path):
    data = yaml.safe_load(path.read_text())
    jsonschema.validate(data, reference.json_schema(Site))
    assert Site.model_validate(data).scheduler == "slurm"


def test_slurm_yaml_requests_only_a_whole_node():
    (path,) = [path for path in SHIPPED if path.name == "slurm.yaml"]
    assert Site.model_validate(yaml.safe_load(path.read_text())) == Site(scheduler="slurm")


def test_commented_keys_of_slurm_yaml_are_valid():
    """All commented keys are active, and the servers' nodes have a feature."""
    text = (CONFIG / "clusters" / "slurm.yaml").read_text()
    found = re.sub(r"^# ?((?:  )?[a-zA-Z_]+:( .*)?)$", r"\1", text, flags=re.MULTILINE)
    offered = Site.model_validate(yaml.safe_load(found))
    unset = {name for name in Site.model_fields if name not in offered.model_fields_set}
    assert unset == set()


def test_configuration_contains_the_cluster_file(checkout):
    config = load(checkout())
    assert config.cluster is not None
    assert (config.cluster.gpus_per_node, config.cluster.variables) == (4, {"NCCL_NET": "IB"})
    assert (config.cluster.small_jobs.minutes, config.cluster.exclusive, config.cluster.scratch) == (5, True, "/tmp")
    data = yaml.safe_load(EXPERIMENT)
    assert validate(data, [Path("my.yaml")]) == config
    assert validate({**data, "cluster": "config/clusters/site.yaml"}) == config


def test_resolved_configuration_keeps_the_cluster(checkout):
    config = expand(load(checkout()))
    Path("config.json").write_text(config.model_dump_json())
    assert read_resolved("config.json") == config


def test_cluster_argument_overrides_the_file(checkout):
    experiment = EXPERIMENT.replace("cluster: site\n", "")
    path = checkout(experiment=experiment)
    assert load(path, "site") == load(checkout())
    assert "my.yaml:10: deployments.plain.topology.nodes: " in refused(checkout(experiment=experiment))


def test_default_cluster_applies_without_a_key_cluster(checkout):
    checkout()
    data = yaml.safe_load(EXPERIMENT)
    named = validate(data)
    del data["cluster"]
    assert validate(data, [Path("my.yaml")], default_cluster="site") == named
    assert validate({**data, "cluster": "site"}, default_cluster="nowhere") == named


def test_cluster_null_is_this_machine(checkout):
    alone = EXPERIMENT.replace("cluster: site", "cluster: null").replace("nodes: 2, ", "")
    assert load(checkout(experiment=alone)).cluster is None


def test_cache_of_the_cluster_file_takes_precedence(checkout):
    path = checkout(SITE + "cache: /fast/cache\n", EXPERIMENT + "cache: here\n")
    assert str(load(path).cache) == "/fast/cache"
    assert ": cache: " in refused(checkout(SITE + "cache: results/demo\n"))


def test_unknown_cluster_gets_the_closest_name(checkout):
    message = refused(checkout(experiment=EXPERIMENT.replace("cluster: site", "cluster: stie")))
    assert "my.yaml:2: cluster: " in message and "config/clusters/stie.yaml" in message and "`site`" in message
    assert "topology" not in message


GPUS = "gpus_per_node: 4"

# (text of SITE, what takes its place with "#!" on the line the message must name, key, part of the message)
BAD = [
    (GPUS, "acount: x  #!", "acount", "`account`"),
    (GPUS, "workloads: x  #!", "workloads", ""),
    (GPUS, "tensor_parallel: 2  #!", "tensor_parallel", "NAME.topology"),
    (GPUS, "gpus_per_node: -1  #!", "gpus_per_node", "0"),
    (GPUS, "gpus_per_node: '4'  #!", "gpus_per_node", ""),
    (GPUS, "account: a b  #!", "account", ""),
    (GPUS, "account: 12345  #!", "account", ""),
    (GPUS, "partition: gpu;reboot  #!", "partition", ""),
    (GPUS, "constraint: a b  #!", "constraint", ""),
    (GPUS, "modules: [brics/nccl, 'a;b']  #!", "modules[1]", ""),
    (GPUS, "interface: hsn 0  #!", "interface", "`hsn0`"),
    (GPUS, "interface: 10.0.0.0/33  #!", "interface", "IPv4"),
    (GPUS, "interface: 7  #!", "interface", ""),
    (GPUS, "local_models: models  #!", "local_models", ""),
    (GPUS, "scratch: tmp  #!", "scratch", ""),
    (GPUS, "scratch: /a/very/long/way/down  #!", "scratch", "107"),
    (GPUS, "cache: $SCRATCH/c  #!", "cache", ""),
    (GPUS, "build_on: node  #!", "build_on", "allowed: login, job"),
    (GPUS, "exclusive: 'yes'  #!", "exclusive", ""),
    (GPUS, "max_minutes: 0  #!", "max_minutes", "1"),
    ("scheduler: slurm", "scheduler: slrm  #!", "scheduler", "`slurm`"),
    ("scheduler: slurm", "account: x  #!", "scheduler", ""),
    ("  minutes: 5", "  minuts: 5  #!", "small_jobs.minuts", "`minutes`"),
    ("  NCCL_NET: IB", "  NCCL_NET: true  #!", "variables.NCCL_NET", ""),
    ("  NCCL_NET: IB", "  nccl_net: IB  #!", "variables.nccl_net", ""),
    (
        "  NCCL_NET: IB",
        "  VLLM_USE_RUST_FRONTEND: 1  #!",
        "variables.VLLM_USE_RUST_FRONTEND",
        "",
    ),
    (
        "  NCCL_NET: IB",
        "  CUDA_VISIBLE_DEVICES: 1  #!",
        "variables.CUDA_VISIBLE_DEVICES",
        "",
    ),
    ("  NCCL_NET: IB", "  HF_TOKEN: IB  #!", "variables.HF_TOKEN", ""),
    *(
        (GPUS, f"extra: ['--mail-type=FAIL', '{option}']  #!", "extra[1]", words)
        for option, words in {
            "-A me": "sbatch",
            "--": "sbatch",
            "--nodes=3": "`topology`",
            "--gres=gpu:1": "gpus_per_node",
            "--gpus-per-task=1": "gpus_per_node",
            "--gpus=4": "gpus_per_node",
            "--time=10": "max_minutes",
            "--export=ALL": "`variables`",
            **dict.fromkeys(("--ntasks-per-node=4", "--ntasks", "--job-name=x", "--output=/dev/null", "--error=x"), ""),
            **dict.fromkeys(("--partition=gpu", "--part=gpu", "--account=x", "--wrap=true", "--requeue", "--no-requeue"), ""),
        }.items()
    ),
]


@pytest.mark.parametrize(("old", "new", "key", "text"), BAD, ids=[f"{number:03d}-{case[2]}" for number, case in enumerate(BAD)])
def test_fault_in_cluster_file_has_its_name_line_and_key(checkout, old, new, key, text):
    site = SITE.replace(old, new)
    line = next(number for number, row in enumerate(site.splitlines(), 1) if "#!" in row)
    if old == "scheduler: slurm" and key == "scheduler" and "account" in new:
        line = 1
    message = refused(checkout(site))
    start = rf"^  config/clusters/site\.yaml:{line}: {re.escape(key)}: .*(\n      .*)*"
    entry = re.search(start, message, re.MULTILINE)
    assert entry, message
    assert text in entry[0]


def test_option_no_kill_does_not_abbreviate_a_refused_one(checkout):
    assert load(checkout(SITE.replace(GPUS, f"{GPUS}\nextra: ['--no-kill']"))).cluster.extra == ("--no-kill",)


def test_message_has_the_faults_of_both_files(checkout):
    message = refused(checkout(SITE.replace("gpus", "gpu"), EXPERIMENT.replace("model: tiny", "model: tinny")))
    assert "  my.yaml:9: deployments.plain.model: " in message
    assert "  config/clusters/site.yaml:2: gpu_per_node: " in message and "`gpus_per_node`" in message


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ("", "my.yaml:2: cluster: config/clusters/site.yaml"),
        ("- a", "my.yaml:2: cluster: config/clusters/site.yaml"),
        ("a: [", "config/clusters/site.yaml:2"),
        ("scheduler: slurm\nqos: a\nqos: b\n", "config/clusters/site.yaml:3: qos: "),
        ("scheduler: &a [*a]", "config/clusters/site.yaml:1:"),
    ],
)
def test_file_that_is_not_a_cluster_file_is_refused(checkout, site, words):
    assert words in refused(checkout(site))


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ({"interface": "hsn0"}, "hsn0"),
        ({"interface": "hsn*"}, "hsn*"),
        ({"interface": "10.1.2.3/8"}, "10.0.0.0/8"),
        ({"modules": "brics/nccl"}, ("brics/nccl",)),
        ({"modules": ["gcc/13.2.0", "c++"]}, ("gcc/13.2.0", "c++")),
        ({"scratch": "$TMPDIR"}, "$TMPDIR"),
        ({"scratch": "${SLURM_TMPDIR}/a/rather/long/way"}, "${SLURM_TMPDIR}/a/rather/long/way"),
        ({"variables": {"FI_CXI_DEFAULT_TX_SIZE": 2048}}, {"FI_CXI_DEFAULT_TX_SIZE": "2048"}),
        ({"extra": ["--nodelist=node[1-4]", "--exclude=node7", "--mail-type=FAIL", "--gpu-bind=none"]},
         ("--nodelist=node[1-4]", "--exclude=node7", "--mail-type=FAIL", "--gpu-bind=none")),
        ({"constraint": "a&(b|c)", "client_constraint": "d"}, "a&(b|c)"),
    ],
)  # fmt: skip
def test_valid_values_are_kept(written, kept):
    assert getattr(Site(scheduler="slurm", **written), next(iter(written))) == kept


# Topologies on a cluster: (changed topology, line's key, part of the message); the cluster's nodes have 4 GPUs.
IMPOSSIBLE = [
    ("{nodes: 2, tensor_parallel: 16}", "nodes", "4, 8, 16"),
    ("{tensor_parallel: 8}", "nodes", "2, 4, 8"),
    ("{nodes: 2, tensor_parallel: 2, pipeline_parallel: 5}", "nodes", "5, 10"),
    ("{nodes: 1, tensor_parallel: 2, replicas: 3}", "nodes", "3, 6"),
    ("{nodes: 3, tensor_parallel: 2, data_parallel: 2}", "nodes", "1, 2"),
    ("{nodes: 2}", "nodes", "1"),
    ("{nodes: 3, tensor_parallel: 4}", "nodes", "1, 2, 4"),
    ("{nodes: 4, replicas: 2, tensor_parallel: 3}", "nodes", "2, 6"),
    ("{nodes: 2, replicas: 3}", "replicas", "1, 2, 4 and further multiples of 2"),
    ("{nodes: 4, replicas: 6}", "replicas", "1, 2, 4, 8 and further multiples of 4"),
    ("{nodes: 2, tensor_parallel: 2, data_parallel: 3}", "data_parallel", "3"),
    ("{nodes: 4, tensor_parallel: 4, data_parallel: 2}", "data_parallel", "2"),
    ("{nodes: 2, tensor_parallel: 2, data_parallel: 3, executor: ray}", "data_parallel", "3, 6"),
    ("{nodes: 4, tensor_parallel: 2, data_parallel: 6, executor: ray}", "data_parallel", "3, 6, 12"),
    ("{nodes: 3, tensor_parallel: 3, data_parallel: 2, executor: ray}", "data_parallel", "2, 6"),
    ("{nodes: 2, tensor_parallel: 8, data_parallel: 2}", "nodes", None),
    ("{nodes: 4, tensor_parallel: 8, data_parallel: 2}", "data_parallel", None),
    ("{nodes: 2, replicas: 1, executor: single}", "nodes", "1"),
]


@pytest.mark.parametrize(("topology", "key", "legal"), IMPOSSIBLE, ids=[case[0] for case in IMPOSSIBLE])
def test_impossible_topology_is_refused_with_legal_values(checkout, topology, key, legal):
    old = "{nodes: 2, tensor_parallel: 2, pipeline_parallel: 2}"
    message = refused(checkout(experiment=EXPERIMENT.replace(old, topology)))
    assert f"my.yaml:11: deployments.plain.topology.{key}: " in message
    listed = re.search(r"legal[^:\n]*: ([^;\n]*)", message)
    assert (listed and listed[1]) == legal


@pytest.mark.parametrize(
    ("key", "values", "words"),
    [
        ("replicas", "[1, 3]", "replicas[1]: "),
        (
            "nodes",
            "[2, 1, 3]",
            "nodes[2]: ",
        ),
    ],
)
def test_impossible_variant_is_refused_at_its_sweep(checkout, key, values, words):
    sweep = f"sweeps:\n  - over: deployments.plain\n    grid: {{topology.{key}: {values}}}\n"
    site = SITE.replace("gpus_per_node: 4", "gpus_per_node: 0")
    assert f"my.yaml:16: sweeps[0].grid.topology.{words}" in refused(checkout(site, EXPERIMENT + sweep))


def test_nodes_without_gpus_may_have_any_number_of_ranks(checkout):
    site = SITE.replace("gpus_per_node: 4", "gpus_per_node: 0")
    assert load(checkout(site, EXPERIMENT.replace("tensor_parallel: 2", "tensor_parallel: 64"))).cluster


@pytest.mark.parametrize(
    ("lock", "keys", "legal"),
    [
        ("cuda13", "exclusive: false", False),
        ("cuda12", "exclusive: false", False),
        ("cuda13", "exclusive: false\ngpus_per_node: 4", True),
        ("cuda13", "exclusive: true", True),
        ("cpu", "exclusive: false", True),
        ("auto", "exclusive: false", True),
    ],
)
def test_cuda_lock_file_needs_gpus_in_the_jobs(checkout, lock, keys, legal):
    experiment = EXPERIMENT.replace("lock: cpu", f"lock: {lock}")
    path = checkout(site=f"scheduler: slurm\n{keys}\n", experiment=experiment)
    if legal:
        load(path)
    else:
        text = refused(path)
        assert "my.yaml:6: environments.cpu.lock: " in text and "gpus_per_node" in text
