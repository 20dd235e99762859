"""Survey of one node of an allocation: ``python -m servemark.nodes.survey SPEC.json`` runs on all nodes at once.

Before a deployment starts, it ends processes of earlier attempts, removes their folders, makes a private scratch folder, and records
devices, addresses, versions and free ports. After a deployment it ends processes that are left. It writes ``NODE.json`` next to the spec.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import psutil

from servemark.containers import entering
from servemark.containers.runtimes import RUNTIMES
from servemark.errors import ServemarkError, StageFailed
from servemark.files import storage
from servemark.files.private import private
from servemark.machine import fast_networks, hardware, network, visible_gpus
from servemark.measurement.key import hardware_part
from servemark.processes import identity, shared_memory
from servemark.processes.identity import here
from servemark.records import Container, Failure, Hardware, Manifest, Node, Strict, write_atomically
from servemark.supervisor import ownership, process_request
from servemark.variables import passed_on
from servemark.weights import local

REACH_S = 10.0


class Spec(Strict):
    """The task for all nodes. ``known_as``: Slurm's address of each node."""

    task: Literal["look", "reach", "copy", "sweep"]
    attempt: str
    scratch: str
    python: str = ""
    modules: tuple[str, ...] = ()
    container: Container | None = None
    interface: str | None = None
    # Devices in use on each node.
    devices: int = 1
    # Number of free ports to find.
    ports: int = 1
    known_as: dict[str, str] = {}
    job_id: str | None = None
    # This user's jobs that have not ended, and when they were listed.
    jobs_alive: tuple[str, ...] | None = None
    listed_at: float = 0.0
    # Address and port on the first node, to which the others try to connect.
    reach: tuple[str, int] | None = None
    # The model to copy to this node's disk, and the folder for such copies.
    model: Manifest | None = None
    models: str = ""


class NodeResult(Strict):
    """The result of one node. After the task ``look`` exactly one of ``node`` and ``failure`` is set.

    ``distributions``: the environment's packages there -> version and digest. ``copied_s``: how long the model's copy took; 0: it existed.
    """

    name: str
    node: Node | None = None
    failure: Failure | None = None
    distributions: dict[str, str] = {}
    ended: tuple[str, ...] = ()
    copied_s: float | None = None


def run_task(spec: Spec) -> NodeResult:
    """Do the task on this machine."""
    scratch = Path(spec.scratch)
    if spec.task == "sweep":
        ended = kill(lambda: identity.marked(Path(spec.attempt), scratch))
        shared_memory.remove_noted(scratch)
        shutil.rmtree(scratch, ignore_errors=True)
        return NodeResult(name=here(), ended=ended)
    try:
        if spec.task == "look":
            node, distributions = look(spec)
            return NodeResult(name=here(), node=node, distributions=distributions)
        if spec.task == "copy":
            assert spec.model
            return NodeResult(name=here(), copied_s=local.copy(spec.model, Path(spec.models), private))
        reach(spec)
        return NodeResult(name=here())
    except ServemarkError as error:
        # Errors of other tasks name the node.
        what, quote = f"Node {here()}: {error.what}" if spec.task == "copy" else error.what, getattr(error, "quote", ())
        failure = Failure(stage="start_cluster", reason=error.reason, detail=what, quote=quote, remedy=error.do)
    except OSError as error:
        refused = storage.refusal(error, [scratch, Path(spec.models or spec.scratch)])
        if refused is None:
            raise
        failure = Failure(stage="start_cluster", reason=refused.reason, detail=f"Node {here()}: {refused.what}", remedy=refused.do)
    return NodeResult(name=here(), failure=failure)


def kill(find: Callable[[], list[psutil.Process]]) -> tuple[str, ...]:
    """Kill the processes that ``find`` returns until it returns none, at most 5 s; return their descriptions.

    A process may start another one before it is killed, so one pass is not enough.
    """
    named: dict[int, str] = {}
    deadline = time.monotonic() + 5
    while (found := find()) and time.monotonic() < deadline:
        named = {process.pid: identity.describe(process) for process in found} | named
        identity.signal_all(found, signal.SIGKILL)
        time.sleep(0.05)
    return tuple(named.values())


