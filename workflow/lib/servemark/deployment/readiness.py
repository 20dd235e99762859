"""await_ready: wait until every server returns a completion, and record how they came up, or why not."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, as_completed
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from servemark import diagnosis, supervisor
from servemark.config.model import Timeouts
from servemark.deployment import attempts
from servemark.deployment.context import StageContext
from servemark.deployment.launcher import Launcher
from servemark.deployment.probe import ServerProbe, require_closed
from servemark.diagnosis.startup_log import CONNECTING, StartupLog
from servemark.errors import StageFailed
from servemark.launch import command_lines
from servemark.launch import compile_cache as compiled
from servemark.planning import all_reduce, memory
from servemark.records import Cluster, Endpoint, Failure, Ready, ReplicaStartup, ServerPlace, Startup
from servemark.supervisor.process_request import DaemonRequest

STAGE = "await_ready"
KEPT = "startup.json"
INTERVAL_S = 0.25
# Causes that state only that a process waits. The start-up stage is more specific.
_VAGUE = ("engine_starting", "worker_not_answering")


def poll(
    probe: Callable[[], str],
    read_log: Callable[[], bool],
    died: Callable[[], bool],
    *,
    timeouts: Timeouts,
    begin: float,
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[float, float]:
    """Wait until ``probe`` returns ``ready``; return the seconds from ``begin`` to health and to the first token.

    Args:
        probe: returns ``ready``, ``healthy`` (/health returns 200, no completion yet) or words for the state.
        read_log: returns whether the log has grown since the last call.
        died: returns whether the process has ended.
        timeouts: ``start`` for the whole start, ``stall`` for the longest time without a log line.
        begin: ``clock()`` at process start.

    Raises:
        StageFailed: reason ``server_exited``, ``startup_timeout`` or ``startup_stalled``.
    """
    moved_at, healthy_s = clock(), None
    while True:
        if died():
            raise StageFailed("The server ended before it was ready.", reason="server_exited")
        state = probe()
        if healthy_s is None and state in ("healthy", "ready"):
            healthy_s = round(clock() - begin, 2)
        if healthy_s is not None and state == "ready":
            return healthy_s, round(clock() - begin, 2)
        if read_log():
            moved_at = clock()
        tell(state)
        if clock() - begin > timeouts.start:
            raise StageFailed(f"The server was not ready after {timeouts.start:.0f} s. Last check: {state}.", reason="startup_timeout")
        if clock() - moved_at > timeouts.stall:
            raise StageFailed(f"The server wrote no log line for {timeouts.stall:.0f} s. Last check: {state}.", reason="startup_stalled")
        sleep(INTERVAL_S)


@dataclass(frozen=True)
class Waiting:
    """Waits for every server of a deployment, and for its router."""

    here: StageContext
    cluster: Cluster
    endpoint: Endpoint

    def run(self) -> tuple[Ready, Startup]:
        """Return the live record and the start-up record, both with ``failure`` if a server did not come up."""
        endpoint, name = self.endpoint, self.here.plan.deployment
        if endpoint.replay:
            # Nothing was started: return the start-up record of the attempt that served.
            kept = attempts.newest(self.here.deployment, KEPT)
            return Ready(deployment=name, replay=True), Startup.read(kept) if kept else Startup(deployment=name)
        if endpoint.failure or endpoint.attempt is None or endpoint.url is None or endpoint.key_file is None:
            return self._failed(endpoint.failure)
        attempt = Path(endpoint.attempt)
        starts: list[tuple[ReplicaStartup, float]] = []
        server = endpoint.servers[0]
        try:
            for waited_for, start in self._as_ready(attempt):
                server = waited_for  # an error is about this one
                starts.append(start.result())
            starts.sort(key=lambda start: [place.replica for place in endpoint.servers].index(start[0].replica))
            if endpoint.router:
                server = endpoint.router
                self._start_router(attempt, server)
        except StageFailed as error:
            failure = attempts.fail(attempt, attempts.from_error(STAGE, error), self.here.timeouts.stop)
            return self._failed(failure, str(attempt / f"{server.daemon}.log"))
        last, to_health = max(starts, key=lambda start: start[0].seconds_to_first_token)
        self.here.progress.say(f"ready after {last.seconds_to_first_token:.1f} s")
        startup = self._startup(last, to_health, tuple(start for start, _ in starts) if len(starts) > 1 else ())
        startup.write(attempt / KEPT)
        self._note_caches()
        same = endpoint.model_dump(include={"deployment", "attempt", "url", "served_name", "key_file"})
        places = {name: value for name, value in self._places().items() if name in ("servers", "router", "client_node")}
        return Ready(**same, **places, ends_at=self.cluster.ends_at), startup

    def _failed(self, failure: Failure | None, log: str | None = None) -> tuple[Ready, Startup]:
        same: dict[str, Any] = {"deployment": self.here.plan.deployment, "failure": failure, "attempt": self.endpoint.attempt}
        return Ready(**same), Startup(**same, log=log, **self._places())

    def _startup(self, last: ReplicaStartup, to_health: float, every: tuple[ReplicaStartup, ...]) -> Startup:
        log = Path(last.log).read_text(errors="replace")
        observed = memory.observe(log)
        return Startup(
            deployment=self.here.plan.deployment,
            attempt=self.endpoint.attempt,
            cluster_seconds=self.cluster.seconds,
            seconds_to_health=to_health,
            seconds_to_first_token=last.seconds_to_first_token,
            phases=last.phases,
            observed=observed,
            all_reduce=all_reduce.observed(log),
            differences=memory.compare(self.here.plan.estimate, observed) if self.here.plan.estimate else {},
            log=last.log,
            replicas=every,
            **self._places(),
        )

    def _places(self) -> dict[str, Any]:
        """Return nodes and servers for the start-up record, which outlives the live records."""
        nodes = self.cluster.nodes
        return {
            "nodes": nodes,
            "placement": self.cluster.replicas,
            "ray_nodes": self.cluster.ray_nodes,
            "ray_states": self.cluster.ray_states,
            "warnings": self.cluster.warnings,
            "servers": self.endpoint.servers,
            "router": self.endpoint.router,
            # A client with its own node has the last one.
            "client_node": nodes[-1 if self.here.plan.topology.client == "own" else 0].name if nodes else None,
            "compile_cache": self.endpoint.compile_cache,
        }

    def _note_caches(self) -> None:
        """Record for later starts that the compile cache is filled. An error is only a warning."""
        if self.endpoint.compile_cache_folder is None:
            return
        try:
            compiled.came_up(Path(self.endpoint.compile_cache_folder), self.here.plan)
        except OSError as error:
            self.here.progress.say(f"warning: later starts cannot record that they found compiled code: {error}")

    def _as_ready(self, attempt: Path) -> Iterator[tuple[ServerPlace, Future[tuple[ReplicaStartup, float]]]]:
        """Yield each server as soon as the wait for it has ended, with the result of :meth:`_one`.

        Each server has a thread. One after the other, a server that is ready before the one that is waited for would get that one's time.
        """
        waits = {Future[tuple[ReplicaStartup, float]](): server for server in self.endpoint.servers}

        def wait(own: Future[tuple[ReplicaStartup, float]]) -> None:
            try:
                own.set_result(self._one(attempt, waits[own], lambda: next(one for one in waits if not one.done()) is own))
            except Exception as error:
                own.set_exception(error)

        for one in waits:
            # After an error or a signal the stage ends, and these threads with it. Those of an executor would keep it alive.
            threading.Thread(target=wait, args=(one,), daemon=True).start()
        yield from ((waits[ended], ended) for ended in as_completed(waits))

    def _one(self, attempt: Path, server: ServerPlace, speaks: Callable[[], bool]) -> tuple[ReplicaStartup, float]:
        """Wait for one server; return its start-up times and the seconds to health. ``speaks``: see :meth:`_poll`."""
        daemon = attempts.find_daemon(attempt, server.daemon)
        assert daemon is not None and daemon.started_at is not None, "serve_model has started it"
        started = datetime.fromisoformat(daemon.started_at)
        begin = time.monotonic() - (datetime.now(started.tzinfo) - started).total_seconds()
        which = f" ({server.replica} on {server.node})" if len(self.endpoint.servers) > 1 else ""
        (to_health, to_token), parser = self._poll(attempt, server, f"vLLM{which}", begin, speaks=speaks)
        require_closed(f"{server.url}/metrics")
        phases = parser.phases(started, started + timedelta(seconds=to_health))
        same = server.model_dump(include={"replica", "node"})
        return ReplicaStartup(**same, seconds_to_first_token=to_token, phases=phases, log=daemon.log), to_health

    def _start_router(self, attempt: Path, router: ServerPlace) -> None:
        """Start the router after the replicas are ready, wait for a completion through it, and check that it requires the API key.

        The first request must carry the key, because the router keeps its first decision on a key.
        """
        request = DaemonRequest(
            name=router.daemon,
            argv=router.argv,
            env=command_lines.router_environment(),
            log=str(attempt / f"{router.daemon}.log"),
            modules=self.here.plan.modules,
            container=self.here.container(),
        )
        Launcher.of(attempt).start(router.node, request)
        # Its health route does not use the key, so /v1/models takes its place.
        self._poll(attempt, router, "the router", time.monotonic(), "/v1/models")
        require_closed(router.url + command_lines.ROUTER_TEST_ROUTE)

    def _poll(
        self,
        attempt: Path,
        server: ServerPlace,
        what: str,
        begin: float,
        health: str = "/health",
        speaks: Callable[[], bool] = lambda: True,
    ) -> tuple[tuple[float, float], StartupLog]:
        """Wait for a server or the router and read its log.

        Args:
            attempt: the attempt's folder.
            server: the server or the router.
            what: its name in messages.
            begin: see :func:`poll`.
            health: the route that shows whether it is healthy.
            speaks: returns whether this wait says how far it is. Of several, only the first one does.
        """
        parser = StartupLog(attempt / f"{server.daemon}.log")
        probe = ServerProbe(server.url, self.here.plan.served_name, Path(str(self.endpoint.key_file)).read_text().strip(), health)

        def stage() -> str:
            return parser.stage if server != self.endpoint.router else "starting"

        def died() -> bool:
            # The supervisor ends all daemons when one ends.
            state = attempts.find_daemon(attempt, server.daemon)
            return state is None or state.ended_at is not None or not supervisor.is_alive(attempt)

        def tell(_: str) -> None:
            if speaks():
                self.here.progress.waiting(f"waiting for {what}: {stage()}")

        try:
            waited = poll(probe, parser.read_on, died, timeouts=self.here.timeouts, begin=begin, tell=tell)
        except StageFailed as error:
            parser.read_on()
            raise attempts.as_error(self._explain(attempt, error, server.daemon, stage())) from error
        parser.read_on()
        return waited, parser

    def _explain(self, attempt: Path, error: StageFailed, name: str, stage: str) -> Failure:
        """Return the cause of a failed wait; ``stage``: the server's start-up stage."""
        if error.reason == "server_exited":
            return attempts.end_of(STAGE, attempt, name, f"The server did not start: while {stage},", "server_exited")
        if error.reason not in ("startup_timeout", "startup_stalled"):
            return attempts.from_error(STAGE, error)
        what = f"{error.what} Start-up stage: {stage}."
        failure = attempts.explain_end(STAGE, attempt, attempts.find_daemon(attempt, name), what, error.reason, stalled=True)
        if failure.reason not in (error.reason, *_VAGUE):
            return failure
        key = "timeouts.start" if error.reason == "startup_timeout" else "timeouts.stall"
        if stage == CONNECTING:
            spans = self.here.plan.topology.nodes_of_a_replica > 1
            row = diagnosis.row("ranks_not_connected" if spans else "ranks_not_connected_on_node")
            reason, cause, remedy = row.reason, row.cause, row.remedy
        else:
            stall = diagnosis.stalls()[stage]
            reason, cause, remedy = failure.reason, f"Likely cause: {stall.cause}", stall.remedy
        remedy = f"{remedy} If the start was only slow, raise {key}."
        known = failure.detail if failure.reason == error.reason else what
        return failure.model_copy(update={"reason": reason, "detail": f"{known} {cause}", "remedy": remedy})
