"""plan_deployment: everything that can be known to be wrong before anything is started is refused here."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping

from servemark import planning
from servemark.config.cluster import Cluster
from servemark.config.expand import Point
from servemark.config.model import Deployment
from servemark.config.reserved import SERVE_OPTIONS, refusal
from servemark.errors import PlanRefused
from servemark.launch import random_weights
from servemark.machine import visible_gpus
from servemark.measurement import key
from servemark.planning.lengths import request_tokens
from servemark.planning.options import element_bytes, fits_itself, flag, number, whole
from servemark.records import EnvironmentCheck, Estimate, Hardware, Manifest, Plan, PlannedPoint, Topology
from servemark.weights.architecture import Architecture

# An estimate, the GiB that a device or node has, and the share of it that the server takes.
_Estimated = tuple[Estimate, float, float]
# vLLM's default for gpu-memory-utilization (0.25.1, 0.32.0).
DEFAULT_UTILISATION = 0.92
CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"
EXPERT_PARALLEL = "enable-expert-parallel"
RANDOM_WEIGHTS = "The weights are random (load_format: dummy): the figures tell of speed alone."
EVEN_EXPERTS = "Random weights choose experts evenly, which no trained model does quite."


def plan(
    name: str,
    deployment: Deployment,
    trust_remote_code: bool,
    points: Iterable[Point],
    hardware: Hardware,
    check: EnvironmentCheck,
    manifest: Manifest,
    *,
    cluster: Cluster | None = None,
    inherited: Mapping[str, str] | None = None,
) -> Plan:
    """Decide whether the deployment can serve, and what it is expected to hold.

    Args:
        hardware: one node's; on a cluster all nodes are of one kind.
        cluster: whose variables and modules hold for everything on the nodes; None: this machine alone.
        inherited: the shell's variables that reach the server and decide (``variables/inherited.py``), none of them given by ``cluster`` or
            ``deployment``. In the key they stand as if they were: the server gets the same either way.

    Raises:
        PlanRefused: an environment that cannot serve this here; an option vLLM does not know, an illegal topology, or not enough
            memory, with all reasons together.
    """
    points = tuple(points)
    architecture = Architecture.from_config(manifest.config)
    topology = deployment.topology.record()
    variables = (dict(cluster.variables) if cluster else {}) | deployment.variables
    inherited = dict(inherited or {})
    modules = cluster.modules if cluster else ()
    off, turned_off = planning.turned_off(check, topology, variables) if hardware.accelerator == "cuda" else ({}, ())
    variables |= off
    layers = planning.stages(architecture, topology, variables)
    hiding = visible_gpus.hiding(hardware)
    drawbacks = planning.software(
        name, check, architecture, variables, hardware.accelerator, hiding, hardware.cuda_visible_devices
    )
    unknown = unknown_options(deployment.options, check.serve_options, check.vllm)
    errors, warnings = planning.legality(
        architecture, topology, hardware.devices, layers, hiding, spread=bool(flag(deployment.options, EXPERT_PARALLEL))
    )
    errors += planning.first_request_fails(topology, deployment.options, variables, hardware.accelerator)
    errors += planning.not_on_cpu(architecture, topology, hardware.accelerator)
    options, no_size = planning.resolve_capture_size(deployment.options, topology, points, hardware)
    too_long = planning.too_long(
        {point.workload: point for point in points}, whole(deployment.options, "max-model-len")
    )
    if unknown or errors or too_long or no_size:
        reasons = (*unknown, *errors, *too_long, *no_size)
        raise PlanRefused(
            "\n".join([f"deployments.{name} cannot be served:", *(f"  - {text}" for text in reasons)]),
            do=f"Change deployments.{name} in the configuration as said.",
            reason="unknown_option" if unknown else "illegal_topology" if errors else "bad_option",
        )
    options |= {"trust-remote-code": True} if trust_remote_code else {}
    if manifest.load_format == "dummy":
        options["load-format"] = random_weights.LOAD_FORMAT
        drawbacks = (*drawbacks, RANDOM_WEIGHTS, *((EVEN_EXPERTS,) if architecture.experts else ()))
    estimated = functools.partial(_estimate, architecture, manifest, options, variables, hardware, layers, topology)
    length = whole(options, "max-model-len") or architecture.max_positions or 4096
    if fits_itself(options):
        shortest = max(map(request_tokens, points), default=1)
        length = planning.longest_fitting(lambda tokens: estimated(tokens)[0].max_concurrency >= 1, shortest, length)
    estimate, memory_gib, utilisation = estimated(length)
    planning.require(estimate, topology, memory_gib, utilisation, _sharing(topology, variables, hardware))
    share = key.deployment_parts(
        model_digest=manifest.digest,
        environment_digest=check.digest,
        topology=topology,
        options=options,
        variables=inherited | variables,
        hardware=hardware,
        modules=modules,
        interface=cluster.interface if cluster else None,
    )
    planned = tuple(_planned(point, share) for point in points)
    ways = planning.all_reduce(topology, check, options, variables, hardware.accelerator)
    asked = planning.Asked(architecture, topology, options, variables, planned, estimate, hardware, check, inherited)
    return Plan(
        deployment=name,
        model=deployment.model,
        environment=deployment.environment,
        model_digest=manifest.digest,
        environment_digest=check.digest,
        served_name=deployment.model,
        topology=topology,
        options=options,
        variables=variables,
        all_reduce=ways,
        inherited=inherited,
        modules=modules,
        estimate=estimate,
        warnings=(
            *warnings,
            *turned_off,
            *drawbacks,
            *planning.multicast(ways, inherited | variables, check.vllm),
            *planning.advice(asked),
            *check.warnings,
        ),
        points=planned,
        key_parts=share,
    )


def point_key_parts(point: Point | PlannedPoint) -> dict:
    """The load point's share of its ledger key."""
    shape = {
        "dataset": "random",
        "input_tokens": point.input_tokens,
        "output_tokens": point.output_tokens,
        "requests": point.requests,
        "warmups": point.warmups,
        "options": point.client_options,
    }
    # Left out where they are the default, so that what was measured before there was a choice keeps its key.
    shape |= {} if point.warmup_tokens is None else {"warmup_tokens": point.warmup_tokens}
    shape |= {"clients": point.clients} if point.clients > 1 else {}
    shape |= {"ask": point.ask} if point.ask != "endpoint" else {}
    return key.point_parts(
        workload=shape,
        concurrency=point.concurrency,
        request_rate=point.request_rate,
        repetition=point.repetition,
        seed=point.seed,
    )


