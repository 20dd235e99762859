"""Ray under the servers: a cluster of its own for every replica that asks for it, and the gate that it has to pass."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from servemark import supervisor
from servemark.deployment import attempts
from servemark.deployment.context import StageContext
from servemark.deployment.launcher import Ground
from servemark.diagnosis import root_error
from servemark.environments import bytecode_cache
from servemark.environments.build import IN_MODEL_ENV
from servemark.errors import StageFailed
from servemark.launch import command_lines, compile_cache
from servemark.nodes import port_plan
from servemark.processes.children import ToolResult
from servemark.records import Node, RayNode, Replica
from servemark.supervisor.process_request import DaemonRequest

STAGE = "start_cluster"
# Ray's processes write their logs below its temporary folder, which is the scratch folder: they say why a raylet or an actor died.
KEPT = tuple(
    f"session_*/logs/{name}"
    for name in (
        "raylet.*",
        "gcs_server.*",
        "dashboard_agent.*",
        "runtime_env_agent.*",
        "worker-*",
        "python-core-*",
    )
)
# The gate has so much time at least, however long the heads took: it only has to ask.
GATE_S = 5.0


@dataclass(frozen=True)
class Rays:
    """Starts Ray for the replicas of one deployment. vLLM's workers take their variables from Ray's processes."""

    here: StageContext
    ground: Ground
    nodes: tuple[Node, ...]

    def start(self, replicas: tuple[Replica, ...]) -> tuple[tuple[Replica, ...], tuple[RayNode, ...]]:
        """Bring every replica's cluster up and wait until Ray itself reports what was asked for.

        Raises:
            StageFailed: a Ray process ended, or a cluster was not complete before the deadline; says which node lacks what.
        """
        deadline = time.monotonic() + self.here.timeouts.cluster
        token = attempts.secret(self.ground.attempt, "ray-token")
        heads = [self._head(index, replica, token) for index, replica in enumerate(replicas)]
        started = [
            replica.model_copy(update={"ray_address": head}) for replica, head in zip(replicas, heads, strict=True)
        ]
        for index, replica in enumerate(started):
            self._await_head(replica, self._name(replica, 0), deadline)
            for place in range(1, len(replica.parts)):
                self._worker(index, replica, place, token)
        found: list[RayNode] = []
        for replica in started:
            found += self._gate(replica, token, deadline)
        return tuple(started), tuple(found)

    def _name(self, replica: Replica, place: int) -> str:
        which = f"-{replica.name}" if self.here.plan.topology.replicas > 1 else ""
        return f"ray{which}-{'head' if place == 0 else f'n{place}'}"

    def _node(self, replica: Replica, place: int) -> Node:
        return self.nodes[replica.parts[place].node]

    def _ports(self, index: int, node: Node) -> tuple[int, ...]:
        return port_plan.of_ray(self.here.plan.topology, node, index)

    def _environment(self, node: Node, token: Path) -> dict[str, str]:
        scratch = self.ground.scratch
        caches = str(self.here.caches or compile_cache.fresh(scratch))
        env = command_lines.server_environment(
            self.here.plan, self.here.hardware.accelerator, node, str(scratch), caches
        )
        env = bytecode_cache.variables(self.here.environment) | env
        return env | command_lines.ray_environment(str(token.absolute()), str(scratch))

    def _head(self, index: int, replica: Replica, token: Path) -> str:
        node = self._node(replica, 0)
        self._request(index, replica, 0, token, None)
        address = f"{node.address}:{self._ports(index, node)[0]}"
        self.here.progress.say(f"starting Ray on {address}")
        return address

    def _worker(self, index: int, replica: Replica, place: int, token: Path) -> None:
        self._request(index, replica, place, token, replica.ray_address)

    def _request(self, index: int, replica: Replica, place: int, token: Path, head: str | None) -> None:
        node, part = self._node(replica, place), replica.parts[place]
        name = self._name(replica, place)
        argv = command_lines.ray_node(
            self.here.environment.python,
            node,
            len(part.devices),
            str(self.ground.scratch),
            self._ports(index, node),
            head,
        )
        request = DaemonRequest(
            name=name,
            argv=tuple(argv),
            env=self._environment(node, token),
            log=str(self.ground.attempt / f"{name}.log"),
            devices=part.devices,
            modules=self.here.plan.modules,
            keep=KEPT,
        )
        self.ground.start(node.name, request)

    def _await_head(self, replica: Replica, name: str, deadline: float) -> None:
        """Wait until the head's port is open: a worker that comes before gives up."""
        host, _, port = str(replica.ray_address).rpartition(":")
        while time.monotonic() < deadline:
            self._check_alive(name)
            with socket.socket() as probe:
                probe.settimeout(1.0)
                if probe.connect_ex((host, int(port))) == 0:
                    return
            self.here.progress.waiting(f"waiting for Ray's head on {host}:{port}")
            time.sleep(0.1)
        raise self._incomplete([f"nothing listens on {host}:{port}"], name)

    def _check_alive(self, name: str) -> None:
        state = attempts.find_daemon(self.ground.attempt, name)
        if (state and state.ended_at) or not supervisor.is_alive(self.ground.attempt):
            raise self._ended(name)

    def _ended(self, name: str) -> StageFailed:
        ended = attempts.await_end(self.ground.attempt, name)
        first = attempts.first_to_end(self.ground.attempt, name) or ended
        words = attempts.how_it_ended(first) if first else "its keeper is gone"
        return attempts.as_error(
            attempts.explain_end(STAGE, self.ground.attempt, first, f"Ray did not come up, {words}", "ray_exited")
        )

    def _incomplete(self, said: list[str], name: str) -> StageFailed:
        return StageFailed(
            f"The Ray cluster was not complete within {self.here.timeouts.cluster:.0f} s:\n" + "\n".join(said),
            look=str(self.ground.attempt / f"{name}.log"),
            do="Read the log of Ray on the node that is named; raise timeouts.cluster if it was only slow.",
            reason="ray_incomplete",
            quote=tuple(said),
        )

    def _gate_failed(self, result: ToolResult, node: str) -> StageFailed:
        return StageFailed(
            f"What asks Ray for its nodes, on {node}, ended with exit code {result.exit_code} after {result.seconds:.0f} s and no answer.",
            look=str(self.here.log),
            do="Read the quoted lines; run again.",
            reason="ray_gate_failed",
            quote=root_error(self.here.log),
        )

    def _gate(self, replica: Replica, token: Path, deadline: float) -> list[RayNode]:
        """Wait until Ray reports every node with its devices and versions."""
        name = self._name(replica, 0)
        expected = [
            {"name": self._node(replica, place).name, "address": self._node(replica, place).address, "devices": len(part.devices)}
            for place, part in enumerate(replica.parts)
        ]  # fmt: skip
        left_s = max(GATE_S, deadline - time.monotonic())
        facts = self.ground.attempt / f"{name}.nodes.json"
        head = self._node(replica, 0)
        script = [
            self.here.environment.python,
            str(IN_MODEL_ENV / "ray_gate.py"),
            str(replica.ray_address),
            json.dumps(expected),
        ]
        request = DaemonRequest(
            name=f"{name}-gate",
            argv=(*script, str(left_s), str(facts)),
            env=self._environment(head, token),
            log=str(self.here.log),
            modules=self.here.plan.modules,
        )

        def check() -> str | None:
            self.here.progress.waiting(
                f"waiting for the Ray cluster ({len(expected)} node(s), {sum(len(p.devices) for p in replica.parts)} devices)"
            )
            state = attempts.find_daemon(self.ground.attempt, name)
            lost = (state and state.ended_at) or not supervisor.is_alive(self.ground.attempt)
            return "Ray ended" if lost else None

        # On the head's node: a driver needs a raylet of its cluster beside it.
        tool = self.ground.tool(head.name, request)
        result = tool.run(log=self.here.log, timeout_s=left_s + 30, watch=self.here.watch, check=check)
        if result.exit_code == 0 and not result.stopped:
            return [RayNode.model_validate(node) for node in json.loads(facts.read_text())["nodes"]]
        ended = attempts.await_end(self.ground.attempt, name, 2.0 if result.seconds < left_s else 0.0)
        if (ended and ended.ended_at) or not supervisor.is_alive(self.ground.attempt):
            raise self._ended(name)
        if not facts.exists() and not result.stopped:
            raise self._gate_failed(result, head.name)
        said = json.loads(facts.read_text())["missing"] if facts.exists() else [result.stopped or "no answer"]
        raise self._incomplete(said, name)
