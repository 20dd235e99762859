"""Telemetry of a deployment: a sampler on each node of the servers, and its samples during a load point."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from servemark import supervisor
from servemark.deployment.context import StageContext
from servemark.deployment.launcher import Launcher
from servemark.environments.build import IN_MODEL_ENV
from servemark.errors import StageFailed
from servemark.measurement.raw import RawError, RawResult
from servemark.processes import identity
from servemark.records import Node, Replica, Telemetry, TelemetryTimeline
from servemark.supervisor.process_request import DaemonRequest

if TYPE_CHECKING:
    from servemark.measurement.samples import NodeSamples

FOLDER = "telemetry"
SAMPLER = "telemetry"
_SCRIPT = IN_MODEL_ENV / "gpu_watch.py"
# A sample after the end of a load is due within the interval. After this time without one there is a gap (measurement.telemetry.GAP_S).
LATE_S = 3.5
_POLL_S = 0.1


def start(here: StageContext, launcher: Launcher, nodes: Sequence[Node], replicas: Sequence[Replica]) -> None:
    """Start a sampler on each node with ranks. A deployment without its samplers is measured all the same.

    Raises:
        StageFailed: the supervisor has ended.
    """
    for index in sorted({part.node for replica in replicas for part in replica.parts}):
        node = nodes[index]
        name = SAMPLER if index == 0 else f"{SAMPLER}-n{index}"
        file = launcher.attempt.absolute() / FOLDER / f"{node.name}.jsonl"
        file.parent.mkdir(exist_ok=True)
        what = _gpus(launcher, index, node, replicas) if here.hardware.accelerator == "cuda" else ["--cpu"]
        own = [*("--mark", "=".join(*identity.mark(launcher.attempt).items())), "--owner", _owners(here, launcher)]
        own += [word for folder in (launcher.attempt.absolute(), launcher.scratch) for word in ("--folder", str(folder))]
        request = DaemonRequest(
            name=name,
            argv=(here.environment.python, str(_SCRIPT), str(file), "--node", node.name, *own, *what),
            env={},
            log=str(launcher.attempt / f"{name}.log"),
            grace_s=2.0,
            optional=True,
            # Modules may bring the runtime of the image; the sampler needs none itself.
            modules=here.plan.modules if here.environment.container else (),
            container=here.container(),
        )
        try:
            launcher.start(node.name, request)
        except StageFailed as error:
            if error.reason != "never_started":
                raise
            here.progress.say(f"warning: there is no telemetry of {node.name}: {error.what}")


def _owners(here: StageContext, launcher: Launcher) -> str:
    """Return the processes whose descendants are the deployment's. From a container, the sampler cannot detect the supervisor itself."""
    found = [str(identity.owner_process())]
    if here.environment.container and (state := supervisor.read_state(launcher.attempt)):
        found.append(state.identity)
    return ",".join(found)


def _gpus(launcher: Launcher, index: int, node: Node, replicas: Sequence[Replica]) -> list[str]:
    """Return the options that name a node's GPUs: those with ranks, and in a job all others that it has there."""
    ranks = {device: replica.name for replica in replicas for part in replica.parts if part.node == index for device in part.devices}
    every = range(node.devices) if launcher.alloc.job_id else sorted(ranks)
    return ["--gpus", *(f"{device}={ranks[device]}" if device in ranks else str(device) for device in every)]


def collect(attempt: Path, since: float, raw: RawResult | RawError) -> tuple[Telemetry | None, TelemetryTimeline | None]:
    """Return the samples of a load, in total and second by second; nothing if the attempt has no samplers.

    Wait for a sample after the end of the load, so that both ends can be interpolated.

    Args:
        since: when the client was started, seconds since 1970.
    """
    # Only here: start_cluster starts the samplers, and does not need numpy.
    from servemark.measurement import samples
    from servemark.measurement.clients import wall_window

    bounds = None if isinstance(raw, RawError) else wall_window(raw)
    if bounds is None or not (attempt / FOLDER).is_dir():
        return None, None
    # As in the record, so that the record and the samples give the same values again.
    begin, end = (round(moment, 3) for moment in bounds)
    deadline = max(time.time(), end) + LATE_S
    while True:
        found = _read(attempt)
        now = time.time()
        if now > deadline or all(_is_complete(one, end) for one in found):
            return samples.telemetry(found, samples.Window(since, begin, end, now)), samples.timeline(found, since, end)
        time.sleep(_POLL_S)


def _read(attempt: Path) -> list[NodeSamples]:
    """Return the samples of each node, in the order in which the supervisor started the samplers."""
    from servemark.measurement import samples

    names = [daemon.node for daemon in supervisor.read_daemons(attempt) if daemon.name.split("-")[0] == SAMPLER]
    return [samples.read(name, attempt / FOLDER / f"{name}.jsonl") for name in names if name]


def _is_complete(one: NodeSamples, end: float) -> bool:
    return bool((one.header and one.header.fault) or (len(one.times) and one.times[-1] >= end))
