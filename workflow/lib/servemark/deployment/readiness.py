"""await_ready: wait until the server answers a real completion, or say why it will not.

Ready is /health 200, then /v1/models lists the served name, then one completion with a token in it: vLLM answers 200 on
/health while its first request would kill the engine (seen with pipeline parallelism), so only the last one counts.
A dead process ends the wait at once; a log that moves resets the stall clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import httpx

from servemark import keeper, planning
from servemark.deployment import attempts
from servemark.deployment.server import SERVER
from servemark.errors import StageFailed
from servemark.progress import Progress
from servemark.records import Cluster, Endpoint, Failure, Plan, Ready, Startup
from servemark.startup_log import StartupLog

STAGE = "await_ready"
INTERVAL_S = 0.25


@dataclass(frozen=True)
class Waited:
    """Result of a successful wait; seconds since the server process was started."""

    seconds_to_health: float
    seconds_to_first_token: float


def poll(
    probe: Callable[[], str],
    read_log: Callable[[], bool],
    died: Callable[[], bool],
    *,
    start_s: float,
    stall_s: float,
    begin: float,
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Waited:
    """Wait until ``probe`` says ``ready``.

    Args:
        probe: ``ready``, ``healthy`` (answers /health, no completion yet) or words for what is missing.
        read_log: whether the log has moved since the last call.
        died: whether the process has ended.
        start_s: deadline for the whole start, seconds.
        stall_s: longest silence of the log, seconds.
        begin: ``clock()`` at process start.

    Raises:
        StageFailed: reason ``server_exited``, ``startup_timeout`` or ``startup_stalled``.
    """
    moved_at, healthy_at = clock(), None
    while True:
        if died():
            raise StageFailed("The server ended before it was ready.", reason="server_exited")
        answer = probe()
        if healthy_at is None and answer in ("healthy", "ready"):
            healthy_at = clock() - begin
        if answer == "ready":
            assert healthy_at is not None
            return Waited(round(healthy_at, 2), round(clock() - begin, 2))
        if read_log():
            moved_at = clock()
        tell(answer)
        if clock() - begin > start_s:
            raise StageFailed(
                f"The server was not ready after {start_s:.0f} s (last: {answer}).", reason="startup_timeout"
            )
        if clock() - moved_at > stall_s:
            raise StageFailed(
                f"The server's log has been silent for {stall_s:.0f} s (last: {answer}).", reason="startup_stalled"
            )
        sleep(INTERVAL_S)


class ServerProbe:
    """Asks one server; every answer that shows another program on our port is an error at once."""

    def __init__(self, url: str, served_name: str, key: str):
        self._client = httpx.Client(
            base_url=url, timeout=10.0, headers={"Authorization": f"Bearer {key}"}, trust_env=False
        )
        self._name = served_name
        self._healthy = False

    def __call__(self) -> str:
        try:
            if not self._healthy:
                health = self._client.get("/health")
                if health.status_code != 200:
                    return f"/health answers {health.status_code}"
                self._healthy = True
                return "healthy"
            return self._ask()
        except httpx.HTTPError as error:
            return (
                "no connection yet" if isinstance(error, httpx.ConnectError) else f"no answer ({type(error).__name__})"
            )

    def _ask(self) -> str:
        models = self._client.get("/v1/models")
        if models.status_code >= 500:
            return f"/v1/models answers {models.status_code}"
        do = "Run again: another port is chosen (or choose another deployments.NAME.port)."
        if models.status_code == 401:
            raise StageFailed(
                f"The server at {self._client.base_url} does not know our key: another program has taken the port.",
                do=do,
                reason="foreign_server",
            )
        names = _model_names(models)
        if self._name not in names:
            raise StageFailed(
                f"The server lists the models {names}, not {self._name!r}: it is not the one we started.",
                do=do,
                reason="foreign_server",
            )
        answer = self._client.post(
            "/v1/completions",
            json={"model": self._name, "prompt": "Hello", "max_tokens": 1, "temperature": 0, "ignore_eos": True},
            timeout=120,
        )
        if answer.status_code != 200:
            return f"a completion answers {answer.status_code}: {answer.text[:200]}"
        return (
            "ready" if answer.json().get("usage", {}).get("completion_tokens", 0) >= 1 else "a completion has no token"
        )


def _model_names(answer: httpx.Response) -> list[str]:
    """The names in an OpenAI model list; none in what is no such list."""
    try:
        return [model["id"] for model in answer.json()["data"]]
    except (ValueError, KeyError, TypeError):
        return []


class _Tail:
    """Feeds what is appended to the server's log to the parser."""

    def __init__(self, path: Path, log: StartupLog):
        self._path, self._log, self._offset = path, log, 0

    def __call__(self) -> bool:
        with open(self._path, errors="replace") as stream:
            stream.seek(self._offset)
            text = stream.read()
            self._offset = stream.tell()
        before = self._log.progress
        self._log.feed(text)
        return self._log.progress != before


