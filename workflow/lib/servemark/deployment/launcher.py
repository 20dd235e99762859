"""How a process starts on a node of a deployment: a daemon through the supervisor, a short-lived tool directly."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from servemark import supervisor
from servemark.config.model import Config
from servemark.containers.runtimes import RUNTIMES
from servemark.deployment import attempts
from servemark.errors import StageFailed
from servemark.measurement import reasons
from servemark.nodes import allocation
from servemark.nodes.allocation import Allocation
from servemark.processes import identity
from servemark.processes.children import OwnerWatch, ToolResult, run_tool
from servemark.records import write_atomically
from servemark.supervisor import process_request
from snakemake_executor_plugin_slurm_guarded import commands


@dataclass(frozen=True)
class Tool:
    """A short-lived process on a node. ``launched``: srun starts it, and its standard input is its heartbeat pipe."""

    argv: list[str]
    env: dict[str, str]
    launched: bool

    def run(
        self,
        *,
        log: Path,
        timeout_s: float,
        watch: OwnerWatch | None = None,
        check: Callable[[], str | None] = lambda: None,
        patience_s: float = commands.PATIENCE_S,
    ) -> ToolResult:
        """Run it as :func:`servemark.processes.children.run_tool` does. Retry srun while slurmctld does not respond."""
        deadline = time.monotonic() + patience_s
        while True:
            begin = log.stat().st_size if log.exists() else 0
            result = run_tool(self.argv, log=log, env=self.env, timeout_s=timeout_s, watch=watch, check=check, heartbeat_pipe=self.launched)
            refused = self.launched and result.exit_code and result.stopped is None and commands.step_not_started(log, begin)
            if not refused or time.monotonic() > deadline:
                return result
            time.sleep(commands.PAUSE_S)


@dataclass(frozen=True)
class Launcher:
    """Starts processes of an attempt in an allocation. ``scratch``: the folder for short-lived files, the same path on every node."""

    alloc: Allocation
    attempt: Path
    scratch: Path

    @classmethod
    def of(cls, attempt: Path) -> Launcher:
        """Return the launcher of an attempt that this allocation has started."""
        return cls(allocation.current(), attempt, attempts.scratch_folder(attempt))

    def request(self, asked: process_request.DaemonRequest, *nodes: str) -> process_request.DaemonRequest:
        """Return ``asked``, to be started on ``nodes``."""
        return asked.model_copy(update={"launcher": self.alloc.srun(*nodes), "node": nodes[0], "scratch": str(self.scratch)})

    def start(self, node: str, asked: process_request.DaemonRequest) -> None:
        """Have the supervisor start one daemon on ``node``.

        Raises:
            StageFailed: the supervisor has ended, or the program cannot be started.
        """
        try:
            kept = self.request(asked, node).model_copy(update={"silence_s": process_request.SILENCE_S})
            state = supervisor.request(self.attempt, kept)
        except TimeoutError as error:
            first = attempts.first_to_end(self.attempt, asked.name)
            if first is None or first.ended_at is None:
                raise StageFailed(
                    str(error),
                    look=str(supervisor.own_file(self.attempt, supervisor.LOG)),
                    do=reasons.DEFAULT_REMEDY,
                    reason="keeper_ended",
                ) from None
            what = f"servemark did not start {asked.name}, because"
            raise attempts.as_error(attempts.end_of("", self.attempt, asked.name, what, "server_exited")) from None
        if state.why == "never_started":
            what = f"{asked.argv[0]} cannot be started on {node}."
            do = "Check that this file exists there and is executable. If the environment has a `lock`, delete its folder in the cache."
            if asked.container:
                program = RUNTIMES[asked.container.runtime].program
                what = f"{program} cannot start the container image {asked.container.place} on {node}."
                do = f"Read the log. Install {program} there, or load its module (`modules` in the cluster file)."
            raise StageFailed(what, look=state.log, do=f"{do} Then rerun the same command.", reason="never_started")

    def tool(self, nodes: str | Sequence[str], asked: process_request.DaemonRequest) -> Tool:
        """Return a short-lived process on one node, or on several at once. SERVEMARK_NODE holds the node's name in each."""
        names = (nodes,) if isinstance(nodes, str) else tuple(nodes)
        request = self.request(asked, *names)
        if self.alloc.job_id is None:
            argv, env = process_request.prepared(request, {identity.NODE_VARIABLE: identity.here()} | identity.mark(self.attempt))
            return Tool(argv, env, launched=False)
        path = self.attempt / "tools" / f"{asked.name}.json"
        write_atomically(path, request.model_dump_json(indent=2) + "\n", mode=0o600)
        argv, env = process_request.through_launcher(request, path)
        return Tool(argv, env | identity.mark(self.attempt), launched=True)


def new_scratch(config: Config, runtime_root: Path, alloc: Allocation) -> Path:
    """Return a new scratch folder. Its path is short, because sockets lie below it."""
    name = secrets.token_hex(4)
    if alloc.job_id is None or config.cluster is None:
        return runtime_root / name
    return on_node("scratch", config.cluster.scratch) / name


def on_node(key: str, folder: str) -> Path:
    """Return this user's folder below ``folder`` of the cluster file on the nodes' own disks, with variables expanded.

    Args:
        key: the key in the cluster file.

    Raises:
        StageFailed: a variable is not set in the job.
    """
    expanded = os.path.expandvars(folder)
    if "$" in expanded:
        raise StageFailed(
            f"`{key}: {folder}` in the cluster file uses a variable that is not set in the job.",
            do=f"Set `{key}` to a folder that exists on every node, or use a variable that the site sets in every job.",
            reason="variable_not_set",
        )
    return Path(expanded) / f"servemark-{os.getuid()}"
