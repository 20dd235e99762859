"""Checks of every node of the allocation, before a deployment starts and after it has ended."""

import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from servemark.deployment.context import StageContext
from servemark.deployment.launcher import Launcher, Tool
from servemark.deployment.stage import Stage
from servemark.errors import StageFailed
from servemark.nodes import allocation, port_plan, survey
from servemark.nodes.survey import NodeResult, Spec
from servemark.processes import children
from servemark.records import Node
from servemark.supervisor import process_request

LOOPBACK = "lo"
FOLDER = "survey"
# Parts of the hardware that depend on CUDA_VISIBLE_DEVICES.
_OF_GPUS = ("accelerator", "gpus", "gpu_links")
_AS_PROBED = f"set {process_request.VISIBLE} as it was when servemark probed the machine, or unset it if it was not set then"


_WARNED = {"kernel": "kernel", "glibc": "C library"}
"""Parts of the hardware in which single nodes may differ: part -> its name."""
_SHOWN_PACKAGES = 5


def look(here: StageContext, launcher: Launcher) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """Prepare and describe every node; the servers' first, a client's own last.

    Returns:
        the nodes, and a sentence for each difference between the servers' nodes that does not stop the start.

    Raises:
        StageFailed: a node does not respond, has too few devices, or differs from the others; names node, expected, found.
    """
    alloc, topology, site = launcher.alloc, here.plan.topology, here.config.cluster
    if len(alloc.nodes) < topology.all_nodes:
        raise StageFailed(
            f"The allocation has {len(alloc.nodes)} node(s), {', '.join(alloc.nodes)}; expected {topology.all_nodes}.",
            do="Run through the scheduler: `snakemake --profile slurm`."
            if alloc.job_id is None
            else "Remove options that change the number of nodes from `extra` in the cluster file and from the profile.",
            reason="nodes_missing",
        )
    spec = Spec(
        task="look",
        attempt=str(launcher.attempt.absolute()),
        scratch=str(launcher.scratch),
        python=here.environment.python,
        container=here.container(),
        modules=here.plan.modules,
        interface=LOOPBACK if alloc.job_id is None else site.interface if site else None,
        devices=topology.devices_per_node,
        ports=port_plan.needed(topology),
        known_as=alloc.known_as,
        job_id=alloc.job_id,
        listed_at=time.time(),
        jobs_alive=allocation.jobs_alive() if alloc.job_id else None,
    )
    results = run_on_all(here, launcher, spec, here.timeouts.cluster)
    found = [result.node for result in results if result.node]
    ordered = sorted(found, key=lambda node: alloc.nodes.index(node.name))
    servers = ordered[: topology.nodes]
    packages = {result.name: result.distributions for result in results}
    compare(servers, topology.devices_per_node, needs_ray=topology.traits.needs_ray, packages=packages)
    warnings = same_kind(servers, here.plan.key_parts["hardware"])
    if len(ordered) > 1:
        _check_reach(here, launcher, spec, ordered)
    return tuple(ordered), warnings


def _visible_there(node: Node) -> str:
    """Return words for a node's CUDA_VISIBLE_DEVICES, to be appended."""
    return f" ({process_request.VISIBLE} is {node.cuda_visible_devices!r} there)" if node.cuda_visible_devices is not None else ""


def compare(nodes: Sequence[Node], devices: int, *, needs_ray: bool, packages: Mapping[str, Mapping[str, str]] | None = None) -> None:
    """Refuse nodes with too few devices or a different environment.

    Args:
        packages: node -> the environment's packages there, to name those that differ.

    Raises:
        StageFailed: names every such node, expected and found.
    """
    problems = [
        f"Node {node.name}: expected {devices} device(s) for ranks; found {node.devices}{_visible_there(node)}."
        for node in nodes
        if node.devices < devices
    ]
    reason = "devices_missing"
    for what in ("Python", "vLLM", *(["Ray"] if needs_ray else []), "torch", "NCCL", "packages"):
        versions = [getattr(node, what.lower()) for node in nodes]
        usual = Counter(versions).most_common(1)[0][0] if len(nodes) > 2 else versions[0]
        example = nodes[versions.index(usual)].name
        for node, version in zip(nodes, versions, strict=True):
            if version != usual:
                reason = "versions_differ"
                if what != "packages":
                    problems.append(f"Node {node.name}: expected {what} {usual}, as on {example}; found {version}.")
                else:
                    problems += _other_packages(node.name, example, packages or {})
    if problems:
        raise StageFailed(
            "\n".join(problems),
            do=f"Request nodes with enough devices (gpus_per_node in the cluster file). Without a scheduler, {_AS_PROBED}."
            if reason == "devices_missing"
            else "Use an environment on a disk that all nodes share.",
            reason=reason,
        )


