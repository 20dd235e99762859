"""hold_endpoint: serve a ready deployment until it is stopped, reaches its time limit, or dies."""

import contextlib
import getpass
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import httpx

from servemark import supervisor
from servemark.deployment import attempts, how_to_use
from servemark.deployment.context import StageContext
from servemark.deployment.server import SERVER
from servemark.deployment.stop import stop
from servemark.deployment.watch import Load, scraper
from servemark.errors import StageFailed
from servemark.planning import exposure
from servemark.processes import identity
from servemark.records import Cluster, EndpointStatus, Failure, Held, Ready, utc_now, write_atomically
from servemark.supervisor import ownership
from servemark.weights import chat_template

STAGE = "hold_endpoint"
HEARTBEAT_S = 5.0
# Pause between two checks of whether the deployment has ended.
TICK_S = 0.3
# Time between two progress lines about the use of the endpoint.
TELL_S = 600.0
# Number of a failure's log lines that progress prints.
QUOTED = 5
# Reasons of an end that is no failure.
NORMAL = ("stop_requested", "out_of_time")


@dataclass
class Usage:
    """Number of requests, from every server's /metrics. ``scrapes``: a function for each server, by the daemon's name."""

    scrapes: Mapping[str, Callable[[], Load]]
    finished: int = 0
    running: int = 0
    silent: tuple[str, ...] = ()
    _seen: dict[str, int] = field(default_factory=dict)

    def read(self) -> None:
        """Read all servers once. Requests finished before the first reading do not count. A server without a response keeps its count."""
        running, silent = 0, []
        for name, scrape in self.scrapes.items():
            try:
                load = scrape()
            except httpx.HTTPError:
                silent.append(name)
                continue
            self.finished += load.finished - self._seen.get(name, load.finished)
            self._seen[name] = load.finished
            running += int(load.open_requests)
        self.running, self.silent = running, tuple(silent)


