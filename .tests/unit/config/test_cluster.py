"""Cluster files: what they become, and their faults told with their own file and line."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from builders.paths import ROOT
from servemark.config import document
from servemark.config.cluster import Site
from servemark.config.expand import expand
from servemark.config.load import load, read_resolved, validate
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
    """An empty checkout; returns a function that writes both files and gives back the experiment's path."""
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


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_cluster_files_fit_the_schema_and_the_types(path):
    data = yaml.safe_load(path.read_text())
    jsonschema.validate(data, document.json_schema(Site))
    assert Site.model_validate(data).scheduler == "slurm"


def test_the_file_to_edit_asks_for_nothing_but_a_whole_node():
    (path,) = [path for path in SHIPPED if path.name == "slurm.yaml"]
    assert Site.model_validate(yaml.safe_load(path.read_text())) == Site(scheduler="slurm")


def test_what_the_file_to_edit_offers_in_comments_is_valid():
    """Every commented key, taken in, with a feature for the servers' nodes as the last of them asks."""
    text = (CONFIG / "clusters" / "slurm.yaml").read_text()
    found = re.sub(r"^# ?((?:  )?[a-zA-Z_]+:( .*)?)$", r"\1", text, flags=re.MULTILINE)
    offered = Site.model_validate(yaml.safe_load(found))
    unset = {name for name in Site.model_fields if name not in offered.model_fields_set}
    assert unset == set()


def test_the_named_files_content_is_in_the_configuration(checkout):
    config = load(checkout())
    assert config.cluster is not None
    assert (config.cluster.gpus_per_node, config.cluster.variables) == (4, {"NCCL_NET": "IB"})
    assert (config.cluster.small_jobs.minutes, config.cluster.exclusive, config.cluster.scratch) == (5, True, "/tmp")
    data = yaml.safe_load(EXPERIMENT)
    assert validate(data, [Path("my.yaml")]) == config
    assert validate({**data, "cluster": "config/clusters/site.yaml"}) == config


def test_the_cluster_survives_the_resolved_configuration(checkout):
    config = expand(load(checkout()))
    Path("config.json").write_text(config.model_dump_json())
    assert read_resolved("config.json") == config


def test_a_cluster_can_be_given_beside_the_file(checkout):
    experiment = EXPERIMENT.replace("cluster: site\n", "")
    path = checkout(experiment=experiment)
    assert load(path, "site") == load(checkout())
    assert "my.yaml:10: deployments.plain.topology.nodes: more than one node needs" in refused(checkout(experiment=experiment))


def test_a_profiles_cluster_holds_when_the_configuration_names_none(checkout):
    checkout()
    data = yaml.safe_load(EXPERIMENT)
    named = validate(data)
    del data["cluster"]
    assert validate(data, [Path("my.yaml")], default_cluster="site") == named
    assert validate({**data, "cluster": "site"}, default_cluster="nowhere") == named


def test_null_is_this_machine(checkout):
    alone = EXPERIMENT.replace("cluster: site", "cluster: null").replace("nodes: 2, ", "")
    assert load(checkout(experiment=alone)).cluster is None


def test_the_clusters_cache_takes_the_place_of_the_experiments(checkout):
    path = checkout(SITE + "cache: /fast/cache\n", EXPERIMENT + "cache: here\n")
    assert str(load(path).cache) == "/fast/cache"
    assert "lie inside one another" in refused(checkout(SITE + "cache: results/demo\n"))


def test_an_unknown_name_gets_the_closest_one(checkout):
    message = refused(checkout(experiment=EXPERIMENT.replace("cluster: site", "cluster: stie")))
    assert "my.yaml:2: cluster: there is no file config/clusters/stie.yaml; did you mean `site`?" in message
    assert "allowed: site" in message
    assert "needs a scheduler" not in message


GPUS = "gpus_per_node: 4"

