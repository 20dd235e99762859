"""``topology: auto``: choose the topologies before the graph of the jobs exists, and keep them for every later run.

The number of nodes and GPUs of a job must be known when Snakemake builds its graph. So the choice is made when the configuration is
loaded. It needs the shape of the model and the GPUs of a node:

* model: its manifest in the results, else config.json with headers or index, or what the hub states (``weights/shape.py``)
* node: hardware.json in the results; without a cluster this machine; else ``gpus_per_node`` and ``gpu`` or ``gpu_type`` of the cluster file

``results/RUN/topologies.json`` keeps the choices. A rerun takes them from there, also when a load or an estimate has changed.
"""

from collections.abc import Mapping
from pathlib import Path

from servemark.config.expand import points
from servemark.config.model import Config, Deployment
from servemark.config.searches import ends
from servemark.config.topology import AskedTopology, AutomaticTopology
from servemark.errors import ConfigError, ServemarkError
from servemark.machine import hardware
from servemark.planning import assumed, devices, ranking
from servemark.planning.ranking import Question, Ranking
from servemark.records import Hardware, LoadPoint, Manifest, Topologies, TopologyChoice
from servemark.records.topology import Shape as TopologyShape
from servemark.weights import shape
from servemark.weights.architecture import Architecture
from servemark.weights.shape import Shape

FILE = "topologies.json"
BY_HAND = "Or write the topology: `servemark plan` ranks them for a GPU that you name."


def resolved(config: Config, folder: Path, *, choose: bool = True) -> tuple[Config, dict[str, TopologyChoice]]:
    """Return the expanded configuration with a topology for each ``topology: auto``, and these choices by deployment.

    Args:
        folder: the run's results.
        choose: False in a job: its main process has chosen.

    Raises:
        ConfigError: servemark cannot choose; the message states what is missing.
    """
    wanted = {name: one for name, one in config.deployments.items() if isinstance(one.topology, AutomaticTopology)}
    if not wanted:
        return config, {}
    kept = Topologies.read(folder / FILE).deployments if (folder / FILE).exists() else {}
    choices = {}
    for name, deployment in wanted.items():
        choice = kept.get(name)
        if choice is None or choice.source != config.models[deployment.model].source:
            if not choose:
                raise ConfigError(
                    f"There is no choice for deployments.{name}.topology.", look=str(folder / FILE), do="Rerun snakemake, which makes it."
                )
            choice = _choose(config, name, deployment, folder)
        choices[name] = choice
    chosen = {
        name: deployment.model_copy(update={"topology": AskedTopology(**choices[name].topology.model_dump())})
        for name, deployment in wanted.items()
    }
    return config.model_copy(update={"deployments": {**config.deployments, **chosen}}), choices


def keep(folder: Path, choices: Mapping[str, TopologyChoice]) -> None:
    """Write the choices into the run's results. Choices of deployments that the configuration lacks now are kept too."""
    path = folder / FILE
    before = Topologies.read(path).deployments if path.exists() else {}
    if choices and {**before, **choices} != before:
        Topologies(deployments={**before, **choices}).write(path)


def _choose(config: Config, name: str, deployment: Deployment, folder: Path) -> TopologyChoice:
    model = config.models[deployment.model]
    node = _node(config, name, folder)
    try:
        found = _shape(config, deployment, folder)
        architecture = Architecture.from_config(found.config)
    except ServemarkError as error:
        raise _refused(name, f"the shape of its model is needed. {error.what}", f"{error.do} {BY_HAND}") from None
    if architecture.unknown:
        raise _refused(name, f"planning cannot size the model ({architecture.unknown})", "Write the topology.")
    kinds = {gpu.name for gpu in node.gpus}
    question = Question(
        architecture,
        None if model.load_format == "dummy" else found.weight_bytes,
        node,
        assumed.environment(),
        _loads(config, name),
        deployment.options,
        (dict(config.cluster.variables) if config.cluster else {}) | deployment.variables,
        devices.find(node.gpus[0]) if len(kinds) == 1 else None,
    )
    most = ranking.MAX_NODES if config.cluster else 1
    try:
        ranked = ranking.fewest_nodes(question, most, load=False)
    except ServemarkError as error:
        raise _refused(name, error.what, error.do or BY_HAND) from None
    if not ranked.candidates:
        why = f" {ranked.not_fewer[1]}" if ranked.not_fewer else ""
        raise _refused(name, f"nothing on {most} node(s) of {_in_words(node)} holds the model.{why}", "Use larger or more GPUs.")
    first = ranked.candidates[0].topology
    return TopologyChoice(source=model.source, topology=TopologyShape(**first.model_dump()), why=_why(ranked))


def _loads(config: Config, name: str) -> tuple[LoadPoint, ...]:
    """Return one load point of each load, and both ends of each search; repetitions are alike."""
    every = points(config, name) + ends(config, name)
    return tuple({(one.workload, one.concurrency, one.request_rate): one for one in every}.values())


def _shape(config: Config, deployment: Deployment, folder: Path) -> Shape:
    staged = folder / "models" / deployment.model / "manifest.json"
    if staged.exists():
        manifest = Manifest.read(staged)
        return Shape(manifest.config, manifest.weight_bytes, manifest.source)
    return shape.read(config.models[deployment.model].source, config.cache, config.hub_cache)


def _node(config: Config, name: str, folder: Path) -> Hardware:
    """Return a node of the run with the GPUs that a deployment gets there."""
    cluster, probed = config.cluster, folder / "hardware.json"
    limit = cluster.gpus_per_node if cluster else 0
    if probed.exists():
        found = Hardware.read(probed)
        return found.model_copy(update={"gpus": found.gpus[:limit]}) if limit else found
    if cluster is None:
        return hardware.probe()
    text = cluster.gpu or cluster.gpu_type
    if not limit or not text:
        raise _refused(name, "the cluster file does not name the GPUs of a node", f"Set `gpus_per_node` and `gpu` there. {BY_HAND}")
    try:
        return assumed.node(assumed.gpu(text)[0], limit)
    except ConfigError as error:
        raise _refused(name, f"the cluster file names the GPU {text!r}. {error.what}", f"Set `gpu` there. {error.do} {BY_HAND}") from None


def _in_words(node: Hardware) -> str:
    return f"{len(node.gpus)} x {node.gpus[0].name}" if node.gpus else f"{node.cpu_count} CPUs"


def _why(ranked: Ranking) -> str:
    first, point = ranked.candidates[0], ranked.question.heaviest
    size = f"{first.topology.nodes} node(s) of {_in_words(ranked.question.hardware)}"
    load = f"requests of {point.request_tokens} tokens; the KV cache holds {first.held} of {point.concurrency or 'unlimited'} in flight"
    text = f"chosen for {size}: {first.topology.world_size} rank(s), {load}."
    if not ranked.fits:
        return f"{text} No topology on these nodes holds all of them."
    fewer = ranked.not_fewer
    return f"{text} Fewer do not suffice: {fewer[1]}" if fewer else text


def _refused(name: str, what: str, do: str) -> ConfigError:
    return ConfigError(f"deployments.{name}.topology: auto: {what.rstrip('.')}.", do=do, reason="topology_not_chosen")