def _other_packages(name: str, example: str, packages: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a sentence for each package that a node has in another form than ``example``, at most five and the number of the others."""
    expected, found = packages.get(example, {}), packages.get(name, {})
    differing = sorted(one for one in expected.keys() | found.keys() if expected.get(one) != found.get(one))
    if not differing:
        return [f"Node {name}: expected the same packages as on {example}; found others."]
    shown = [
        f"Node {name}: expected package {one} {expected.get(one, '(none)')}, as on {example}; found {found.get(one, 'none')}."
        for one in differing[:_SHOWN_PACKAGES]
    ]
    more = len(differing) - len(shown)
    return [*shown, *([f"Node {name}: {more} more packages differ."] if more else [])]


def same_kind(nodes: Sequence[Node], planned: Mapping[str, Any]) -> tuple[str, ...]:
    """Refuse nodes whose hardware differs from the probed hardware, which stands in the ledger keys.

    A node's GPU links are accepted if the probe could not see them: then they are not in the keys. Another kernel or C library is accepted
    if at least one node has the probed one. If no node has it, the ledger key would name a version on which nothing ran.

    Returns:
        a sentence for each accepted kernel or C library.

    Raises:
        StageFailed: names each such node, expected and found.
    """
    accepted = [what for what in _WARNED if any(node.kind.get(what) == planned.get(what) for node in nodes)]
    differing = [
        (node, what, found)
        for node in nodes
        for what, found in node.kind.items()
        if planned.get(what) != found and not (what == "gpu_links" and planned.get(what) is None)
    ]
    warnings = tuple(
        f"Node {node.name} has {_WARNED[what]} {found}; the ledger keys state {planned.get(what)}, as probed."
        for node, what, found in differing
        if what in accepted
    )
    problems = [
        f"Node {node.name}: expected {what} {planned.get(what)} (probed); found {found}{_visible_there(node) if what in _OF_GPUS else ''}."
        for node, what, found in differing
        if what not in accepted
    ]
    if problems:
        raise StageFailed(
            "\n".join(problems),
            do=f"Request nodes of one kind (`constraint` or `partition` in the cluster file). Without a scheduler, {_AS_PROBED}. "
            "If this kind is the right one, delete results/RUN/hardware.json and rerun: servemark plans for it then. "
            "If that file has an entry under `worked_out`, servemark estimated these numbers from a part of a node: set "
            "`small_jobs.whole_node: true` in the cluster file first.",
            reason="hardware_differs",
        )
    return warnings


def _check_reach(here: StageContext, launcher: Launcher, spec: Spec, every: Sequence[Node]) -> None:
    """Check that every other node can connect to this one on the chosen addresses."""
    own = next(node for node in every if node.name == launcher.alloc.nodes[0])
    with socket.create_server((own.address, 0), backlog=len(every)) as listener:
        asked = spec.model_copy(update={"task": "reach", "reach": (own.address, listener.getsockname()[1])})
        run_on_all(here, launcher, asked, here.timeouts.cluster, [node.name for node in every if node is not own])


def sweep(launcher: Launcher, timeout_s: float, log: Path) -> tuple[str, ...]:
    """End the attempt's remaining processes on every node, remove its scratch folders, and return a line for each process.

    A node that does not respond is no failure: Slurm ends its processes with the job, and the next start there removes the rest. So the
    records of a deployment with a lost node are still written.
    """
    spec = Spec(task="sweep", attempt=str(launcher.attempt.absolute()), scratch=str(launcher.scratch))
    # Wait for slurmctld no longer than for the processes, because the records must be written.
    results, silent, why = _run_task(launcher, spec, timeout_s, log, patience_s=timeout_s)
    named = [f"{result.name}: {words}" for result in results for words in result.ended]
    return (*named, *(f"{name}: not checked ({why}); Slurm ends its processes with the job" for name in silent))


def run_on_all(
    here: Stage,
    launcher: Launcher,
    spec: Spec,
    timeout_s: float,
    names: Sequence[str] | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> list[NodeResult]:
    """Run a task on ``names`` (default: all nodes of the allocation) at once and return their results; call ``waiting`` meanwhile.

    Raises:
        StageFailed: a node does not respond in time, or the task failed on it.
    """
    log = here.log
    results, silent, why = _run_task(launcher, spec, timeout_s, log, names, watch=here.watch, check=waiting)
    if silent:
        lines = log.read_text(errors="replace").strip().splitlines()[-5:] if log.exists() else []
        nodes = f"Node{'s' if len(silent) > 1 else ''} {', '.join(silent)}"
        raise StageFailed(
            f"{nodes}: expected a response within {timeout_s:.0f} s; found none ({why}).",
            look=str(log),
            do="Check the node's state (`scontrol show node NAME`) and that it mounts the same disks. Then rerun.",
            reason="node_silent",
            quote=tuple(lines),
        )
    if failed := [result.failure for result in results if result.failure]:
        what = "\n".join(failure.detail for failure in failed)
        raise StageFailed(what, look=str(log), do=failed[0].remedy, reason=failed[0].reason, quote=failed[0].quote)
    return results


def _run_task(
    launcher: Launcher, spec: Spec, timeout_s: float, log: Path, names: Sequence[str] | None = None, **how: Any
) -> tuple[list[NodeResult], list[str], str]:
    """Run a task on nodes at once; return results, nodes without a result, and how srun ended. ``how``: see :meth:`Tool.run`."""
    if launcher.alloc.job_id is None:
        return [survey.run_task(spec)], [], ""
    names = names or launcher.alloc.nodes
    folder = launcher.attempt / FOLDER / spec.task
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec").write_text(spec.model_dump_json(indent=2) + "\n")
    env = process_request.launcher_environment() | children.python_path()

    def run(together: list[str]) -> str:
        argv = [*launcher.alloc.srun(*together), *survey.command(folder / "spec")]
        result = Tool(argv, env, launched=True).run(log=log, timeout_s=timeout_s, **how)
        return f"srun: {result.stopped or f'exit code {result.exit_code}'}"

    with ThreadPoolExecutor() as pool:
        ends = list(pool.map(run, launcher.alloc.by_component(names)))
    files = [folder / f"{name}.json" for name in names]
    results = [NodeResult.model_validate_json(path.read_text()) for path in files if path.exists()]
    return results, [path.stem for path in files if not path.exists()], "; ".join(ends)
