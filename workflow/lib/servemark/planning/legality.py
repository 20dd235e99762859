"""Which topologies vLLM accepts for an architecture, told before anything is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from servemark.errors import PlanRefused
from servemark.machine import visible_gpus
from servemark.planning import lengths
from servemark.records import Topology
from servemark.weights.architecture import Architecture


def stage_layers(layers: int, pipeline_parallel: int) -> tuple[int, ...]:
    """Layers of each pipeline stage, as vLLM splits them.

    Source: vllm/distributed/utils.py, get_pp_indices (0.32.0): equal shares, and the remainder one each to the stages
    from the last but one backwards, so that the last stage, which has the output head, stays small.
    """
    share, rest = divmod(layers, pipeline_parallel)
    stages = [share] * pipeline_parallel
    for position in range(2, rest + 2):
        stages[-position] += 1
    return tuple(stages)


PARTITION = "VLLM_PP_LAYER_PARTITION"


def stages(architecture: Architecture, topology: Topology, variables: Mapping[str, str]) -> tuple[int, ...]:
    """Layers of each pipeline stage: as ``VLLM_PP_LAYER_PARTITION`` says it, else as vLLM splits them.

    Raises:
        PlanRefused: the variable is not one number of layers for each stage that add up to all layers
            (vllm/distributed/utils.py, get_pp_indices).
    """
    pp, given = topology.pipeline_parallel, variables.get(PARTITION)
    if not given or pp == 1 or pp > architecture.layers:
        return stage_layers(architecture.layers, pp)
    parts = [part.strip() for part in given.split(",")]
    sizes = tuple(int(part) for part in parts if part.isdecimal())
    if len(parts) != pp or len(sizes) != pp or sum(sizes) != architecture.layers or 0 in sizes:
        example = ",".join(map(str, stage_layers(architecture.layers, pp)))
        raise PlanRefused(
            f"{PARTITION}: {given!r} is not pipeline_parallel = {pp} numbers of layers, each 1 or more, that add up to "
            f"{architecture.layers}, such as {example}.",
            do=f"Correct {PARTITION} in the deployment's variables, or remove it: vLLM then splits the layers itself.",
            reason="bad_option",
        )
    return sizes


def first_request_fails(
    topology: Topology, options: Mapping[str, object], variables: Mapping[str, str], accelerator: str
) -> tuple[str, ...]:
    """Why a server would come up and die at its first request: (sentence, ...).

    Pipeline stages on CPU get the buffers that they hand on only in the warm-up, which vLLM leaves out in eager mode and with
    VLLM_CPU_CI_ENV (vllm/v1/worker/cpu_worker.py, 0.32.0); then `assert self.intermediate_tensors is not None` fails.
    """
    if accelerator != "cpu" or topology.pipeline_parallel == 1:
        return ()
    found = []
    if options.get("enforce-eager") or options.get("no-enforce-eager") is False:
        found.append("options.enforce-eager: true makes no warm-up")
    if variables.get("VLLM_CPU_CI_ENV", "0") not in ("", "0"):
        found.append("variables.VLLM_CPU_CI_ENV makes no warm-up")
    return tuple(
        f"{what}, and without one pipeline_parallel {topology.pipeline_parallel} on CPU dies at the first request; "
        "legal here: `enforce-eager: false` and no VLLM_CPU_CI_ENV."
        for what in found
    )


def not_on_cpu(architecture: Architecture, topology: Topology, accelerator: str) -> tuple[str, ...]:
    """What vLLM does not have for CPUs, and finds out when it loads: (sentence, ...).

    Data parallel engines of a mixture of experts gather each other's tokens, and all_gatherv of vLLM's communicator for CPUs raises
    NotImplementedError (vllm/distributed/device_communicators/base_device_communicator.py, 0.32.0).
    """
    if accelerator != "cpu" or not architecture.moe or topology.data_parallel == 1:
        return ()
    return (
        f"data_parallel {topology.data_parallel} of a mixture of experts is not possible on CPU (vLLM 0.32.0: engines cannot gather each "
        "other's tokens there); legal here: data_parallel 1, with topology.replicas in its place.",
    )


def too_long(workloads: Mapping[str, lengths.Requested], max_model_len: int | None) -> tuple[str, ...]:
    """Why every request of a workload would be refused by the server: (sentence, ...).

    vLLM answers 400 when a prompt is longer than max-model-len less the tokens to be made (vllm/renderers/params.py, 0.32.0).

    Args:
        workloads: by name, what says how long their requests are.
        max_model_len: as the options set it; None when vLLM derives it, and nothing is certain.
    """
    return tuple(
        f"workloads.{name} asks for {lengths.in_words(load)}, and options.max-model-len is {max_model_len}: vLLM answers 400 to all of it; "
        f"legal here: {lengths.request_tokens(load)} and more, or name other `workloads` for this deployment."
        for name, load in sorted(workloads.items())
        if max_model_len is not None and lengths.request_tokens(load) > max_model_len
    )


def legality(
    architecture: Architecture,
    topology: Topology,
    devices_per_node: int,
    layers_of_stages: tuple[int, ...] | None = None,
    hiding: str = "",
    *,
    spread: bool = False,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What forbids the topology and what speaks against it: (errors, warnings), one sentence each.

    ``devices_per_node`` is how many devices a node really has, ``layers_of_stages`` what :func:`stages` found when a
    variable may set it, ``hiding`` what CUDA_VISIBLE_DEVICES keeps from us of the node, ``spread`` whether ranks have whole experts
    (enable-expert-parallel), whose width nothing has to divide then. Sources, vLLM 0.32.0: attention heads
    config/model.py verify_with_parallel_config; KV heads, split or replicated, models/qwen3.py and
    layers/linear.py QKVParallelLinear; MLP width layers/linear.py divide(); expert width fused_moe/config.py, where
    experts are sharded over tensor and data parallel ranks together; expert count models/qwen3_moe.py.
    The vocabulary asks for nothing: vLLM pads it to a multiple of 64.
    """
    errors = [*_tensor_errors(architecture, topology, spread), *_pipeline_errors(architecture, topology)]
    place_errors, warnings = _placement(topology, devices_per_node, hiding)
    split = layers_of_stages or stage_layers(architecture.layers, topology.pipeline_parallel)
    if 1 < topology.pipeline_parallel <= architecture.layers and len(set(split)) > 1:
        warnings.append(
            f"pipeline_parallel {topology.pipeline_parallel} splits {architecture.layers} layers unevenly, "
            f"{', '.join(map(str, split))}: the largest stage sets the pace. {PARTITION} can set another split."
        )
    if architecture.kv_heads < topology.tensor_parallel:
        warnings.append(
            f"tensor_parallel {topology.tensor_parallel} exceeds {architecture.kv_heads} KV heads: vLLM replicates "
            f"them, so the KV cache shrinks {architecture.kv_heads}-fold only."
        )
    return (*errors, *place_errors), tuple(warnings)


