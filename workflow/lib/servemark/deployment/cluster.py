"""start_cluster: survey the nodes, then start what the executor needs before the servers."""

import contextlib
import itertools
import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from servemark import supervisor
from servemark.deployment import attempts, executors, node_checks, telemetry
from servemark.deployment.context import StageContext
from servemark.deployment.launcher import Launcher, new_scratch, on_node
from servemark.environments.build import verify as verify_environment
from servemark.errors import ServemarkError, StageFailed
from servemark.files import private, storage
from servemark.files.content import Hashes
from servemark.measurement import contents
from servemark.measurement.accuracy import Checks
from servemark.measurement.ledger import Ledger
from servemark.nodes import allocation
from servemark.nodes.survey import Spec, kill
from servemark.planning.placement import place
from servemark.processes import shared_memory
from servemark.progress import Progress
from servemark.records import Cluster, Node
from servemark.weights import local
from servemark.weights.manifest import verify

STAGE = "start_cluster"
# A supervisor writes its first state after Python's imports, which are slow on a shared file system.
SUPERVISOR_START_S = 60.0


def start(here: StageContext, ledger: Ledger, *, hold: bool = False) -> Cluster:
    """Start a deployment's supervisor and cluster, unless the ledger has all points. ``hold``: start them in any case, to serve users.

    Returns:
        the live record; with ``failure`` if something did not start. Everything is stopped then.
    """
    plan, progress, timeouts = here.plan, here.progress, here.timeouts
    keys = [point.key for point in plan.points]
    replay = Cluster(deployment=plan.deployment, replay=True)

    def complete() -> bool:
        if hold or ledger.missing(keys):
            return False
        from servemark.deployment.trials import missing_trials  # only here: it imports numpy

        return not missing_trials(here.config, plan, ledger) and not Checks(ledger.root).missing(plan)

    if complete():
        progress.say(f"all {len(keys)} points are in the ledger: nothing is started")
        return replay
    begin = time.monotonic()
    alloc = allocation.current()
    _end_leftovers(here.deployment, progress)
    scratch = new_scratch(here.config, private.runtime_root(), alloc)
    attempt = attempts.open_attempt(plan.deployment, here.deployment, scratch, alloc, stop_grace_s=timeouts.stop)
    ends_at = None if alloc.ends_at is None else datetime.fromtimestamp(alloc.ends_at, UTC).isoformat(timespec="seconds")
    record = Cluster(deployment=plan.deployment, attempt=str(attempt), job_id=alloc.job_id, ends_at=ends_at)
    try:
        _take_machine(attempt, progress)
        waited = time.monotonic() - begin
        if complete():
            progress.say(f"an identical deployment has measured all {len(keys)} points meanwhile: nothing is started")
            supervisor.stop(attempt, timeouts.stop + 15)
            shutil.rmtree(attempt)
            return replay
        progress.say(f"checking {len(alloc.nodes)} node(s): {', '.join(alloc.nodes)}")
        launcher = Launcher(alloc, attempt, scratch)
        found, warnings = node_checks.look(here, launcher)
        for words in warnings:
            progress.say(f"warning: {words}")
        for node in found:
            for words in node.leftovers:
                progress.say(f"ended a process left by an earlier attempt on {node.name}: {words}")
        _point_out_faster(found, progress)
        # Not earlier: hashing would disturb another deployment that is being measured.
        model_path = _model(here, launcher)
        verify_environment(here.environment, here.config.cache, progress, plan.modules)
        contents.verify(plan.contents, here.config.cache)
        record = record.model_copy(
            update={"nodes": found, "warnings": warnings, "replicas": place(plan.topology), "model_path": model_path}
        )
        if not hold:
            telemetry.start(here, launcher, found, record.replicas)
        record = record.model_copy(update=executors.of(here, launcher, found).bring_up(record.replicas))
    except ServemarkError as error:
        failure = attempts.fail(attempt, attempts.from_error(STAGE, error), timeouts.stop)
        return record.model_copy(update={"failure": failure})
    seconds = round(time.monotonic() - begin - waited, 2)
    progress.say(f"{len(found)} node(s) checked and ready in {seconds:.1f} s")
    return record.model_copy(update={"seconds": seconds})