# (text of SITE, what takes its place with "#!" on the line the message must name, key, part of the message)
BAD = [
    (GPUS, "acount: x  #!", "acount", "is an unknown key; did you mean `account`?"),
    (GPUS, "workloads: x  #!", "workloads", "it belongs at the top level"),
    (GPUS, "tensor_parallel: 2  #!", "tensor_parallel", "it belongs under deployments.NAME.topology"),
    (GPUS, "gpus_per_node: -1  #!", "gpus_per_node", "must be at least 0"),
    (GPUS, "gpus_per_node: '4'  #!", "gpus_per_node", "without quotes"),
    (GPUS, "account: a b  #!", "account", "one word"),
    (GPUS, "account: 12345  #!", "account", "put it in quotes"),
    (GPUS, "partition: gpu;reboot  #!", "partition", "one word"),
    (GPUS, "constraint: a b  #!", "constraint", "joined by & or |"),
    (GPUS, "modules: [brics/nccl, 'a;b']  #!", "modules[1]", "the name of a module"),
    (GPUS, "interface: hsn 0  #!", "interface", "must be an interface `hsn0`"),
    (GPUS, "interface: 10.0.0.0/33  #!", "interface", "is no IPv4 network"),
    (GPUS, "interface: 7  #!", "interface", "must be an interface"),
    (GPUS, "local_models: models  #!", "local_models", "must be a folder of the node"),
    (GPUS, "scratch: tmp  #!", "scratch", "must be a folder of the node"),
    (GPUS, "scratch: /a/very/long/way/down  #!", "scratch", "at most 107 bytes"),
    (GPUS, "cache: $SCRATCH/c  #!", "cache", "variables are not expanded here"),
    (GPUS, "build_on: node  #!", "build_on", "allowed: login, job"),
    (GPUS, "exclusive: 'yes'  #!", "exclusive", "true or false, without quotes"),
    (GPUS, "max_minutes: 0  #!", "max_minutes", "must be at least 1"),
    ("scheduler: slurm", "scheduler: slrm  #!", "scheduler", "is not one of the choices; did you mean `slurm`?"),
    ("scheduler: slurm", "account: x  #!", "scheduler", "is missing"),
    ("  minutes: 5", "  minuts: 5  #!", "small_jobs.minuts", "did you mean `minutes`?"),
    ("  NCCL_NET: IB", "  NCCL_NET: true  #!", "variables.NCCL_NET", "ambiguous"),
    ("  NCCL_NET: IB", "  nccl_net: IB  #!", "variables.nccl_net", "upper-case"),
    (
        "  NCCL_NET: IB",
        "  VLLM_USE_RUST_FRONTEND: 1  #!",
        "variables.VLLM_USE_RUST_FRONTEND",
        "does not run the middleware",
    ),
    (
        "  NCCL_NET: IB",
        "  CUDA_VISIBLE_DEVICES: 1  #!",
        "variables.CUDA_VISIBLE_DEVICES",
        "in a job the scheduler sets it",
    ),
    ("  NCCL_NET: IB", "  HF_TOKEN: IB  #!", "variables.HF_TOKEN", "looks like a secret"),
    *(
        (GPUS, f"extra: ['--mail-type=FAIL', '{option}']  #!", "extra[1]", words)
        for option, words in {
            "-A me": "must be one option of sbatch",
            "--": "must be one option of sbatch",
            "--nodes=3": "is set by servemark: it follows from `topology`",
            "--ntasks-per-node=4": "one task on each node",
            "--ntasks": "one task on each node",
            "--gres=gpu:1": "gpus_per_node",
            "--gpus-per-task=1": "gpus_per_node",
            "--gpus=4": "gpus_per_node",
            "--time=10": "max_minutes caps it",
            "--job-name=x": "names its jobs",
            "--output=/dev/null": "names its jobs",
            "--error=x": "names its jobs",
            "--partition=gpu": "under its own key",
            "--part=gpu": "under its own key",
            "--account=x": "under its own key",
            "--wrap=true": "what the job runs",
            "--requeue": "starts anew by itself",
            "--no-requeue": "starts anew by itself",
            "--export=ALL": "add variables under `variables`",
        }.items()
    ),
]


@pytest.mark.parametrize(("old", "new", "key", "text"), BAD, ids=[f"{number:03d}-{case[2]}" for number, case in enumerate(BAD)])
def test_a_fault_is_told_with_the_cluster_files_own_name_line_and_key(checkout, old, new, key, text):
    site = SITE.replace(old, new)
    line = next(number for number, row in enumerate(site.splitlines(), 1) if "#!" in row)
    if text == "is missing":
        line = 1
    message = refused(checkout(site))
    start = rf"^  config/clusters/site\.yaml:{line}: {re.escape(key)}: .*(\n      .*)*"
    entry = re.search(start, message, re.MULTILINE)
    assert entry, message
    assert text in entry[0]


def test_faults_of_both_files_are_told_together(checkout):
    message = refused(checkout(SITE.replace("gpus", "gpu"), EXPERIMENT.replace("model: tiny", "model: tinny")))
    assert message.startswith("The configuration has 2 problems")
    assert "  my.yaml:9: deployments.plain.model" in message
    assert "  config/clusters/site.yaml:2: gpu_per_node: is an unknown key; did you mean `gpus_per_node`?" in message


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ("", "my.yaml:2: cluster: config/clusters/site.yaml must be a mapping"),
        ("- a", "my.yaml:2: cluster: config/clusters/site.yaml must be a mapping"),
        ("a: [", "config/clusters/site.yaml:2"),
        ("scheduler: slurm\nqos: a\nqos: b\n", "config/clusters/site.yaml:3: qos: this key is already in line 2"),
        ("scheduler: &a [*a]", "contains itself"),
    ],
)
def test_a_file_that_is_no_cluster_is_refused(checkout, site, words):
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
def test_values_that_are_taken(written, kept):
    assert getattr(Site(scheduler="slurm", **written), next(iter(written))) == kept


