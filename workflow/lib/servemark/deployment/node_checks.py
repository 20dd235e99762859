"""Every node of the allocation, looked at before a deployment starts and after it has ended."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from servemark.deployment.context import Stage, StageContext
from servemark.deployment.launcher import Ground, Tool
from servemark.errors import StageFailed
from servemark.nodes import allocation, port_plan, survey
from servemark.nodes.survey import Answer, Spec
from servemark.records import Node
from servemark.supervisor import process_request

LOOPBACK = "lo"
FOLDER = "survey"
# Parts of the hardware that CUDA_VISIBLE_DEVICES decides.
_OF_GPUS = ("accelerator", "gpus")
_AS_PROBED = f"set {process_request.VISIBLE} as it was when the machine was probed, or unset it if it was not set then"


def look(here: StageContext, ground: Ground) -> tuple[Node, ...]:
    """Tidy and describe every node; the servers' first, a client's own last.

    Raises:
        StageFailed: a node does not answer, lacks what the topology needs, or differs from the others; names node, expected, found.
    """
    alloc, topology, site = ground.alloc, here.plan.topology, here.config.cluster
    if len(alloc.nodes) < topology.all_nodes:
        raise StageFailed(
            f"The allocation has {len(alloc.nodes)} node(s), {', '.join(alloc.nodes)}; expected {topology.all_nodes}.",
            do="Run through the scheduler: `snakemake --profile slurm`."
            if alloc.job_id is None
            else "Remove options that change the number of nodes from `extra` of the cluster file and from the profile.",
            reason="nodes_missing",
        )
    spec = Spec(
        task="look",
        attempt=str(ground.attempt.absolute()),
        scratch=str(ground.scratch),
        python=here.environment.python,
        modules=here.plan.modules,
        interface=LOOPBACK if alloc.job_id is None else site.interface if site else None,
        ports=port_plan.needed(topology),
        known_as=alloc.known_as,
        job_id=alloc.job_id,
        listed_at=time.time(),
        jobs_alive=allocation.jobs_alive() if alloc.job_id else None,
    )
    found = [answer.node for answer in ask_all(here, ground, spec, here.timeouts.cluster) if answer.node]
    ordered = sorted(found, key=lambda node: alloc.nodes.index(node.name))
    servers = ordered[: topology.nodes]
    compare(servers, topology.devices_per_node, needs_ray=topology.traits.needs_ray)
    same_kind(servers, here.plan.key_parts["hardware"])
    if len(ordered) > 1:
        _check_reach(here, ground, spec, ordered)
    return tuple(ordered)


def _given(node: Node) -> str:
    """Return what a node's environment says of its devices, as half a sentence."""
    return f" ({process_request.VISIBLE} is {node.cuda_visible_devices!r} there)" if node.cuda_visible_devices is not None else ""


def compare(nodes: Sequence[Node], devices: int, *, needs_ray: bool) -> None:
    """Refuse nodes that lack devices, or on which the environment is not the same.

    Raises:
        StageFailed: names every node that differs, with what was expected there and what was found.
    """
    problems = [
        f"Node {node.name}: expected {devices} device(s) for ranks; found {node.devices}{_given(node)}."
        for node in nodes
        if node.devices < devices
    ]
    reason = "devices_missing"
    for what in ("Python", "vLLM", *(["Ray"] if needs_ray else [])):
        versions = [getattr(node, what.lower()) for node in nodes]
        usual = Counter(versions).most_common(1)[0][0] if len(nodes) > 2 else versions[0]
        example = nodes[versions.index(usual)].name
        for node, version in zip(nodes, versions, strict=True):
            if version != usual:
                reason = "versions_differ"
                problems.append(f"Node {node.name}: expected {what} {usual}, as on {example}; found {version}.")
    if problems:
        raise StageFailed(
            "\n".join(problems),
            do=f"Ask for nodes that have the devices (gpus_per_node in the cluster file); without a scheduler, {_AS_PROBED}."
            if reason == "devices_missing"
            else "Give an environment that lies on a disk which all nodes share, so that it is the same everywhere.",
            reason=reason,
        )