def wait(
    plan: Plan,
    cluster: Cluster,
    token: Endpoint,
    folder: Path,
    *,
    start_s: float,
    stall_s: float,
    stop_s: float,
    progress: Progress,
) -> tuple[Ready, Startup]:
    """Wait for the server; returns the token and the start-up record, both with ``failure`` when it did not come up."""
    if token.replay:
        # Nothing was started: the start-up facts are those of the attempt that served.
        kept = next(
            (a / "startup.json" for a in reversed(attempts.every(folder)) if (a / "startup.json").exists()), None
        )
        return Ready(deployment=plan.deployment, replay=True), Startup.read(kept) if kept else Startup(
            deployment=plan.deployment
        )
    if token.failure or token.attempt is None or token.url is None or token.key_file is None:
        return (
            Ready(deployment=plan.deployment, replay=token.replay, failure=token.failure, attempt=token.attempt),
            Startup(deployment=plan.deployment, failure=token.failure, attempt=token.attempt),
        )
    attempt = Path(token.attempt)
    daemon = attempts.find_daemon(attempt, SERVER)
    assert daemon is not None and daemon.started_at is not None, "serve_model has started it"
    parser = StartupLog()
    tail = _Tail(Path(daemon.log), parser)
    started = datetime.fromisoformat(daemon.started_at)
    begin = time.monotonic() - (datetime.now(started.tzinfo) - started).total_seconds()
    probe = ServerProbe(token.url, plan.served_name, Path(token.key_file).read_text().strip())

    def died() -> bool:
        state = attempts.find_daemon(attempt, SERVER)
        return state is None or state.ended_at is not None or not keeper.is_alive(attempt)

    try:
        waited = poll(
            probe,
            tail,
            died,
            start_s=start_s,
            stall_s=stall_s,
            begin=begin,
            tell=lambda _: progress.waiting(f"waiting for vLLM: {parser.stage}"),
        )
    except StageFailed as error:
        tail()
        failure = attempts.fail(attempt, _explain(attempt, error, parser.stage), stop_s)
        return (
            Ready(deployment=plan.deployment, failure=failure, attempt=token.attempt),
            Startup(deployment=plan.deployment, failure=failure, attempt=token.attempt, log=daemon.log),
        )
    ready_at = started + timedelta(seconds=waited.seconds_to_first_token)
    tail()
    progress.say(f"ready after {waited.seconds_to_first_token:.1f} s")
    observed = planning.observe(Path(daemon.log).read_text(errors="replace"))
    startup = Startup(
        deployment=plan.deployment,
        attempt=token.attempt,
        cluster_seconds=cluster.seconds,
        seconds_to_health=waited.seconds_to_health,
        seconds_to_first_token=waited.seconds_to_first_token,
        phases=parser.phases(started, ready_at),
        observed=observed,
        differences=planning.compare(plan.estimate, observed) if plan.estimate else {},
        log=daemon.log,
    )
    startup.write(attempt / "startup.json")
    ready = Ready(
        deployment=plan.deployment,
        attempt=token.attempt,
        url=token.url,
        served_name=token.served_name,
        key_file=token.key_file,
        server_pid=daemon.pid,
    )
    return ready, startup


def _explain(attempt: Path, error: StageFailed, stage: str) -> Failure:
    daemon = attempts.find_daemon(attempt, SERVER)
    if error.reason == "server_exited":
        daemon = attempts.first_to_end(attempt, SERVER)
        what = f"The server did not start: while {stage}, {attempts.how_it_ended(daemon) if daemon else 'it ended'}"
        return attempts.explain_end(STAGE, attempt, daemon, what, "server_exited")
    if error.reason == "foreign_server":
        return attempts.from_error(STAGE, error)
    failure = attempts.explain_end(STAGE, attempt, daemon, f"{error.what} It was {stage}.", error.reason, stalled=True)
    key = "timeouts.start" if error.reason == "startup_timeout" else "timeouts.stall"
    return failure.model_copy(
        update={
            "remedy": failure.remedy
            if failure.reason != error.reason
            else f"Read the log; raise {key} if it was only slow."
        }
    )