def _model(here: StageContext, launcher: Launcher) -> str:
    """Return the model's folder for the servers: the staged one, or a copy on each node's own disk.

    Raises:
        WeightsRefused: its files differ from the manifest.
        StageFailed: a node has too little disk space or does not respond.
    """
    manifest, site = here.manifest, here.config.cluster
    if site is None or site.local_models is None:
        here.progress.say("checking the model's files against their manifest")
        verify(manifest, hashes=Hashes(here.config.cache, manifest.path))
        return manifest.path
    folder = on_node("local_models", site.local_models)
    servers = launcher.alloc.nodes[: here.plan.topology.nodes]
    spec = Spec(task="copy", attempt=str(launcher.attempt), scratch=str(launcher.scratch), model=manifest, models=str(folder))
    size = f"{manifest.bytes / 2**30:.2f} GiB"
    here.progress.say(f"copying the model ({size}) to {folder} on {len(servers)} node(s), unless it is there")

    def waiting() -> None:
        here.progress.waiting("waiting for the model's copies")

    for result in node_checks.run_on_all(here, launcher, spec, here.timeouts.copy_model, servers, waiting):
        took = f"copied in {result.copied_s:.1f} s" if result.copied_s else "already there"
        here.progress.say(f"the model's copy on {result.name}: {took}")
    return str(local.place(folder, manifest.digest))


def _point_out_faster(nodes: Sequence[Node], progress: Progress) -> None:
    """Report nodes with a faster interface than the one between the nodes."""
    for node in nodes if len(nodes) > 1 else ():
        if node.faster:
            fast, speeds = node.faster[0], [(one or 0) / 1000 for one in (node.speed_mbit, node.faster[0].speed_mbit)]
            progress.say(
                f"warning: {node.name} uses {node.interface} ({speeds[0]:g} Gbit/s) between the nodes; {fast.name} ({fast.address}) has "
                f"{speeds[1]:g} Gbit/s. To use it, set `interface: {fast.name}` in the cluster file."
            )


def _end_leftovers(folder: Path, progress: Progress) -> None:
    """End processes of earlier attempts on this machine, and remove what killed supervisors left."""
    every = attempts.every(folder)
    for attempt in every:
        if supervisor.is_alive(attempt):
            progress.say(f"an earlier attempt ({attempt.name}) still runs: ending it")
            with contextlib.suppress(TimeoutError):
                supervisor.stop(attempt, 30)
    for words in kill(lambda: attempts.left_over(*every)):
        progress.say(f"ended a process left by an earlier attempt: {words}")
    for attempt in itertools.filterfalse(supervisor.copied, every):
        # Only a killed supervisor leaves its scratch folder.
        with contextlib.suppress(OSError, ValueError):
            scratch = attempts.scratch_folder(attempt)
            shared_memory.remove_noted(scratch)
            shutil.rmtree(scratch, ignore_errors=True)


def _take_machine(attempt: Path, progress: Progress) -> None:
    """Wait until the supervisor has the machine lock, however long another deployment needs it.

    Raises:
        StageFailed: the supervisor has ended, or did not start.
    """
    deadline = time.monotonic() + SUPERVISOR_START_S
    while True:
        state = supervisor.read_state(attempt)
        if state and state.state == "running":
            return
        if (state and not supervisor.is_alive(attempt)) or (state is None and time.monotonic() > deadline):
            why, log = (state and state.why) or "none", supervisor.own_file(attempt, supervisor.LOG)
            raise StageFailed(
                f"The supervisor process exited before it started a server. Recorded reason: {why}.",
                look=str(log),
                do="Read the quoted lines, fix the cause, and rerun the same command.",
                reason=why if why in storage.REASONS.values() else "keeper_ended",
                quote=tuple(log.read_text(errors="replace").splitlines()[-3:]) if log.exists() else (),
            )
        if state and state.waiting_for:
            holder = state.waiting_for.split(" (")[0]
            progress.waiting(f"waiting for the machine, in use by {holder}", every_s=20, queued=True)
        time.sleep(0.05)
