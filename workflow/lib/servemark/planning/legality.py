"""Check whether vLLM accepts a topology for an architecture."""

from collections.abc import Mapping

from servemark.errors import PlanRefused
from servemark.machine import visible_gpus
from servemark.planning.options import EXPERT_PARALLEL, flag, in_words
from servemark.records import LoadPoint, StagedPrompts, Topology
from servemark.weights.architecture import Architecture
from servemark.weights.builtin import CONFIGS
from servemark.weights.shape import BUILTIN


def stage_layers(layers: int, pipeline_parallel: int) -> tuple[int, ...]:
    """Return the layers of each pipeline stage, as vLLM splits them (vllm/distributed/utils.py, get_pp_indices, 0.32.0).

    Stages have equal shares. The remaining layers go to the stages before the last one, backwards: the last one has the output head.
    """
    share, rest = divmod(layers, pipeline_parallel)
    stages = [share] * pipeline_parallel
    for position in range(2, rest + 2):
        stages[-position] += 1
    return tuple(stages)


PARTITION = "VLLM_PP_LAYER_PARTITION"


def stages(architecture: Architecture, topology: Topology, variables: Mapping[str, str]) -> tuple[int, ...]:
    """Return the layers of each pipeline stage by ``VLLM_PP_LAYER_PARTITION``, or as vLLM splits them.

    PlanRefused: the variable does not have one number for each stage with all layers as their sum.
    """
    pp, given = topology.pipeline_parallel, variables.get(PARTITION)
    if not given or pp == 1 or pp > architecture.layers:  # also for an unknown number of layers
        return stage_layers(architecture.layers, pp)
    parts = [part.strip() for part in given.split(",")]
    sizes = tuple(int(part) for part in parts if part.isdecimal())
    if len(parts) != pp or len(sizes) != pp or sum(sizes) != architecture.layers or 0 in sizes:
        example = ",".join(map(str, stage_layers(architecture.layers, pp)))
        raise PlanRefused(
            f"{PARTITION}: {given!r} is wrong. It needs a number of layers, 1 or more, for each of the {pp} pipeline stages, "
            f"{architecture.layers} in sum, such as {example}.",
            do=f"Correct {PARTITION} in the deployment's variables, or remove it to let vLLM split the layers.",
            reason="bad_option",
        )
    return sizes


def not_on_cpu(
    architecture: Architecture, topology: Topology, options: Mapping[str, object], variables: Mapping[str, str], accelerator: str
) -> tuple[str, ...]:
    """Return a sentence for each feature without CPU support in vLLM, which vLLM itself reports only after its start.

    Data parallel engines of a mixture of experts gather each other's tokens, but all_gatherv of vLLM's CPU communicator raises
    NotImplementedError (vllm/distributed/device_communicators/base_device_communicator.py, 0.32.0). Pipeline stages get their buffers in
    the warm-up, which vLLM skips in eager mode and with VLLM_CPU_CI_ENV (vllm/v1/worker/cpu_worker.py, 0.32.0). At the first request
    `assert self.intermediate_tensors is not None` then fails. Over several nodes, `mp` takes ranks for neighbours by
    `current_platform.device_count()` (vllm/distributed/device_communicators/shm_broadcast.py, create_from_process_group_single_reader,
    0.32.0), which is 1 on CPU. `assert local_message_queue is not None` then fails for the second rank of the first node.
    """
    if accelerator != "cpu":
        return ()
    found = []
    ranks = topology.replica_size // topology.nodes_of_a_replica
    if topology.executor == "mp" and topology.nodes_of_a_replica > 1 and topology.data_parallel == 1 and ranks > 1:
        found.append(
            f"executor mp with {ranks} ranks on each of {topology.nodes_of_a_replica} nodes does not start on CPU (vLLM 0.32.0); legal "
            f"here: one rank on each node, as with pipeline_parallel {topology.nodes_of_a_replica} alone, or topology.replicas."
        )
    if topology.pipeline_parallel > 1:
        what = {
            "options.enforce-eager: true": options.get("enforce-eager") or options.get("no-enforce-eager") is False,
            "variables.VLLM_CPU_CI_ENV": variables.get("VLLM_CPU_CI_ENV", "0") not in ("", "0"),
        }
        found += [
            f"{name} skips the warm-up, and without it pipeline_parallel {topology.pipeline_parallel} on CPU exits at the first request; "
            "legal here: `enforce-eager: false` and no VLLM_CPU_CI_ENV."
            for name, given in what.items()
            if given
        ]
    if architecture.moe and topology.data_parallel > 1:
        found.append(
            f"data_parallel {topology.data_parallel} of a mixture of experts does not work on CPU, because vLLM 0.32.0 has no all-gather "
            "for CPUs; legal here: data_parallel 1. Use topology.replicas instead."
        )
    return tuple(found)