def same_kind(nodes: Sequence[Node], planned: Mapping[str, Any]) -> None:
    """Refuse nodes that are of another kind than the one that was probed and planned for: results would go by the wrong name.

    Raises:
        StageFailed: names each node, what was expected and what was found.
    """
    problems = [
        f"Node {node.name}: expected {what} {planned.get(what)}, as probed; found {found}{_given(node) if what in _OF_GPUS else ''}."
        for node in nodes
        for what, found in node.kind.items()
        if planned.get(what) != found
    ]
    if problems:
        raise StageFailed(
            "\n".join(problems),
            do=f"Ask for nodes of one kind (`constraint` or `partition` in the cluster file); without a scheduler, {_AS_PROBED}. "
            "If this kind is the right one, delete results/RUN/hardware.json and run again: everything is planned for it. "
            "Where `worked_out` in it has a number, set `small_jobs.whole_node: true` in the cluster file first.",
            reason="hardware_differs",
        )


def _check_reach(here: StageContext, ground: Ground, spec: Spec, every: Sequence[Node]) -> None:
    """Check that every other node connects to this process's own on the chosen addresses."""
    own = next(node for node in every if node.name == ground.alloc.nodes[0])
    with socket.create_server((own.address, 0), backlog=len(every)) as listener:
        asked = spec.model_copy(update={"task": "reach", "reach": (own.address, listener.getsockname()[1])})
        ask_all(here, ground, asked, here.timeouts.cluster, [node.name for node in every if node is not own])


def sweep(ground: Ground, timeout_s: float, log: Path) -> tuple[str, ...]:
    """End what is left of the attempt on every node, remove its scratch folders, and return what was ended, and where.

    A node that does not respond is no failure: with the job the scheduler ends what is there, and the next start there tidies up. So
    the records of a deployment whose node or network was lost are written all the same.
    """
    spec = Spec(task="sweep", attempt=str(ground.attempt.absolute()), scratch=str(ground.scratch))
    # Waiting for a controller takes no longer than waiting for the processes: the records are to be written.
    answers, silent, why = _ask(ground, spec, timeout_s, log, patience_s=timeout_s)
    named = [f"{answer.name}: {words}" for answer in answers for words in answer.ended]
    return (*named, *(f"{name}: could not be looked at ({why}); what is there ends with the job" for name in silent))


def ask_all(
    here: Stage,
    ground: Ground,
    spec: Spec,
    timeout_s: float,
    names: Sequence[str] | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> list[Answer]:
    """Ask nodes (all of the allocation without ``names``), all at once, and wait for every answer; ``waiting`` is called meanwhile.

    Raises:
        StageFailed: a node gives no answer in time, or its answer is a failure.
    """
    log = here.log
    answers, silent, why = _ask(ground, spec, timeout_s, log, names, watch=here.watch, check=waiting)
    if silent:
        lines = log.read_text(errors="replace").strip().splitlines()[-5:] if log.exists() else []
        nodes = f"Node{'s' if len(silent) > 1 else ''} {', '.join(silent)}"
        raise StageFailed(
            f"{nodes}: expected an answer within {timeout_s:.0f} s; found none ({why}).",
            look=str(log),
            do="See whether the node is well (`scontrol show node NAME`), and that it mounts the same disks; run again.",
            reason="node_silent",
            quote=tuple(lines),
        )
    if failed := [answer.failure for answer in answers if answer.failure]:
        what = "\n".join(failure.detail for failure in failed)
        raise StageFailed(what, look=str(log), do=failed[0].remedy, reason=failed[0].reason, quote=failed[0].quote)
    return answers


def _ask(
    ground: Ground, spec: Spec, timeout_s: float, log: Path, names: Sequence[str] | None = None, **how: Any
) -> tuple[list[Answer], list[str], str]:
    """Ask nodes, all at once: their answers, the nodes that gave none, and how the asking ended. ``how``: see :meth:`Tool.run`."""
    if ground.alloc.job_id is None:
        return [survey.answer(spec)], [], ""
    names = names or ground.alloc.nodes
    folder = ground.attempt / FOLDER / spec.task
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec").write_text(spec.model_dump_json(indent=2) + "\n")
    env = process_request.launcher_environment() | survey.variables()

    def ask(together: list[str]) -> str:
        argv = [*ground.alloc.launcher(*together), *survey.command(folder / "spec")]
        result = Tool(argv, env, launched=True).run(log=log, timeout_s=timeout_s, **how)
        return f"srun: {result.stopped or f'exit code {result.exit_code}'}"

    with ThreadPoolExecutor() as pool:
        ends = list(pool.map(ask, ground.alloc.by_component(names)))
    answers = [folder / f"{name}.json" for name in names]
    answered = [Answer.model_validate_json(path.read_text()) for path in answers if path.exists()]
    return answered, [path.stem for path in answers if not path.exists()], "; ".join(ends)