def _legal(limit: int, accepted: Callable[[int], bool]) -> str:
    return ", ".join(str(value) for value in range(1, limit + 1) if accepted(value)) or "none"


def _kv_heads_fit(architecture: Architecture, tensor_parallel: int) -> bool:
    return architecture.kv_heads % tensor_parallel == 0 or tensor_parallel % architecture.kv_heads == 0


def _tensor_accepts(architecture: Architecture, data_parallel: int, spread: bool, tensor_parallel: int) -> bool:
    dense_width = architecture.dense_intermediate if architecture.expert_layers < architecture.layers else None
    return (
        architecture.heads % tensor_parallel == 0
        and _kv_heads_fit(architecture, tensor_parallel)
        and (not dense_width or dense_width % tensor_parallel == 0)
        and (
            not architecture.moe or spread or architecture.expert_intermediate % (tensor_parallel * data_parallel) == 0
        )
        and (not architecture.moe or tensor_parallel <= architecture.experts)
    )


def _tensor_errors(architecture: Architecture, topology: Topology, spread: bool) -> list[str]:
    """The first condition that tensor_parallel breaks; the legal values that it names keep all of them."""
    tp, dp = topology.tensor_parallel, topology.data_parallel
    legal = _legal(architecture.heads, lambda value: _tensor_accepts(architecture, dp, spread, value))
    here = f"legal here: {legal}"
    errors = []
    if architecture.heads % tp:
        errors.append(f"tensor_parallel {tp} does not divide {architecture.heads} attention heads; {here}.")
    if not _kv_heads_fit(architecture, tp):
        errors.append(
            f"tensor_parallel {tp} neither divides nor is a multiple of {architecture.kv_heads} KV heads; {here}."
        )
    dense_layers = architecture.layers - architecture.expert_layers
    if dense_layers and architecture.dense_intermediate and architecture.dense_intermediate % tp:
        errors.append(f"tensor_parallel {tp} does not divide the MLP width {architecture.dense_intermediate}; {here}.")
    if architecture.moe and not spread and architecture.expert_intermediate % (tp * dp):
        errors.append(
            f"tensor_parallel {tp} x data_parallel {dp} = {tp * dp} does not divide the expert width "
            f"{architecture.expert_intermediate}; legal tensor_parallel here: {legal}; or options.enable-expert-parallel: true, "
            "which cuts no expert."
        )
    if architecture.moe and tp > architecture.experts:
        errors.append(f"tensor_parallel {tp} is greater than the number of experts, {architecture.experts}; {here}.")
    return errors[:1]