def look(spec: Spec) -> tuple[Node, dict[str, str]]:
    """End what earlier attempts left on this node, make the scratch folder, and describe the node and the environment's packages there.

    Raises:
        StageFailed: the configured interface does not exist, or the environment does not run here.
    """
    name, scratch = here(), Path(spec.scratch)

    def leftovers() -> list[psutil.Process]:
        left = identity.marked(Path(spec.attempt).parent, but=Path(spec.attempt))
        over = () if spec.jobs_alive is None else ownership.snakemakes_of_jobs_over(spec.jobs_alive, spec.listed_at)
        return [*left, *over]

    ended = kill(leftovers)
    _make_scratch(spec, scratch)
    interfaces = hardware.interfaces()
    chosen = network.choose_interface(name, interfaces, spec.interface, spec.known_as.get(name))
    versions: dict[str, Any] = _versions(name, spec)
    distributions: dict[str, str] = versions.pop("distributions")
    found = hardware.probe()
    node = Node(
        name=name,
        host=identity.host(),
        address=chosen.address,
        interface=chosen.name,
        devices=devices(found, scheduled=spec.job_id is not None),
        cuda_visible_devices=found.cuda_visible_devices,
        cpu_count=found.cpu_count,
        memory_gib=found.memory_gib,
        shm_gib=found.shm_gib,
        kind=hardware_part(found, spec.devices),
        # Free on every address, because the router's counters listen on loopback.
        ports=tuple(network.find_ports("0.0.0.0", spec.ports, start=int.from_bytes(os.urandom(2)))),  # noqa: S104
        leftovers=ended,
        speed_mbit=chosen.speed_mbit,
        faster=fast_networks.faster(interfaces, chosen),
        adapters=fast_networks.adapters(),
        **versions,
    )
    return node, distributions


def devices(found: Hardware, *, scheduled: bool) -> int:
    """Return the number of devices that ranks may use here.

    In a job, if nvidia-smi shows no GPU, the number is that of CUDA_VISIBLE_DEVICES, which Slurm set. Without a scheduler that variable may
    come from another machine.
    """
    named = found.cuda_visible_devices
    if not scheduled or found.accelerator == "cuda" or named is None or visible_gpus.names_nothing(named):
        return found.devices
    return len([word for word in named.split(",") if word.strip()])


def _make_scratch(spec: Spec, scratch: Path) -> None:
    """Make the attempt's private folder here, and remove those of jobs that have ended."""
    root = private(scratch.parent)
    if spec.jobs_alive is not None:
        for folder in root.glob("*/.job"):
            with contextlib.suppress(OSError):
                new = folder.stat().st_mtime > spec.listed_at - ownership.CLOCKS_S
                if not new and folder.read_text().strip() not in spec.jobs_alive:
                    shared_memory.remove_noted(folder.parent)
                    shutil.rmtree(folder.parent, ignore_errors=True)
    scratch.mkdir(mode=0o700, exist_ok=True)
    if spec.job_id:
        (scratch / ".job").write_text(spec.job_id)


def reach(spec: Spec) -> None:
    """Connect to the first node from this node's chosen address.

    Raises:
        StageFailed: no connection.
    """
    assert spec.reach
    chosen = network.choose_interface(here(), hardware.interfaces(), spec.interface, spec.known_as.get(here()))
    try:
        socket.create_connection(spec.reach, timeout=REACH_S, source_address=(chosen.address, 0)).close()
    except OSError as error:
        raise StageFailed(
            f"Node {here()}: expected a connection between {chosen.address} ({chosen.name}) and {spec.reach[0]}, the job's first node; "
            f"found: {error}.",
            do="Check that `interface` in the cluster file names the network between the nodes, and that no firewall blocks it.",
            reason="wrong_interface",
        ) from None


def _versions(name: str, spec: Spec) -> dict[str, Any]:
    script = str(Path(__file__).parents[1] / "in_model_env" / "check_environment.py")
    argv, env = [spec.python, script, "versions"], passed_on.clean_environment()
    try:
        if spec.container:
            private_home = {"TMPDIR": str(Path(spec.scratch))}
            argv, env = entering.enter(spec.container, argv, env | private_home, folders=[Path(spec.scratch).parent])
        argv = process_request.with_modules(argv, spec.modules)
        # A runtime may unpack the image first.
        timeout_s = 300 if spec.container else 60
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, env=env, check=True)
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        words = getattr(error, "stderr", None) or str(error)
        if spec.container and "servemark: module load" not in words and (missing := _missing_runtime(spec.container, spec.modules)):
            raise StageFailed(
                f"Node {name}: {missing}, which starts the container image, is not in the PATH.",
                do="Install it on every node, or load its module (`modules` in the cluster file). Then rerun the same command.",
                reason="runtime_missing",
            ) from None
        raise StageFailed(
            f"Node {name}: expected the environment's interpreter {spec.python} to run; found: {str(words).strip()[-300:]}",
            do="Check that every node mounts the environment's disk at the same path, and that the modules exist there.",
            reason="environment_broken",
        ) from None


def _missing_runtime(image: Container, modules: tuple[str, ...]) -> str | None:
    """Return the name of the image's runtime if its program is not on this node; None if it is."""
    program = RUNTIMES[image.runtime].program
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return None if process_request.which(program, modules) else program
    return None


def command(spec: Path) -> list[str]:
    """Return the command that surveys a node."""
    return [sys.executable, "-m", "servemark.nodes.survey", str(spec.absolute())]


if __name__ == "__main__":
    spec_file = Path(sys.argv[1])
    result = run_task(Spec.model_validate_json(spec_file.read_text()))
    write_atomically(spec_file.parent / f"{result.name}.json", result.model_dump_json(indent=2) + "\n")
