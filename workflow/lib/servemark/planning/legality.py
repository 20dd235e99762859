"""Which topologies vLLM accepts for an architecture, told before anything is started."""

from __future__ import annotations

from collections.abc import Mapping

from servemark.errors import PlanRefused
from servemark.machine import visible_gpus
from servemark.planning import lengths
from servemark.records import LoadPoint, Topology
from servemark.weights.architecture import Architecture


def stage_layers(layers: int, pipeline_parallel: int) -> tuple[int, ...]:
    """Return layers of each pipeline stage, as vLLM splits them.

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
    """Return layers of each pipeline stage: as ``VLLM_PP_LAYER_PARTITION`` states them, else as vLLM splits them.

    PlanRefused: it is not one number for each stage that add up to all layers (vllm/distributed/utils.py, get_pp_indices).
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


def not_on_cpu(
    architecture: Architecture, topology: Topology, options: Mapping[str, object], variables: Mapping[str, str], accelerator: str
) -> tuple[str, ...]:
    """Return what vLLM does not have for CPUs, and detects only when it loads or at the first request: (sentence, ...).

    Data parallel engines of a mixture of experts gather each other's tokens, and all_gatherv of vLLM's communicator for CPUs raises
    NotImplementedError (vllm/distributed/device_communicators/base_device_communicator.py, 0.32.0). Pipeline stages get the buffers that
    they hand on only in the warm-up, which vLLM leaves out in eager mode and with VLLM_CPU_CI_ENV (vllm/v1/worker/cpu_worker.py, 0.32.0);
    then `assert self.intermediate_tensors is not None` fails.
    """
    if accelerator != "cpu":
        return ()
    found = []
    if topology.pipeline_parallel > 1:
        what = {
            "options.enforce-eager: true": options.get("enforce-eager") or options.get("no-enforce-eager") is False,
            "variables.VLLM_CPU_CI_ENV": variables.get("VLLM_CPU_CI_ENV", "0") not in ("", "0"),
        }
        found += [
            f"{name} makes no warm-up, and without one pipeline_parallel {topology.pipeline_parallel} on CPU dies at the first request; "
            "legal here: `enforce-eager: false` and no VLLM_CPU_CI_ENV."
            for name, given in what.items()
            if given
        ]
    if architecture.moe and topology.data_parallel > 1:
        found.append(
            f"data_parallel {topology.data_parallel} of a mixture of experts is not possible on CPU: engines of vLLM 0.32.0 cannot gather "
            "each other's tokens there; legal here: data_parallel 1, with topology.replicas in its place."
        )
    return tuple(found)


def too_long(workloads: Mapping[str, LoadPoint], max_model_len: int | None) -> tuple[str, ...]:
    """Return why the server would refuse every request of a workload: (sentence, ...).

    vLLM answers 400 when a prompt is longer than max-model-len less the tokens to be made (vllm/renderers/params.py, 0.32.0).
    ``workloads``: one load point of each, by name; ``max_model_len``: as the options set it, None if vLLM derives it.
    """
    return tuple(
        f"workloads.{name} asks for {lengths.in_words(load)}, and options.max-model-len is {max_model_len}: vLLM answers 400 to all of it; "
        f"legal here: {load.request_tokens} and more, or name other `workloads` for this deployment."
        for name, load in sorted(workloads.items())
        if max_model_len is not None and load.request_tokens > max_model_len
    )


def legality(
    architecture: Architecture, topology: Topology, devices_per_node: int, hiding: str = "", *, spread: bool = False
) -> tuple[str, ...]:
    """Return why vLLM would refuse the topology, one sentence a reason.

    Args:
        devices_per_node: how many devices a node really has.
        hiding: what CUDA_VISIBLE_DEVICES hides of the node, if anything.
        spread: ranks have whole experts (enable-expert-parallel), so nothing has to divide their width.
    """
    tp, pp, dp = topology.tensor_parallel, topology.pipeline_parallel, topology.data_parallel
    errors = []
    if fault := _tensor_fault(architecture, tp, dp, spread):
        accepted = [str(size) for size in range(1, architecture.heads + 1) if not _tensor_fault(architecture, size, dp, spread)]
        errors.append(f"tensor_parallel {tp} {fault}; legal here: {', '.join(accepted) or 'none'}.")
    if pp > architecture.layers:
        errors.append(f"pipeline_parallel {pp} exceeds {architecture.layers} layers; legal here: 1 to {architecture.layers}.")
    if topology.devices_per_node > devices_per_node:
        errors.append(
            f"tensor_parallel {tp} x pipeline_parallel {pp} x data_parallel {dp} x replicas {topology.replicas} = "
            f"{topology.world_size} ranks; on {topology.nodes} node(s) these are {topology.devices_per_node} devices a node, and a node "
            f"has {devices_per_node}{f' ({hiding})' if hiding else ''}: lower one of the sizes, "
            f"{f'take more nodes, or {visible_gpus.PROBE_AGAIN}' if hiding else 'or take more nodes'}."
        )
    return tuple(errors)


def _tensor_fault(architecture: Architecture, tp: int, dp: int, spread: bool) -> str | None:
    """Return the first condition of vLLM that ``tensor_parallel`` breaks, as the rest of a sentence.

    Sources, vLLM 0.32.0: attention heads config/model.py verify_with_parallel_config; KV heads, split or replicated, models/qwen3.py and
    layers/linear.py QKVParallelLinear; MLP width layers/linear.py divide(); expert width fused_moe/config.py, where experts are sharded
    over tensor and data parallel ranks together; expert count models/qwen3_moe.py. vLLM pads the vocabulary, so it sets no condition.
    """
    if architecture.heads % tp:
        return f"does not divide {architecture.heads} attention heads"
    if architecture.kv_heads % tp and tp % architecture.kv_heads:
        return f"neither divides nor is a multiple of {architecture.kv_heads} KV heads"
    dense_width = architecture.dense_intermediate if architecture.expert_layers < architecture.layers else None
    if dense_width and dense_width % tp:
        return f"does not divide the MLP width {dense_width}"
    if architecture.moe and not spread and architecture.expert_intermediate % (tp * dp):
        width = architecture.expert_intermediate
        whole = "options.enable-expert-parallel: true cuts no expert"
        return f"x data_parallel {dp} = {tp * dp} does not divide the expert width {width} ({whole})"
    if architecture.moe and tp > architecture.experts:
        return f"is greater than the number of experts, {architecture.experts}"
    return None