# Topologies on a cluster: (changed topology, line's key, part of the message); the cluster's nodes have 4 GPUs.
IMPOSSIBLE = [
    ("{nodes: 2, tensor_parallel: 16}", "nodes", "16 ranks on 2 node(s) take 8 devices of each, and the cluster's nodes "
     "have 4 (gpus_per_node); legal for `nodes` here: 4, 8, 16\n"),
    ("{tensor_parallel: 8}", "nodes", "legal for `nodes` here: 2, 4, 8\n"),
    ("{nodes: 2, tensor_parallel: 2, pipeline_parallel: 5}", "nodes", "legal for `nodes` here: 5, 10\n"),
    ("{nodes: 1, tensor_parallel: 2, replicas: 3}", "nodes", "legal for `nodes` here: 3, 6\n"),
    ("{nodes: 3, tensor_parallel: 2, data_parallel: 2}", "nodes", "legal for `nodes` here: 1, 2\n"),
    ("{nodes: 2}", "nodes", "= 1 ranks of a replica do not divide over its 2 nodes; legal for `nodes` here: 1\n"),
    ("{nodes: 3, tensor_parallel: 4}", "nodes", "legal for `nodes` here: 1, 2, 4"),
    ("{nodes: 4, replicas: 2, tensor_parallel: 3}", "nodes", "legal for `nodes` here: 2, 6"),
    ("{nodes: 2, replicas: 3}", "replicas", "3 replicas do not divide over 2 nodes, nor the nodes over the replicas; with "
     "2 nodes legal: 1, 2, 4 and further multiples of 2"),
    ("{nodes: 4, replicas: 6}", "replicas", "legal: 1, 2, 4, 8 and"),
    ("{nodes: 2, tensor_parallel: 2, data_parallel: 3}", "data_parallel", "so 3 engines do not divide over 2 nodes; "
     "legal for `nodes` here: 3\n"),
    ("{nodes: 4, tensor_parallel: 4, data_parallel: 2}", "data_parallel", "legal for `nodes` here: 2; or write `executor: ray`"),
    ("{nodes: 2, tensor_parallel: 2, data_parallel: 3, executor: ray}", "data_parallel", "so 3 engines do not divide over 2 nodes"),
    ("{nodes: 4, tensor_parallel: 2, data_parallel: 6, executor: ray}", "data_parallel", "legal for `nodes` here: 3, 6, 12\n"),
    ("{nodes: 3, tensor_parallel: 3, data_parallel: 2, executor: ray}", "data_parallel", "legal for `nodes` here: 2, 6\n"),
    ("{nodes: 2, tensor_parallel: 8, data_parallel: 2}", "nodes", "(gpus_per_node); no number of nodes has them so: change the sizes\n"),
    ("{nodes: 4, tensor_parallel: 8, data_parallel: 2}", "data_parallel", "so 2 engines do not divide over 4 nodes; no number of nodes "
     "has them so: change the sizes; or write `executor: ray`"),
    ("{nodes: 2, replicas: 1, executor: single}", "nodes", "do not divide"),
]  # fmt: skip


@pytest.mark.parametrize(("topology", "key", "words"), IMPOSSIBLE, ids=[case[0] for case in IMPOSSIBLE])
def test_a_topology_that_cannot_be_is_told_with_the_legal_values(checkout, topology, key, words):
    old = "{nodes: 2, tensor_parallel: 2, pipeline_parallel: 2}"
    message = refused(checkout(experiment=EXPERIMENT.replace(old, topology)))
    assert f"my.yaml:11: deployments.plain.topology.{key}: " in message
    assert words in message + "\n"


@pytest.mark.parametrize(
    ("key", "values", "words"),
    [
        ("replicas", "[1, 3]", "replicas[1]: 3 replicas do not divide over 2 nodes"),
        (
            "nodes",
            "[2, 1, 3]",
            "nodes[2]: tensor_parallel x pipeline_parallel x data_parallel = 4 ranks of a replica do not",
        ),
    ],
)
def test_a_variant_that_cannot_be_is_told_at_its_sweep(checkout, key, values, words):
    sweep = f"sweeps:\n  - over: deployments.plain\n    grid: {{topology.{key}: {values}}}\n"
    site = SITE.replace("gpus_per_node: 4", "gpus_per_node: 0")
    assert f"my.yaml:16: sweeps[0].grid.topology.{words}" in refused(checkout(site, EXPERIMENT + sweep))


def test_without_gpus_nodes_may_have_any_number_of_ranks(checkout):
    site = SITE.replace("gpus_per_node: 4", "gpus_per_node: 0")
    assert load(checkout(site, EXPERIMENT.replace("tensor_parallel: 2", "tensor_parallel: 64"))).cluster
