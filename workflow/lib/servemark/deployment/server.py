"""serve_model: start every replica's server under the supervisor. await_ready waits for them."""

from dataclasses import dataclass
from pathlib import Path

from servemark.deployment import attempts, executors
from servemark.deployment.context import StageContext
from servemark.deployment.executors import Executor
from servemark.deployment.launcher import Launcher
from servemark.environments import model_classes
from servemark.errors import StageFailed
from servemark.files import storage
from servemark.launch import command_lines
from servemark.launch import compile_cache as compiled
from servemark.machine import network
from servemark.nodes import port_plan
from servemark.processes import identity
from servemark.records import Cluster, Endpoint, Fabric, Node, Replica, ServerPlace, utc_now
from servemark.records.deployment import CompileCache
from servemark.supervisor.process_request import DaemonRequest

STAGE = "serve_model"
SERVER = "server"
ROUTER = "router"


@dataclass(frozen=True)
class Serving:
    """Starts the servers of one deployment. ``port``: of its public address; None: any free port."""

    here: StageContext
    cluster: Cluster
    port: int | None = None

    def run(self, fabric: Fabric) -> Endpoint:
        """Start ``vllm serve`` for every replica.

        Returns:
            the live record; with ``failure`` if the port is taken or a process did not start. Everything is stopped then.
        """
        cluster = self.cluster
        failure = cluster.failure or fabric.failure
        if cluster.replay or failure or cluster.attempt is None:
            return Endpoint(deployment=cluster.deployment, replay=cluster.replay, failure=failure, attempt=cluster.attempt)
        attempt = Path(cluster.attempt)
        try:
            executor = executors.of(self.here, Launcher.of(attempt), cluster.nodes)
            key_file = attempts.secret(attempt, "api-key")
            found = self._prepare_caches()
            servers = tuple(self._replica(executor, index, replica, key_file) for index, replica in enumerate(cluster.replicas))
            router = self._router(servers) if self.here.plan.topology.routed else None
        except StageFailed as error:
            failed = attempts.fail(attempt, attempts.from_error(STAGE, error), self.here.timeouts.stop)
            return Endpoint(deployment=cluster.deployment, failure=failed, attempt=cluster.attempt)
        url = (router or servers[0]).url
        self.here.progress.say(f"started vLLM for {url}")
        return Endpoint(
            deployment=cluster.deployment,
            attempt=cluster.attempt,
            url=url,
            served_name=self.here.plan.served_name,
            key_file=str(key_file),
            servers=servers,
            router=router,
            started_at=utc_now(),
            compile_cache=found,
            compile_cache_folder=str(self.here.caches) if self.here.caches and found else None,
        )

    def _prepare_caches(self) -> CompileCache | None:
        """Make the folder of the compile caches and return whether an earlier start filled it."""
        if self.here.caches is None:
            return "none" if compiled.is_ours(self.here.plan) else None
        try:
            return compiled.prepare(self.here.caches, self.here.plan, self.here.hardware)
        except OSError as error:
            why = storage.refusal(error, self.here.caches)
            raise StageFailed(
                f"The folder of the compile caches, {self.here.caches}, cannot be used: {why.what if why else error}",
                do="Make it writable for you on the nodes, set another `cache`, or set `compile_cache: none` for "
                f"deployments.{self.here.plan.deployment}.",
                reason=why.reason if why else "compile_cache",
            ) from None

    def _published_port(self, node: Node, free: int) -> int:
        """Return the port of the public address: the configured one, or ``free``."""
        # Another node's ports are not visible here. A server there reports a taken port itself.
        if self.port is not None and node.host == identity.host() and network.is_taken(node.address, self.port):
            name = self.cluster.deployment
            raise StageFailed(
                f"Port {self.port} on {node.address} (deployments.{name}.port) is used by another program.",
                do=f"Find the program with `ss -ltnp 'sport = :{self.port}'` and end it, choose another port, or set port: auto.",
                reason="port_taken",
            )
        return free if self.port is None else self.port

    def _replica(self, executor: Executor, index: int, replica: Replica, key_file: Path) -> ServerPlace:
        """Start one server: one process, or one on each of its nodes if vLLM itself spans nodes."""
        here, launcher, topology = self.here, executor.launcher, self.here.plan.topology
        head = self.cluster.nodes[replica.parts[0].node]
        free = port_plan.of_server(topology, head, index)
        port = free if topology.routed else self._published_port(head, free)
        name = f"{SERVER}-{replica.name}" if topology.replicas > 1 else SERVER
        python, model = here.environment.python, self.cluster.model_path or here.manifest.path
        argv: list[str] = []
        # Start the head last: its start is the server's.
        for number, options in reversed(list(enumerate(executor.processes(index, replica)))):
            part = replica.parts[number]
            node = self.cluster.nodes[part.node]
            argv = command_lines.serve(python, model, here.plan, node.address, port, options, follower=number > 0)
            daemon = f"{name}-n{number}" if number else name
            env = executor.server_environment(replica, node, part.devices)
            described = compiled.is_ours(here.plan)
            request = DaemonRequest(
                name=daemon,
                argv=tuple(argv),
                env=env,
                secret_env={command_lines.API_KEY: str(key_file)},
                log=str(launcher.attempt / f"{daemon}.log"),
                devices=part.devices,
                modules=here.plan.modules,
                grace_s=here.timeouts.stop,
                container=here.container(),
                copies=model_classes.copies(here.config.cache, here.plan.environment_digest, env["VLLM_CACHE_ROOT"]) if described else {},
            )
            launcher.start(node.name, request)
        return ServerPlace(replica=replica.name, daemon=name, node=head.name, url=f"http://{head.address}:{port}", argv=tuple(argv))

    def _router(self, servers: tuple[ServerPlace, ...]) -> ServerPlace:
        """Return the router in front of the servers. await_ready starts it after the replicas, because it exits if they do not respond."""
        head, topology = self.cluster.nodes[0], self.here.plan.topology
        free, counters = port_plan.of_router(head)
        port, urls = self._published_port(head, free), [server.url for server in servers]
        python = self.here.environment.python
        argv = command_lines.router(python, urls, head.address, port, counters, topology.routed_engines, topology.routing)
        return ServerPlace(replica="", daemon=ROUTER, node=head.name, url=f"http://{head.address}:{port}", argv=tuple(argv))