def too_long(workloads: Mapping[str, LoadPoint], max_model_len: int | None, rows: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return a sentence for each workload with requests that the server would refuse: all of them, or the longest rows of a dataset.

    vLLM responds with 400 if a prompt is longer than max-model-len less the output tokens (vllm/renderers/params.py, 0.32.0).

    Args:
        workloads: one load point of each, by name.
        max_model_len: of the options; None if vLLM derives it.
        rows: the place of the longest prompt of a workload's dataset, by name of the workload.
    """
    places = rows or {}

    def sentence(name: str, load: LoadPoint) -> str:
        staged = isinstance(load.prompts, StagedPrompts)
        needs, refused = ("has a row that needs", "longer rows") if staged else ("needs", "every request")
        other = "a dataset without these rows" if staged else "other `workloads` for this deployment"
        place = f" (the longest prompt: {places[name]})" if name in places else ""
        return (
            f"workloads.{name} {needs} {in_words(load)}{place}, and options.max-model-len is {max_model_len}: vLLM responds with 400 to "
            f"{refused}; legal here: {load.request_tokens} and more, or {other}."
        )

    return tuple(
        sentence(name, load)
        for name, load in sorted(workloads.items())
        if max_model_len is not None and load.request_tokens > max_model_len
    )


def legality(
    architecture: Architecture, topology: Topology, devices_per_node: int, hiding: str = "", *, spread: bool = False
) -> tuple[str, ...]:
    """Return a sentence for each reason why vLLM would refuse the topology.

    Args:
        devices_per_node: devices that a node has.
        hiding: text about the devices that CUDA_VISIBLE_DEVICES hides, if any.
        spread: ranks have whole experts (enable-expert-parallel), so tensor_parallel need not divide their width.
    """
    tp, pp, dp = topology.tensor_parallel, topology.pipeline_parallel, topology.data_parallel
    errors = []
    if fault := _tensor_fault(architecture, tp, dp, spread):
        accepted = [str(size) for size in range(1, max(architecture.heads, tp) + 1) if not _tensor_fault(architecture, size, dp, spread)]
        errors.append(f"tensor_parallel {tp} {fault}; legal here: {', '.join(accepted) or 'none'}.")
    if pp > architecture.layers > 0:
        errors.append(f"pipeline_parallel {pp} exceeds {architecture.layers} layers; legal here: 1 to {architecture.layers}.")
    if topology.devices_per_node > devices_per_node:
        errors.append(
            f"tensor_parallel {tp} x pipeline_parallel {pp} x data_parallel {dp} x replicas {topology.replicas} = {topology.world_size} "
            f"ranks on {topology.nodes} node(s) need {topology.devices_per_node} devices on each, and a node has {devices_per_node}"
            f"{f' ({hiding})' if hiding else ''}. Lower one of the sizes, "
            f"{f'use more nodes, or {visible_gpus.PROBE_AGAIN}' if hiding else 'or use more nodes'}."
        )
    return tuple(errors)


def of_builtin(source: str, topology: Topology, options: Mapping[str, object]) -> tuple[str, ...]:
    """Return the sentences of :func:`legality` for a built-in model, on nodes with enough devices; nothing for other models.

    Args:
        source: as ``models.NAME.source``.
        options: the server's.
    """
    config = CONFIGS.get(source.removeprefix(BUILTIN)) if source.startswith(BUILTIN) else None
    if config is None:
        return ()
    spread = bool(flag(options, EXPERT_PARALLEL))
    return legality(Architecture.from_config(config), topology, topology.devices_per_node, spread=spread)


def _tensor_fault(architecture: Architecture, tp: int, dp: int, spread: bool) -> str | None:
    """Return vLLM's first condition that ``tensor_parallel`` breaks, as the rest of a sentence.

    Sources, vLLM 0.32.0: attention heads config/model.py verify_with_parallel_config; KV heads, split or replicated, models/qwen3.py and
    layers/linear.py QKVParallelLinear; MLP width layers/linear.py divide(); expert width fused_moe/config.py, sharded over tensor and data
    parallel ranks together; number of experts models/qwen3_moe.py; states ``State.fault``. vLLM pads the vocabulary. All models have the
    first condition; of a model that planning cannot size, the others are unknown.
    """
    if architecture.heads % tp:
        return f"does not divide {architecture.heads} attention heads"
    if architecture.unknown:
        return None
    if architecture.state and (fault := architecture.state.fault(tp)):
        return fault
    if not architecture.attention_layers:
        return None
    if architecture.kv_heads % tp and tp % architecture.kv_heads:
        return f"neither divides nor is a multiple of {architecture.kv_heads} KV heads"
    dense_width = architecture.dense_intermediate if architecture.expert_layers < architecture.layers else None
    if dense_width and dense_width % tp:
        return f"does not divide the MLP width {dense_width}"
    if architecture.moe and not spread and architecture.expert_intermediate % (tp * dp):
        width = architecture.expert_intermediate
        whole = "options.enable-expert-parallel: true keeps experts whole"
        return f"x data_parallel {dp} = {tp * dp} does not divide the expert width {width} ({whole})"
    if architecture.moe and tp > architecture.experts:
        return f"is greater than the number of experts, {architecture.experts}"
    return None