def _planned(point: Point, share: dict) -> PlannedPoint:
    return PlannedPoint(**point.model_dump(), key=key.digest(share, point_key_parts(point)))


def unknown_options(options: Iterable[str], known: Iterable[str], version: str) -> list[str]:
    """One sentence for each option that this vLLM's ``serve`` does not know, with the nearest that it does."""
    names = set(known)
    found = []
    for option in options:
        plain = option.removeprefix("no-").split(".")[0]
        if option not in names and plain not in names:
            allowed = [name for name in sorted(names) if not refusal(name, SERVE_OPTIONS)]
            near = difflib.get_close_matches(option, allowed, n=1)
            found.append(
                f"options.{option}: vLLM {version} has no such option{f'; did you mean {near[0]}' if near else ''}."
            )
    return found


def _sharing(topology: Topology, variables: Mapping[str, str], hardware: Hardware) -> int:
    """How many caches of the size that is estimated lie in the same memory.

    On CPU each rank of a node takes the space that the variable gives, and without it each server of a node its share of all there is
    (vllm/v1/worker/cpu_worker.py, 0.32.0: the second of two ends with "Available memory on node 0 ... is less than desired").
    """
    if hardware.accelerator != "cpu":
        return 1
    return topology.devices_per_node if variables.get(CPU_SPACE) else -(-topology.replicas // topology.nodes)


def _estimate(
    architecture: Architecture,
    manifest: Manifest,
    options: dict,
    variables: dict[str, str],
    hardware: Hardware,
    layers_of_stages: tuple[int, ...],
    topology: Topology,
    max_model_len: int,
) -> _Estimated:
    utilisation = number("gpu-memory-utilization", options.get("gpu-memory-utilization") or DEFAULT_UTILISATION)
    override = whole(options, "kv-cache-memory-bytes")
    if hardware.accelerator == "cpu":
        memory_gib = hardware.memory_gib
        if variables.get(CPU_SPACE):
            override = int(number(CPU_SPACE, variables[CPU_SPACE]) * 2**30)
    else:
        memory_gib = min(gpu.memory_mib for gpu in hardware.gpus) / 1024
    estimate = planning.estimate(
        architecture,
        manifest.weight_bytes,
        topology,
        max_model_len,
        memory_gib,
        utilisation,
        kv_cache_bytes_override=override,
        accelerator=hardware.accelerator,
        block_tokens=whole(options, "block-size"),
        batched_tokens=whole(options, "max-num-batched-tokens"),
        kv_element_bytes=element_bytes(options),
        layers_of_stages=layers_of_stages,
        spread=bool(flag(options, EXPERT_PARALLEL)),
    )
    return estimate, memory_gib, utilisation