def _pipeline_errors(architecture: Architecture, topology: Topology) -> list[str]:
    pp = topology.pipeline_parallel
    if pp <= architecture.layers:
        return []
    return [f"pipeline_parallel {pp} exceeds {architecture.layers} layers; legal here: 1 to {architecture.layers}."]


def _placement(topology: Topology, devices_per_node: int, hiding: str) -> tuple[list[str], list[str]]:
    errors, warnings = [], []
    asked, ranks = topology.nodes * topology.devices_per_node, topology.world_size
    product = (
        f"tensor_parallel {topology.tensor_parallel} x pipeline_parallel {topology.pipeline_parallel} x data_parallel "
        f"{topology.data_parallel} x replicas {topology.replicas} = {ranks} ranks"
    )
    if topology.devices_per_node > devices_per_node:
        why = f" ({hiding})" if hiding else ""
        ways = f"take more nodes, or {visible_gpus.PROBE_AGAIN}" if hiding else "or take more nodes"
        errors.append(
            f"{product}; on {topology.nodes} node(s) these are {topology.devices_per_node} devices a node, and a node has "
            f"{devices_per_node}{why}: lower one of the sizes, {ways}."
        )
    if ranks > asked:
        errors.append(
            f"{product}, but {topology.nodes} node(s) x {topology.devices_per_node} device(s) = {asked}; legal here: "
            f"at most {asked} ranks, or at least {-(-ranks // topology.devices_per_node)} nodes."
        )
    elif ranks < asked:
        warnings.append(f"{product} leave {asked - ranks} of {asked} allocated device(s) idle.")
    if topology.executor == "single" and topology.replica_size > 1:
        errors.append(
            f"executor single runs one rank and the topology has {topology.replica_size} a replica; legal here: mp, ray."
        )
    if topology.tensor_parallel > topology.devices_per_node:
        warnings.append(
            f"tensor_parallel {topology.tensor_parallel} spans nodes of {topology.devices_per_node} device(s): every "
            "layer waits for the network between nodes (gpt-oss-120b, 512 requests, vLLM 0.15.1: 8 over two nodes of 4 GH200 gave 0.59 of "
            "the tokens/s of 4 in one node). Prefer tensor_parallel within a node and replicas across nodes, else pipeline_parallel."
        )
    elif topology.nodes > 1 and topology.devices_per_node % topology.tensor_parallel:
        warnings.append(
            f"tensor_parallel {topology.tensor_parallel} does not divide {topology.devices_per_node} device(s) a node: "
            "a tensor parallel group may span nodes."
        )
    return errors, warnings