@dataclass(frozen=True)
class Holding:
    """Serves the endpoint of one deployment."""

    here: StageContext
    cluster: Cluster
    ready: Ready

    def run(self) -> Held:
        """Serve the endpoint until it is stopped or reaches its time limit. In all cases end all of its processes.

        Raises:
            StageFailed: it did not come up, or it died.
            TakenOver: another allocation owns the deployment.
        """
        ready, failure, since, finished = self.ready, self.ready.failure, None, 0
        if ready.attempt is None:
            raise self._error(failure or _NOT_STARTED)
        attempt = Path(ready.attempt)
        why: Any = failure.reason if failure else None
        if failure is None:
            since = utc_now()
            usage, why = self._serve(attempt, since)
            finished = usage.finished
            if why == "taken_over":
                ownership.check(self.here.deployment)
            if why not in NORMAL:
                died = attempts.end_of(STAGE, attempt, SERVER, "The server died while serving:", "server_died")
                failure = attempts.fail(attempt, died, self.here.timeouts.stop)
        stopped = stop(self.here.plan, self.here.deployment, stop_s=self.here.timeouts.stop, log=self.here.log, progress=self.here.progress)
        if failure and why not in NORMAL:
            raise self._error(failure)
        words = "reached the time limit of its allocation" if why == "out_of_time" else "stopped on request"
        self.here.progress.say(f"{words}; {finished} requests finished; all processes have ended")
        return Held(
            deployment=self.here.plan.deployment,
            attempt=str(attempt),
            why=why,
            since=since,
            until=utc_now(),
            finished=finished,
            daemons=stopped.daemons,
            leftovers=stopped.leftovers,
        )

    def _serve(self, attempt: Path, since: str) -> tuple[Usage, str | None]:
        """Announce the endpoint and wait until its supervisor ends; return its use and why the supervisor ended."""
        key = Path(str(self.ready.key_file)).read_text().strip()
        usage = Usage({server.daemon: scraper(server.url, key) for server in self.ready.servers})
        usage.read()
        how = self.here.deployment / how_to_use.NAME
        why: str | None = None
        try:
            facts = self._facts(attempt)
            write_atomically(how, how_to_use.page(facts))
            self._tell(how, facts)
            self._wait(attempt, usage, since)
            state = supervisor.read_state(attempt)
            why = state.why if state else None
        finally:
            how.unlink(missing_ok=True)
            self._status("ended", usage, since, why)
        return usage, why

    def _wait(self, attempt: Path, usage: Usage, since: str) -> None:
        beat_at, told_at, told_silent = 0.0, time.monotonic(), usage.silent[:0]
        say = self.here.progress.say
        while supervisor.is_alive(attempt):
            now = time.monotonic()
            if now >= beat_at:
                usage.read()
                self._status("silent" if usage.silent else "held", usage, since)
                if usage.silent != told_silent:
                    say(f"warning: {', '.join(usage.silent)} does not respond on /metrics" if usage.silent else "all servers respond")
                    told_silent = usage.silent
                beat_at = now + HEARTBEAT_S
            if now - told_at > TELL_S:
                say(f"serving; {usage.finished} requests finished, {usage.running} running")
                told_at = now
            time.sleep(TICK_S)

    def _tell(self, how: Path, facts: how_to_use.Facts) -> None:
        say = self.here.progress.say
        say(f"READY  {facts.url}/v1  model {facts.served_name}")
        say(f"  key      in {self.ready.key_file} (readable by you alone)")
        say(f"  how to   {how}: curl, Python, ssh tunnel")
        say(f"  ends     {how_to_use.how_long(facts.ends_at)}")
        say(
            f"  stop     .venv/bin/servemark stop {facts.deployment} --run {facts.run}",
            endpoint=how_to_use.announcement(facts, how.absolute()),
        )

    def _error(self, failure: Failure) -> StageFailed:
        # The stage's error message shows only its first line.
        for line in failure.quote[:QUOTED]:
            self.here.progress.say(f"  | {line[:200]}")
        if failure.remedy:
            self.here.progress.say(f"what to do: {failure.remedy}")
        return attempts.as_error(failure)

    def _facts(self, attempt: Path) -> how_to_use.Facts:
        ready, site = self.ready, self.here.config.cluster
        assert ready.url and ready.key_file and ready.served_name, "a live deployment's live record is complete"
        return how_to_use.Facts(
            run=self.here.deployment.parents[1].name,
            deployment=ready.deployment,
            url=ready.url,
            served_name=ready.served_name,
            key_file=str(Path(ready.key_file).absolute()),
            node=(ready.router or ready.servers[0]).node if ready.servers else identity.host(),
            user=getpass.getuser(),
            checkout=str(Path.cwd()),
            scheduled=supervisor.read_spec(attempt).machine_lock is None,
            servers=tuple(server.url for server in ready.servers),
            chat=chat_template.fault(Path(self.here.manifest.path), self.here.plan.options) is None,
            ends_at=attempts.planned_end(ready),
            exposed=exposure.notes(self.here.plan.topology, exclusive=site is None or site.exclusive),
        )

    def _status(self, state: Literal["held", "silent", "ended"], usage: Usage, since: str, why: str | None = None) -> None:
        # A full or hanging disk must not end the endpoint.
        with contextlib.suppress(OSError):
            ends_at = attempts.planned_end(self.ready)
            status = EndpointStatus(
                deployment=self.ready.deployment,
                state=state,
                at=utc_now(),
                since=since,
                ends_at=None if ends_at is None else datetime.fromtimestamp(ends_at, UTC).isoformat(timespec="seconds"),
                url=self.ready.url,
                served_name=self.ready.served_name,
                nodes=tuple(node.name for node in self.cluster.nodes),
                job_id=self.cluster.job_id,
                attempt=self.ready.attempt,
                finished=usage.finished,
                running=usage.running,
                why=why,
            )
            status.write(self.here.deployment / how_to_use.STATUS)


_NOT_STARTED = Failure(
    stage=STAGE,
    reason="not_started",
    detail="The deployment was not started.",
    remedy="Rerun the same command. If it fails again, look at the log of start_cluster.",
)
