"""measure: one load point, from the ledger or with a client, and its verdict."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from servemark import supervisor
from servemark.deployment import attempts, counters, fabric, telemetry
from servemark.deployment.client import BenchmarkClient
from servemark.deployment.context import StageContext
from servemark.deployment.counters import Scrape
from servemark.deployment.point_progress import PointProgress, finished_point, result_words
from servemark.deployment.recall import recalled
from servemark.deployment.server import SERVER
from servemark.deployment.watch import Load, ServerWatch, scraper
from servemark.environments import bytecode_cache
from servemark.errors import StageFailed
from servemark.files import storage
from servemark.measurement import reasons, verdict
from servemark.measurement.counters import sent_warmups
from servemark.measurement.key import point_parts
from servemark.measurement.ledger import Ledger, file_sha256, is_keepable
from servemark.measurement.raw import RawError
from servemark.measurement.verdict import ServerFacts
from servemark.nodes import allocation
from servemark.records import (
    Fabric,
    Failure,
    Measurement,
    PlannedPoint,
    Ready,
    Timeline,
    utc_now,
    write_atomically,
)

STAGE = "measure"
DURATIONS = "durations"
# Always written as a new file, because an existing one may be a hard link into the ledger.
NO_RESULTS = "{}\n"


@dataclass(frozen=True)
class Measuring:
    """Measures load points of one deployment."""

    here: StageContext
    ledger: Ledger

    def run(self, name: str, ready_path: Path, raw_path: Path) -> Measurement:
        """Return the record of a planned point; see :meth:`point`."""
        return self.point(next(p for p in self.here.plan.points if p.load.name == name), ready_path, raw_path)

    def point(self, point: PlannedPoint, ready_path: Path, raw_path: Path, shown: str = "") -> Measurement:
        """Return the point's record, and write its per-request results to ``raw_path`` (``{}`` if there are none).

        If the deployment failed or has ended, the record is INVALID and states that.

        Args:
            shown: name of the point for the display of progress; default: its own.
        """
        name = point.load.name
        raw_path.parent.mkdir(parents=True, exist_ok=True)
        if found := self._from_ledger(point, raw_path):
            self.here.progress.say(f"{name}: measured before, taken from the ledger", point=finished_point(found, shown, from_ledger=True))
            return found
        for warning in self.ledger.warnings:
            self.here.progress.say(f"warning: {warning}")
        ready, failure = self.live(ready_path)
        if ready is None or failure:
            return self._not_measured(point, failure, raw_path, shown)
        begun = time.monotonic()
        try:
            record = self._measure(point, ready, raw_path)
        except StageFailed:
            ready, failure = self.live(ready_path)
            if ready and not failure:
                raise
            # The deployment ended before the client started.
            return self._not_measured(point, failure, raw_path, shown)
        if is_keepable(record):
            self._keep(point, record, raw_path)
        self.here.progress.say(f"{name}: {result_words(record)}", point=finished_point(record, shown, seconds=time.monotonic() - begun))
        return record

    def _not_measured(self, point: PlannedPoint, failure: Failure | None, raw_path: Path, shown: str) -> Measurement:
        """Return the record of a point whose deployment failed or has ended."""
        record = self._lost(point, failure)
        why = failure.detail.splitlines()[0] if failure else f"it ended; see {record.attempt}/{supervisor.LOG}"
        words = f"{point.load.name}: not measured, because the deployment failed: {why}"
        self.here.progress.say(words, point=finished_point(record, shown))
        self.here.check()
        write_atomically(raw_path, NO_RESULTS)
        return record

    def _keep(self, point: PlannedPoint, record: Measurement, raw_path: Path) -> None:
        """Store the measurement. If the ledger's disk refuses, the next run stores it from the record (servemark.run.restore)."""
        try:
            self.ledger.store(point.key, record, raw_path)
        except OSError as error:
            refused = storage.refusal(error, self.ledger.root)
            if refused is None:
                raise
            self.here.progress.say(f"warning: {point.load.name} is not in the ledger yet: {refused.what}")
            self.here.progress.say(f"what to do: {refused.do}")

    def _from_ledger(self, point: PlannedPoint, raw_path: Path) -> Measurement | None:
        found = recalled(self.ledger, point, self.here.plan, self.here.config)
        if found is None:
            return None
        record, stored = found
        self.here.check()
        stored.copy_raw(raw_path)
        return record.model_copy(update={"raw": raw_path.name})

    def live(self, ready_path: Path) -> tuple[Ready | None, Failure | None]:
        """Return the live record if the deployment is up, and the failure that prevents the measurement, if any."""
        ready = Ready.read(ready_path)
        if ready.replay or ready.failure or ready.attempt is None:
            return None, ready.failure
        attempt = Path(ready.attempt)
        if supervisor.is_alive(attempt):
            return ready, self._too_late(ready, attempt)
        noted = attempts.noted_failure(attempt)
        return None, noted or self._died(
            attempt, attempts.end_of(STAGE, attempt, SERVER, "The server died between two load points:", "server_died")
        )

    def _too_late(self, ready: Ready, attempt: Path) -> Failure | None:
        """Return a failure if the time limit would end the next point, judged by the longest point so far."""
        if (ends_at := attempts.planned_end(ready)) is None:
            return None
        left_s = ends_at - time.time()
        path = attempt / DURATIONS
        expected_s = 1.1 * max(map(float, path.read_text().split() if path.exists() else ()), default=0.0)
        if left_s > expected_s:
            return None
        left = f"The job has {max(0.0, left_s):.0f} s left."
        detail = f"{left} A load point takes about {expected_s:.0f} s, so servemark did not start the next one."
        failure = Failure(stage=STAGE, reason="out_of_time", detail=detail, remedy=reasons.MORE_TIME)
        return attempts.fail(attempt, failure, self.here.timeouts.stop)

    def _died(self, attempt: Path, failure: Failure) -> Failure:
        return attempts.fail(attempt, failure.model_copy(update={"reason": "server_died"}), self.here.timeouts.stop)

    def _record(self, point: PlannedPoint, attempt: Path | None, **fields: Any) -> Measurement:
        """Return the record of a point before its verdict."""
        return Measurement(
            deployment=self.here.plan.deployment,
            load=point.load,
            key=point.key,
            key_format=self.here.plan.key_format,
            key_parts={"deployment": self.here.plan.key_parts, "point": point_parts(point.load)},
            verdict="INVALID",
            attempt=str(attempt) if attempt else None,
            attempt_id=supervisor.attempt_id(attempt) if attempt else None,
            **fields,
        )

    def _lost(self, point: PlannedPoint, failure: Failure | None) -> Measurement:
        attempt = attempts.latest(self.here.deployment)
        return verdict.not_measured(self._record(point, attempt), failure or gone(attempt, "this point was measured"))

    def _measure(self, point: PlannedPoint, ready: Ready, raw_path: Path) -> Measurement:
        """Run the client and judge its results. If a server died or hung, end the deployment and record the failure for later points.

        Raises:
            StageFailed: the client cannot be started.
        """
        assert ready.attempt and ready.url and ready.served_name and ready.key_file, "a live deployment's live record is complete"
        here, load, attempt = self.here, point.load, Path(ready.attempt)
        key = Path(ready.key_file).read_text().strip()
        # The attempt's number is in the name, because a client on a lost node may still write the file of its attempt.
        draft = raw_path.with_name(f".{raw_path.name}.{attempt.name}.draft")
        own = bytecode_cache.variables(here.environment)
        trusted = bool(here.plan.options.get("trust-remote-code"))
        client = BenchmarkClient(
            load, ready, draft, here.environment.python, here.manifest.path, own, here.container(), here.dataset(load), trusted
        )
        client.clear()
        scrapes = {server.daemon: scraper(server.url, key) for server in ready.servers}
        server = ServerWatch(attempt, scrapes, here.timeouts.no_progress)

        shown = PointProgress(load, here.progress)

        def check() -> str | None:
            reason = server()
            shown.report(server.total)
            return reason

        server.begin()
        before = _counted(scrapes)
        started_at = utc_now()
        result = client.run(attempt, here.plan.modules, here.timeouts.point, here, check)
        server.settle()
        with open(attempt / DURATIONS, "a") as stream:
            stream.write(f"{result.seconds:.1f}\n")
        died = death(attempt, server)
        after = _counted(scrapes) if died is None and before else {}
        replicas = {server.daemon: server.replica for server in ready.servers}
        counted = (
            counters.of_point(before, server.scrapes_of_all, after, replicas, sent_warmups(load), here.manifest.vocabulary)
            if after
            else None
        )
        facts = ServerFacts(
            died=died,
            hung=server.hung,
            client_exit_code=None if result.stopped else result.exit_code,
            client_timed_out=bool(result.stopped and result.stopped.startswith("timeout")),
            interrupted=allocation.suspended_since(datetime.fromisoformat(started_at)),
            counters=counted,
            options=here.plan.key_parts.get("options", {}),
        )
        results = client.collect()
        if isinstance(results, RawError):
            # A full disk is an error, not an INVALID measurement.
            storage.require(draft.parent)
        since = datetime.fromisoformat(started_at).timestamp()
        sampled, second_by_second = (None, None) if facts.died or facts.hung else telemetry.collect(attempt, since, results)
        checked = Fabric.read_or_none(attempt / fabric.KEPT)
        facts = replace(facts, telemetry=sampled, slow_transport=checked.slow if checked else None)
        judgement = verdict.judge(results, load, here.config.verdict, facts)
        failure = self.end_deployment(attempt, load.name, facts, server.blamed)
        here.check()
        if draft.exists():
            draft.replace(raw_path)
        else:
            write_atomically(raw_path, NO_RESULTS)
        client.clear()
        timeline = server.timeline(here.plan.deployment, load.name, started_at, replicas)
        timeline.model_copy(update={"telemetry": second_by_second}).write(Timeline.path(attempt, load.name))
        record = self._record(
            point,
            attempt,
            started_at=started_at,
            client_node=ready.client_node,
            client_argv=tuple(client.commands[0]),
            client_exit_code=facts.client_exit_code,
            replica_requests=counters.by_replica(counted),
            counters=counted,
            telemetry=sampled,
            transport_kind=checked.transport_kind if checked else None,
            raw=raw_path.name,
            raw_sha256=file_sha256(raw_path),
            failure=failure,
        )
        return verdict.judged(record, judgement)

    def end_deployment(self, attempt: Path, point: str, facts: ServerFacts, blamed: str) -> Failure | None:
        """End the deployment if a server died or hung during ``point``, and return the failure for later points."""
        if facts.died:
            what = f"The server died during {point}: {facts.died}"
            return self._died(attempt, attempts.explain_end(STAGE, attempt, attempts.first_to_end(attempt, blamed), what, "server_died"))
        if not facts.hung:
            return None
        daemon = attempts.find_daemon(attempt, blamed)
        failure = Failure(
            stage=STAGE,
            reason="server_hung",
            detail=f"The server hung during {point}: {facts.hung}.",
            log=daemon.log if daemon else None,
            remedy="Rerun the same command. If it hangs again, read the server's log. If it is only slow, raise timeouts.no_progress.",
        )
        return attempts.fail(attempt, failure, self.here.timeouts.stop)


def _counted(scrapes: Mapping[str, Callable[[], Load]]) -> dict[str, Scrape]:
    """Return each server's counters since its start; empty if a server does not respond."""
    try:
        return {name: scrape().counters for name, scrape in scrapes.items()}
    except httpx.HTTPError:
        return {}


def gone(attempt: Path | None, before: str) -> Failure:
    """Return the failure for a deployment that ended without one."""
    log = str(supervisor.own_file(attempt, supervisor.STATE)) if attempt else None
    detail, remedy = f"The deployment ended before {before}.", "Rerun the same command: servemark measures the missing points then."
    return Failure(stage=STAGE, reason="deployment_gone", detail=detail, log=log, remedy=remedy)


def death(attempt: Path, server: ServerWatch) -> str | None:
    """Return how the server died. The client may end before the watch detects that, because all its requests failed."""
    if server.all_alive:
        return server.died
    first = attempts.first_to_end(attempt, server.blamed)
    daemon = attempts.await_end(attempt, first.name if first else server.blamed)
    return attempts.how_it_ended(daemon) if daemon and daemon.ended_at else "the server's process has ended"
