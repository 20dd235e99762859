"""``executor: ray``: a Ray cluster for every replica, and the check that the cluster is complete."""

import json
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from servemark import supervisor
from servemark.deployment import attempts
from servemark.deployment.executors import Executor
from servemark.diagnosis import root_error
from servemark.environments.build import IN_MODEL_ENV
from servemark.errors import StageFailed
from servemark.launch import command_lines
from servemark.launch.command_lines import NCCL_INTERFACE
from servemark.nodes import port_plan
from servemark.records import Node, RayNode, RayState, Replica
from servemark.supervisor.process_request import DaemonRequest

STAGE = "start_cluster"
# Ray's processes write their logs, with the cause of a dead raylet or actor, below its temporary folder, which is the scratch folder.
_LOGS = ("raylet.*", "gcs_server.*", "dashboard_agent.*", "runtime_env_agent.*", "worker-*", "python-core-*")
KEPT = tuple(f"session_*/logs/{name}" for name in _LOGS)
# Least time for the Ray cluster check, however long the heads took to start.
CHECK_S = 5.0
# Resources of Ray that decide where vLLM's ranks go.
_COUNTED = ("CPU", "GPU")


class Ray(Executor):
    """A Ray cluster for each replica. Its head runs on the server's node. vLLM's workers inherit the variables of Ray's processes."""

    def processes(self, index: int, replica: Replica) -> list[list[str]]:
        topology = self.here.plan.topology
        argv = ["--distributed-executor-backend", "ray"]
        if topology.data_parallel == 1:
            return [argv]
        # Ray starts the engines on all nodes. vLLM's default puts all of them on the first.
        local = max(1, topology.data_parallel // topology.nodes_of_a_replica)
        argv += ["--data-parallel-size", str(topology.data_parallel), "--data-parallel-backend", "ray"]
        head = self.nodes[replica.parts[0].node]
        return [[*argv, "--data-parallel-address", head.address, "--data-parallel-size-local", str(local)]]

    def variables(self, devices: Sequence[int]) -> dict[str, str]:
        topology, found = self.here.plan.topology, {}
        if self.here.hardware.accelerator == "cpu":
            # vLLM's Ray executor does not bind OpenMP threads on CPU, so limit them.
            found = {
                "SERVEMARK_CPU_RAY": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": "1",
                "VLLM_CPU_SIM_MULTI_NUMA": "0",
            }
        if topology.data_parallel > 1 and topology.nodes > 1:
            # vLLM needs to know whether engines span nodes (VLLM_RAY_DP_PACK_STRATEGY in vllm/envs.py).
            spans = topology.engine_size > topology.devices_per_node
            found["VLLM_RAY_DP_PACK_STRATEGY"] = "span" if spans else "strict"
        return found

    def server_environment(self, replica: Replica, node: Node, devices: Sequence[int]) -> dict[str, str]:
        env = self._environment(node) | {"RAY_ADDRESS": str(replica.ray_address)}
        if NCCL_INTERFACE not in self.here.plan.variables:
            # vLLM would copy it to workers on nodes whose interface has another name. Ray's processes have their own node's.
            env.pop(NCCL_INTERFACE, None)
        return env

    def bring_up(self, replicas: tuple[Replica, ...]) -> dict[str, Any]:
        """Start every replica's Ray cluster and wait until Ray reports all nodes and devices.

        Raises:
            StageFailed: a Ray process ended, or a cluster was incomplete at the deadline; names the nodes.
        """
        deadline = time.monotonic() + self.here.timeouts.cluster
        attempts.secret(self.launcher.attempt, self._token.name)
        started = []
        for index, replica in enumerate(replicas):
            head = self.nodes[replica.parts[0].node]
            address = f"{head.address}:{port_plan.of_executor(self.here.plan.topology, head, index)[0]}"
            self._start(index, replica, 0)
            self.here.progress.say(f"starting Ray on {address}")
            started.append(replica.model_copy(update={"ray_address": address}))
        for index, replica in enumerate(started):
            self._await_head(replica, deadline)
            for place in range(1, len(replica.parts)):
                self._start(index, replica, place)
        checked = [self._check_cluster(replica, deadline) for replica in started]
        nodes = tuple(node for nodes, _ in checked for node in nodes)
        return {"replicas": tuple(started), "ray_nodes": nodes, "ray_states": tuple(state for _, state in checked)}

    @property
    def _token(self) -> Path:
        return self.launcher.attempt.absolute() / "ray-token"

    def _name(self, replica: Replica, place: int = 0) -> str:
        which = f"-{replica.name}" if self.here.plan.topology.replicas > 1 else ""
        return f"ray{which}-{'head' if place == 0 else f'n{place}'}"

    def _environment(self, node: Node) -> dict[str, str]:
        return self.environment(node) | command_lines.ray_environment(str(self._token), str(self.launcher.scratch))

    def _start(self, index: int, replica: Replica, place: int) -> None:
        """Start Ray on one node of a replica: the head if ``place`` is 0."""
        part, name, plan = replica.parts[place], self._name(replica, place), self.here.plan
        node = self.nodes[part.node]
        ports, scratch = port_plan.of_executor(plan.topology, node, index), str(self.launcher.scratch)
        argv = command_lines.ray_node(self.here.environment.python, node, len(part.devices), scratch, ports, replica.ray_address)
        request = DaemonRequest(
            name=name,
            argv=tuple(argv),
            env=self._environment(node),
            log=str(self.launcher.attempt / f"{name}.log"),
            devices=part.devices,
            modules=plan.modules,
            keep=KEPT,
            container=self.here.container(),
        )
        self.launcher.start(node.name, request)

    def _await_head(self, replica: Replica, deadline: float) -> None:
        """Wait until the head's port is open. A worker that starts earlier gives up."""
        name = self._name(replica)
        host, _, port = str(replica.ray_address).rpartition(":")
        while time.monotonic() < deadline:
            if self._lost(name):
                raise self._ended(name)
            with socket.socket() as probe:
                probe.settimeout(1.0)
                if probe.connect_ex((host, int(port))) == 0:
                    return
            self.here.progress.waiting(f"waiting for Ray's head on {host}:{port}")
            time.sleep(0.1)
        raise self._incomplete([f"nothing listens on {host}:{port}"], name)

    def _lost(self, name: str) -> bool:
        state = attempts.find_daemon(self.launcher.attempt, name)
        return bool(state and state.ended_at) or not supervisor.is_alive(self.launcher.attempt)

    def _ended(self, name: str) -> StageFailed:
        attempts.await_end(self.launcher.attempt, name)
        return attempts.as_error(attempts.end_of(STAGE, self.launcher.attempt, name, "Ray did not come up,", "ray_exited"))

    def _incomplete(self, missing: list[str], name: str, state: RayState | None = None) -> StageFailed:
        return StageFailed(
            f"The Ray cluster was not complete within {self.here.timeouts.cluster:.0f} s:\n" + "\n".join(missing),
            look=str(self.launcher.attempt / f"{name}.log"),
            do="Read Ray's log on the named node. If Ray was only slow, raise timeouts.cluster.",
            reason="ray_incomplete",
            quote=(*missing, *(_in_words(state) if state else ())),
        )

    def _check_cluster(self, replica: Replica, deadline: float) -> tuple[list[RayNode], RayState]:
        """Wait until Ray reports every node with its devices and versions; return them with the cluster's state."""
        here, name = self.here, self._name(replica)
        parts = [(self.nodes[part.node], len(part.devices)) for part in replica.parts]
        head, _ = parts[0]
        expected = json.dumps([{"name": node.name, "address": node.address, "devices": count} for node, count in parts])
        left_s = max(CHECK_S, deadline - time.monotonic())
        facts = self.launcher.attempt / f"{name}.nodes.json"
        script = (here.environment.python, str(IN_MODEL_ENV / "ray_cluster_check.py"), str(replica.ray_address))
        request = DaemonRequest(
            name=f"{name}-gate",
            argv=(*script, expected, str(left_s), str(facts)),
            env=self._environment(head),
            log=str(here.log),
            modules=here.plan.modules,
            container=here.container(),
        )

        def check() -> str | None:
            here.progress.waiting(f"waiting for the Ray cluster ({len(parts)} node(s), {sum(count for _, count in parts)} devices)")
            return "Ray ended" if self._lost(name) else None

        # A driver needs a raylet on its own node, so the check runs on the head.
        result = self.launcher.tool(head.name, request).run(log=here.log, timeout_s=left_s + 30, watch=here.watch, check=check)
        if result.exit_code == 0 and not result.stopped:
            found = json.loads(facts.read_text())
            return [RayNode.model_validate(node) for node in found["nodes"]], _state(replica, found)
        attempts.await_end(self.launcher.attempt, name, 2.0 if result.seconds < left_s else 0.0)
        if self._lost(name):
            raise self._ended(name)
        if facts.exists():
            found = json.loads(facts.read_text())
            raise self._incomplete(found["missing"], name, _state(replica, found) if "state" in found else None)
        if result.stopped:
            raise self._incomplete([result.stopped], name)
        raise StageFailed(
            f"The Ray node check on {head.name} exited with code {result.exit_code} after {result.seconds:.0f} s and returned nothing.",
            look=str(here.log),
            do="Read the quoted lines and rerun.",
            reason="ray_gate_failed",
            quote=root_error(here.log),
        )


def _state(replica: Replica, found: dict[str, Any]) -> RayState:
    return RayState(replica=replica.name, **found.get("state", {}))


def _in_words(state: RayState) -> list[str]:
    """Return one line for Ray's resources, and one for each waiting placement group and failed node."""
    parts = [f"{state.free.get(name, 0):g} of {amount:g} {name} free" for name, amount in sorted(state.total.items()) if name in _COUNTED]
    return [
        f"Ray's resources: {', '.join(parts) or 'none'}",
        *(f"Ray cannot place: {bundles}" for bundles in state.waiting),
        *(f"Ray lost the node {node}" for node in state.failed),
    ]
