"""Plan a deployment: refuse everything that is known to fail before servemark starts anything."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from servemark.config.cluster import Site
from servemark.config.cuda_graphs import without_workload
from servemark.config.model import Deployment
from servemark.config.problems import shortened
from servemark.config.reserved import CLIENT_OPTIONS, SERVE_OPTIONS, refusal
from servemark.environments import options as vllm_options
from servemark.environments.options import Fault
from servemark.errors import PlanRefused
from servemark.launch import random_weights
from servemark.machine import visible_gpus
from servemark.measurement import accuracy_key, contents, key, measured_topologies
from servemark.planning import cuda_graphs, legality, memory
from servemark.planning.advice import advise
from servemark.planning.demand import Demand
from servemark.planning.options import EXPERT_PARALLEL, Server, flag, whole
from servemark.planning.software import never_streamed, require_software, turned_off
from servemark.records import (
    Argument,
    AskedCheck,
    EnvironmentCheck,
    Hardware,
    LoadPoint,
    Manifest,
    Plan,
    PlannedCheck,
    PlannedPoint,
    PlannedSearch,
    Strict,
    TopologyChoice,
)
from servemark.weights.architecture import Architecture


class DeploymentSpec(Strict):
    """The configuration and inherited environment variables on which a deployment's plan depends.

    Attributes:
        cluster: None for this machine.
        inherited: inherited environment variables that reach the server and may change results (``variables/passed_on.py``), except the
            variables of ``cluster`` and ``deployment``. The ledger key makes no difference between them.
        contents: path in options or variables -> sha256 of its content.
        served_name: None for the model's key in the configuration.
        searches, ends: the searches, and the load points at both ends of each: the plan allows for them and does not list them.
        checks: the accuracy checks.
        longest_rows: workload -> place of the longest prompt of its dataset, for a message.
        choice: None unless the configuration has ``topology: auto``.
        ledger: folder of the finished measurements that are shown next to the choice; None without a choice.
    """

    deployment: Deployment
    points: tuple[LoadPoint, ...]
    trust_remote_code: bool = False
    cluster: Site | None = None
    inherited: dict[str, str] = {}
    contents: dict[str, str] = {}
    served_name: str | None = None
    searches: tuple[PlannedSearch, ...] = ()
    ends: tuple[LoadPoint, ...] = ()
    checks: tuple[AskedCheck, ...] = ()
    longest_rows: dict[str, str] = {}
    choice: TopologyChoice | None = None
    ledger: str | None = None


def plan(name: str, spec: DeploymentSpec, hardware: Hardware, check: EnvironmentCheck, manifest: Manifest) -> Plan:
    """Return the plan of a deployment. ``hardware``: of one node; all nodes are of one kind.

    PlanRefused: the environment cannot serve on this hardware, options or topology are illegal, or the memory is too small. The message
    has all reasons.
    """
    deployment, points, cluster, inherited = spec.deployment, spec.points + spec.ends, spec.cluster, spec.inherited
    architecture = Architecture.from_config(manifest.config)
    topology = deployment.topology.record()
    variables = (dict(cluster.variables) if cluster else {}) | deployment.variables
    modules = cluster.modules if cluster else ()
    off, kernels = turned_off(check, topology, variables) if hardware.accelerator == "cuda" else ({}, ())
    variables |= off
    layers = legality.stages(architecture, topology, variables)
    require_software(name, check, variables, hardware)
    unknown = refused_options(deployment.options, points, check)
    spread = bool(flag(deployment.options, EXPERT_PARALLEL))
    errors = legality.legality(architecture, topology, hardware.devices, visible_gpus.hiding(hardware), spread=spread)
    errors += legality.not_on_cpu(architecture, topology, deployment.options, variables, hardware.accelerator)
    options, no_size = cuda_graphs.resolve(deployment.options, topology, points, hardware)
    longest = None if unknown else whole(deployment.options, "max-model-len")
    too_long = legality.too_long({point.workload: point for point in points}, longest, spec.longest_rows)
    in_one_piece = never_streamed(architecture, manifest.load_format, points)
    if unknown or errors or too_long or no_size or in_one_piece:
        reasons = (*unknown, *errors, *too_long, *no_size, *in_one_piece)
        raise PlanRefused(
            "\n".join([f"deployments.{name} cannot be served:", *(f"  - {text}" for text in reasons)]),
            do=f"Change deployments.{name} in the configuration accordingly.",
            reason="unknown_option" if unknown else "illegal_topology" if errors else "bad_option",
        )
    options |= {"trust-remote-code": True} if spec.trust_remote_code else {}
    if manifest.load_format == "dummy":
        options["load-format"] = random_weights.LOAD_FORMAT
    server = Server.read(topology, layers, manifest.weight_bytes, options, variables, hardware)
    estimate = memory.of_options(architecture, server, options, max((point.request_tokens for point in points), default=1))
    memory.require(estimate, server)
    share = key.deployment_parts(
        model_digest=manifest.digest,
        environment_digest=check.digest,
        topology=topology,
        options=contents.by_content(options, spec.contents),
        variables=contents.by_content(inherited | variables, spec.contents),
        hardware=hardware,
        modules=modules,
        interface=cluster.interface if cluster else None,
    )
    planned = tuple(PlannedPoint(load=load, key=key.digest(share, key.point_parts(load))) for load in spec.points)
    demand = Demand(architecture, server, options, variables, points, estimate, hardware, check, inherited)
    return Plan(
        deployment=name,
        model=deployment.model,
        environment=deployment.environment,
        model_digest=manifest.digest,
        environment_digest=check.digest,
        served_name=spec.served_name or deployment.model,
        topology=topology,
        options=options,
        variables=variables,
        all_reduce=demand.all_reduce,
        inherited=inherited,
        modules=modules,
        estimate=estimate,
        choice=spec.choice,
        measured=measured_topologies.sentences(Path(spec.ledger), manifest.digest, hardware) if spec.ledger else (),
        warnings=(*kernels, *advise(demand).values(), *check.warnings),
        points=planned,
        searches=spec.searches,
        checks=tuple(PlannedCheck(**one.model_dump(), key=accuracy_key.key(share, one)) for one in spec.checks),
        contents=spec.contents,
        key_format=key.FORMAT,
        key_parts=share,
    )


def refused_options(given: Mapping[str, Any], points: Iterable[LoadPoint], check: EnvironmentCheck) -> list[str]:
    """Return a sentence for each option that this vLLM does not have, or whose value it refuses: the server's and the client's."""
    # Records of older versions have the names alone.
    serve = vllm_options.by_name(check.serve_arguments or (Argument(names=(name,)) for name in check.serve_options))
    own = vllm_options.by_name(check.client_arguments)
    found = [*vllm_options.faults(without_workload(given), serve, check.vllm, lambda name: bool(refusal(name, SERVE_OPTIONS)))]
    if wrong := vllm_options.missing_file(given):
        found.append(wrong)
    timed = sorted({point.workload for point in points if point.prompts.backend != "servemark"})
    sentences = [
        f"workloads.{name}.dataset.arrivals: the client of vLLM {check.vllm} sends no requests at recorded times."
        for name in timed
        if own and "self-timed" not in own
    ]
    sentences += [f"options.{fault.option}: {_found(given, fault)}{fault.sentence()}" for fault in found]
    for workload, client in {point.workload: point.client_options for point in points}.items():
        faults = vllm_options.faults(client, own, check.vllm, lambda name: bool(refusal(name, CLIENT_OPTIONS)))
        sentences += [f"workloads.{workload}.client_options.{fault.option}: {_found(client, fault)}{fault.sentence()}" for fault in faults]
    return sentences


def _found(given: Mapping[str, Any], fault: Fault) -> str:
    return "" if fault.text.endswith("no such option") else f"{shortened(repr(given[fault.option]))} "
