"""Looks at one node of an allocation, and tidies it: ``python -m servemark.nodes.survey SPEC.json`` runs on every node at once.

Before a deployment starts: what is there (devices, addresses, versions, free ports), processes and folders left by earlier attempts ended
and removed, a private scratch folder made. After it: proof that nothing of it is left. Each node writes ``NODE.json`` beside the spec.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import psutil

from servemark.errors import ServemarkError, StageFailed
from servemark.files import storage
from servemark.files.private import private
from servemark.machine import hardware, network, visible_gpus
from servemark.measurement.key import hardware_part
from servemark.processes import children, identity, shared_memory
from servemark.processes.identity import here
from servemark.records import Failure, Hardware, Manifest, Node, Strict, write_atomically
from servemark.supervisor import ownership, process_request
from servemark.variables import passed_on
from servemark.weights import local

REACH_S = 10.0


class Spec(Strict):
    """What every node is asked. ``known_as``: the scheduler's address of each node by its name."""

    task: Literal["look", "reach", "copy", "sweep"]
    attempt: str
    scratch: str
    python: str = ""
    modules: tuple[str, ...] = ()
    interface: str | None = None
    # Free ports to be found.
    ports: int = 1
    known_as: dict[str, str] = {}
    job_id: str | None = None
    # This user's jobs that are not over, and when they were listed.
    jobs_alive: tuple[str, ...] | None = None
    listed_at: float = 0.0
    # Where the node of the stages listens, for the others to try: address, port.
    reach: tuple[str, int] | None = None
    # The model to be copied to this node's own disk, and the folder for such copies.
    model: Manifest | None = None
    models: str = ""


class Answer(Strict):
    """What one node says; exactly one of ``node`` and ``failure`` when it was to look."""

    name: str
    node: Node | None = None
    failure: Failure | None = None
    ended: tuple[str, ...] = ()
    # How long the model's copy took; 0: it was there.
    copied_s: float | None = None


def answer(spec: Spec) -> Answer:
    """Do what the spec asks on this machine."""
    scratch = Path(spec.scratch)
    if spec.task == "sweep":
        ended = end(identity.marked(Path(spec.attempt), scratch))
        shared_memory.remove_noted(scratch)
        shutil.rmtree(scratch, ignore_errors=True)
        return Answer(name=here(), ended=ended)
    try:
        if spec.task == "look":
            return Answer(name=here(), node=look(spec))
        if spec.task == "copy":
            assert spec.model
            return Answer(name=here(), copied_s=local.copy(spec.model, Path(spec.models), private))
        reach(spec)
        return Answer(name=here())
    except ServemarkError as error:
        # The errors of other tasks name the node themselves.
        what, quote = f"Node {here()}: {error.what}" if spec.task == "copy" else error.what, getattr(error, "quote", ())
        failure = Failure(stage="start_cluster", reason=error.reason, detail=what, quote=quote, remedy=error.do)
    except OSError as error:
        refused = storage.refusal(error, [scratch, Path(spec.models or spec.scratch)])
        if refused is None:
            raise
        failure = Failure(stage="start_cluster", reason=refused.reason, detail=f"Node {here()}: {refused.what}", remedy=refused.do)
    return Answer(name=here(), failure=failure)


def end(found: list[psutil.Process]) -> tuple[str, ...]:
    """Kill processes and wait until they are gone, at most 5 s; their descriptions."""
    named = tuple(identity.describe(process) for process in found)
    identity.signal_all(found, 9)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(identity.Identity.of(process.pid) for process in found):
        time.sleep(0.05)
    return named


def look(spec: Spec) -> Node:
    """Tidy this node and describe it.

    Raises:
        StageFailed: no such interface, the environment does not run here, or the first node cannot be reached.
    """
    name, scratch = here(), Path(spec.scratch)
    left = identity.marked(Path(spec.attempt).parent, but=Path(spec.attempt))
    if spec.jobs_alive is not None:
        left += ownership.snakemakes_of_jobs_over(spec.jobs_alive, spec.listed_at)
    ended = end(left)
    _make_scratch(spec, scratch)
    chosen = network.choose_interface(name, hardware.interfaces(), spec.interface, spec.known_as.get(name))
    versions: dict[str, Any] = _versions(name, spec)
    found = hardware.probe()
    return Node(
        name=name,
        host=identity.host(),
        address=chosen.address,
        interface=chosen.name,
        devices=devices(found, scheduled=spec.job_id is not None),
        cuda_visible_devices=found.cuda_visible_devices,
        cpu_count=found.cpu_count,
        memory_gib=found.memory_gib,
        shm_gib=found.shm_gib,
        kind=hardware_part(found),
        # Free on every address: the router's counters lie on loopback.
        ports=tuple(network.find_ports("0.0.0.0", spec.ports, start=int.from_bytes(os.urandom(2)))),  # noqa: S104
        leftovers=ended,
        **versions,
    )


def devices(found: Hardware, *, scheduled: bool) -> int:
    """Return devices for ranks that this process may use.

    Where nvidia-smi shows no GPU and CUDA_VISIBLE_DEVICES names some all the same, the scheduler gave those; without a scheduler a shell
    still has them from another machine.
    """
    named = found.cuda_visible_devices
    if not scheduled or found.accelerator == "cuda" or named is None or visible_gpus.names_nothing(named):
        return found.devices
    return len([word for word in named.split(",") if word.strip()])


def _make_scratch(spec: Spec, scratch: Path) -> None:
    """Make the attempt's private folder here, and remove those of jobs that are over."""
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
    """Connect to the node of the stages from this node's chosen address; raise StageFailed if that fails."""
    assert spec.reach
    chosen = network.choose_interface(here(), hardware.interfaces(), spec.interface, spec.known_as.get(here()))
    try:
        socket.create_connection(spec.reach, timeout=REACH_S, source_address=(chosen.address, 0)).close()
    except OSError as error:
        raise StageFailed(
            f"Node {here()}: expected a connection between {chosen.address} ({chosen.name}) and {spec.reach[0]}, the job's first node; "
            f"found: {error}.",
            do="Check that `interface` in the cluster file names the network that joins the nodes, and that no firewall stands between.",
            reason="wrong_interface",
        ) from None


def _versions(name: str, spec: Spec) -> dict[str, Any]:
    script = str(Path(__file__).parents[1] / "in_model_env" / "check_environment.py")
    argv = process_request.with_modules([spec.python, script, "versions"], spec.modules)
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=passed_on.clean_environment(), check=True)
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        words = getattr(error, "stderr", None) or str(error)
        raise StageFailed(
            f"Node {name}: expected the environment's interpreter {spec.python} to run; found: {str(words).strip()[-300:]}",
            do="See that the environment lies on a disk that every node mounts at the same place, and that the modules exist there.",
            reason="environment_broken",
        ) from None


def command(spec: Path) -> list[str]:
    """Return how a node is told to answer the spec in this file."""
    return [sys.executable, "-m", "servemark.nodes.survey", str(spec.absolute())]


def variables() -> dict[str, str]:
    """Return what the interpreter on a node needs to find this module."""
    return children.python_path()


if __name__ == "__main__":
    where = Path(sys.argv[1])
    told = answer(Spec.model_validate_json(where.read_text()))
    write_atomically(where.parent / f"{told.name}.json", told.model_dump_json(indent=2) + "\n")
