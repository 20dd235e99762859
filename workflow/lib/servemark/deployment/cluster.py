"""start_cluster: take the machine, then bring up Ray where the topology asks for it, and check what came up."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from pathlib import Path

from servemark import keeper, launch, processes
from servemark.deployment import attempts
from servemark.environment import INSIDE
from servemark.errors import ServemarkError, StageFailed
from servemark.keeper import DaemonRequest
from servemark.measurement.ledger import Ledger
from servemark.processes import LifelineWatch, run_tool
from servemark.progress import Progress
from servemark.records import Cluster, Environment, Failure, Hardware, Manifest, Plan
from servemark.weights.manifest import verify

STAGE = "start_cluster"
ADDRESS = "127.0.0.1"
INTERFACE = "lo"
# A keeper says its first word after the imports of an interpreter, slow on a shared file system.
KEEPER_START_S = 60.0


def start(
    plan: Plan,
    environment: Environment,
    manifest: Manifest,
    hardware: Hardware,
    ledger: Ledger,
    folder: Path,
    *,
    timeout_s: float,
    stop_s: float,
    log: Path,
    progress: Progress,
    watch: LifelineWatch,
) -> Cluster:
    """Start what the deployment stands on, unless the ledger already has every one of its points.

    Returns:
        the token; with ``failure`` when something did not come up. Everything is stopped then.
    """
    keys = [point.key for point in plan.points]
    replay = Cluster(deployment=plan.deployment, replay=True)
    if not ledger.missing(keys):
        progress.say(f"all {len(keys)} points are in the ledger: nothing is started")
        return replay
    begin = time.monotonic()
    _end_leftovers(folder, progress)
    attempt, scratch = attempts.open_attempt(plan.deployment, folder, stop_grace_s=stop_s)
    try:
        _take_machine(attempt, progress)
        waited = time.monotonic() - begin
        if not ledger.missing(keys):
            progress.say(
                f"all {len(keys)} points were measured meanwhile, on a deployment that is the same: nothing is started"
            )
            keeper.stop(attempt, stop_s + 15)
            shutil.rmtree(attempt)
            return replay
        # Only now: hashing while another deployment is measured would disturb it.
        progress.say("checking the model's files against their manifest")
        verify(manifest)
        if plan.topology.executor != "ray":
            return Cluster(deployment=plan.deployment, attempt=str(attempt))
        address, nodes = _start_ray(plan, environment, hardware, attempt, scratch, timeout_s, log, progress, watch)
    except ServemarkError as error:
        failure = attempts.fail(attempt, attempts.from_error(STAGE, error), stop_s)
        return Cluster(deployment=plan.deployment, attempt=str(attempt), failure=failure)
    seconds = round(time.monotonic() - begin - waited, 2)
    return Cluster(
        deployment=plan.deployment, attempt=str(attempt), ray_address=address, nodes=tuple(nodes), seconds=seconds
    )


def _end_leftovers(folder: Path, progress: Progress) -> None:
    """End what an earlier attempt left although its keeper is gone (the keeper itself was killed)."""
    for attempt in attempts.every(folder):
        if keeper.is_alive(attempt):
            progress.say(f"an earlier attempt ({attempt.name}) still runs: ending it")
            with contextlib.suppress(TimeoutError):
                keeper.stop(attempt, 30)
        for process in attempts.left_over(attempt):
            progress.say(f"ending a process left by attempt {attempt.name}: {processes.describe(process)}")
            processes.signal_all([process], 9)


def _take_machine(attempt: Path, progress: Progress) -> None:
    """Wait for the keeper to have the machine, however long another deployment needs it.

    Raises:
        StageFailed: the keeper does not come up, or ends before it has the machine.
    """
    deadline = time.monotonic() + KEEPER_START_S
    while True:
        state = keeper.read_state(attempt)
        if state and state.state == "running":
            return
        if (state and not keeper.is_alive(attempt)) or (state is None and time.monotonic() > deadline):
            raise StageFailed(
                f"The keeper ended before it began ({(state and state.why) or 'it left no word'}).",
                look=str(attempt / "keeper.log"),
                reason="keeper_ended",
            )
        if state and state.waiting_for:
            progress.waiting(f"waiting for the machine, in use by {state.waiting_for.split(' (')[0]}", every_s=20)
        time.sleep(0.05)


def _start_ray(
    plan: Plan,
    environment: Environment,
    hardware: Hardware,
    attempt: Path,
    scratch: Path,
    timeout_s: float,
    log: Path,
    progress: Progress,
    watch: LifelineWatch,
) -> tuple[str, list[dict]]:
    token = attempts.secret(attempt, "ray-token")
    start = int(scratch.name, 16)
    port, client_port, metrics_port = launch.free_ports(ADDRESS, 3, start)
    env = launch.server_environment(plan, hardware, INTERFACE) | launch.ray_environment(
        str(token.absolute()), str(scratch)
    )
    devices = plan.topology.world_size
    argv = launch.ray_head(
        environment.python, ADDRESS, port, client_port, devices, max(hardware.cpu_count, devices), str(scratch)
    )
    ray_log = attempt / "ray-head.log"
    daemon = DaemonRequest(
        name="ray-head", argv=tuple(argv), env=env | {"AUTOSCALER_METRIC_PORT": str(metrics_port)}, log=str(ray_log)
    )
    progress.say(f"starting Ray on {ADDRESS}:{port}")
    try:
        keeper.request(attempt, daemon)
    except TimeoutError as error:
        raise StageFailed(str(error), look=str(attempt / "keeper.log"), reason="keeper_ended") from None
    address = f"{ADDRESS}:{port}"
    nodes = _gate(environment, env, address, 1, devices, attempt, timeout_s, log, progress, watch)
    return address, nodes


def _gate(
    environment: Environment,
    env: dict[str, str],
    address: str,
    nodes: int,
    devices: int,
    attempt: Path,
    timeout_s: float,
    log: Path,
    progress: Progress,
    watch: LifelineWatch,
) -> list[dict]:
    """Wait until Ray itself reports the nodes and devices we asked for.

    Raises:
        StageFailed: Ray ended, or the cluster was not complete before the deadline; says what was there.
    """
    facts = attempt / "ray-nodes.json"
    argv = [
        environment.python,
        str(INSIDE / "ray_gate.py"),
        address,
        str(nodes),
        str(devices),
        str(timeout_s),
        str(facts),
    ]

    def check() -> str | None:
        progress.waiting(f"waiting for the Ray cluster ({nodes} node, {devices} devices)")
        daemon = attempts.find_daemon(attempt, "ray-head")
        return f"{attempts.how_it_ended(daemon)}" if daemon and daemon.ended_at else None

    result = run_tool(
        argv, log=log, env=processes.clean_environment(env), timeout_s=timeout_s + 30, watch=watch, check=check
    )
    if result.exit_code == 0 and not result.stopped:
        return json.loads(facts.read_text())["nodes"]
    # A gate that gives up before its time has met something broken, mostly a head that ends in the same moment.
    daemon = attempts.await_end(attempt, "ray-head", 2.0 if result.seconds < timeout_s else 0.0)
    if daemon and daemon.ended_at:
        failure: Failure = attempts.explain_end(
            STAGE, attempt, daemon, f"Ray did not come up, {attempts.how_it_ended(daemon)}", "ray_exited"
        )
        raise StageFailed(
            failure.detail, look=failure.log, do=failure.remedy, reason=failure.reason, quote=failure.quote
        )
    said = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
    raise StageFailed(
        f"The Ray cluster was not complete after {result.seconds:.0f} s: {result.stopped or (said[0] if said else 'no answer')}",
        look=str(attempt / "ray-head.log"),
        do="Read Ray's log; raise timeouts.cluster if it was only slow.",
        reason="ray_incomplete",
        quote=tuple(said),
    )
