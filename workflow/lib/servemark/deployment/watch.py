"""The watch of servers during a measurement: each is alive and generates tokens."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from servemark import supervisor
from servemark.deployment import attempts
from servemark.deployment.counters import Scrape, parse
from servemark.records import ServerTimeline, Timeline

SCRAPE_S = 1.0
# Time until the supervisor records a server's end: a second or two through a launcher.
SETTLE_S = 5.0


@dataclass(frozen=True)
class Load:
    """Metrics of a server.

    Attributes:
        generated: output tokens since its start.
        open_requests: in-flight requests now, ``waiting`` of them in the queue.
        finished: requests since its start.
        kv_cache_usage: 0 to 1 of the fullest engine; None if not reported.
        fullest: largest batch of the ``engines``, in requests.
        counters: of each engine; see :mod:`servemark.deployment.counters`.
        ttft_s: sum of the times to first token of ``ttft_count`` requests since its start, measured by the server.
    """

    generated: float
    open_requests: float
    finished: int = 0
    waiting: float = 0.0
    kv_cache_usage: float | None = None
    fullest: float = 0.0
    engines: int = 1
    ttft_s: float = 0.0
    ttft_count: int = 0
    counters: Scrape = field(default=(), compare=False)

    def __add__(self, other: Load) -> Load:
        """Return the counters of both servers together; the KV cache and the batch of the fuller one."""
        usages = [usage for usage in (self.kv_cache_usage, other.kv_cache_usage) if usage is not None]
        return Load(
            generated=self.generated + other.generated,
            open_requests=self.open_requests + other.open_requests,
            finished=self.finished + other.finished,
            waiting=self.waiting + other.waiting,
            kv_cache_usage=max(usages, default=None),
            fullest=max(self.fullest, other.fullest),
            engines=self.engines + other.engines,
            ttft_s=self.ttft_s + other.ttft_s,
            ttft_count=self.ttft_count + other.ttft_count,
        )


def parse_metrics(text: str) -> Load:
    """Return the metrics in vLLM's Prometheus text, summed over engines."""
    families = list(text_string_to_metric_families(text))
    samples = {family.name.removeprefix("vllm:"): family.samples for family in families}

    def total(name: str) -> float:
        return sum(sample.value for sample in samples.get(name, ()) if not sample.name.endswith("_created"))

    def one(family: str, suffix: str) -> float:
        return sum(sample.value for sample in samples.get(family, ()) if sample.name.endswith(suffix))

    running = {sample.labels.get("engine", ""): sample.value for sample in samples.get("num_requests_running", ())}
    usages = [sample.value for sample in samples.get("kv_cache_usage_perc", ()) if math.isfinite(sample.value)]
    waiting = total("num_requests_waiting")
    return Load(
        generated=total("generation_tokens"),
        open_requests=total("num_requests_running") + waiting,
        finished=int(total("request_success")),
        waiting=waiting,
        kv_cache_usage=max(usages, default=None),
        fullest=max(running.values(), default=0.0),
        engines=max(len(running), 1),
        ttft_s=one("time_to_first_token_seconds", "_sum"),
        ttft_count=int(one("time_to_first_token_seconds", "_count")),
        counters=parse(families),
    )


@dataclass
class ServerWatch:
    """Watch of a deployment's servers. Call it repeatedly while a client runs; it returns a reason to stop the client, or None.

    A server hangs if for ``no_progress_s`` it does not respond on /metrics, or generates no token while requests are open. ``scrapes``: a
    function for each replica's server, by the daemon's name.
    """

    attempt: Path
    scrapes: Mapping[str, Callable[[], Load]]
    no_progress_s: float
    clock: Callable[[], float] = time.monotonic
    died: str | None = None
    hung: str | None = None
    _blamed: str | None = None
    _moved_at: dict[str, float] = field(default_factory=dict)
    _next: float = 0.0
    _began: float = 0.0
    _samples: dict[str, list[tuple[float, Load]]] = field(default_factory=dict)

    def begin(self) -> None:
        """Start the clocks."""
        self._began = self.clock()
        self._moved_at = dict.fromkeys(self.scrapes, self._began)

    def timeline(self, deployment: str, point: str, started_at: str, replicas: Mapping[str, str]) -> Timeline:
        """Return the metrics of every server since the beginning. ``replicas``: the replica of each daemon."""
        return Timeline(
            deployment=deployment,
            point=point,
            started_at=started_at,
            interval_s=SCRAPE_S,
            servers=tuple(self._timeline(name, replicas[name]) for name in self.scrapes),
        )

    def _timeline(self, name: str, replica: str) -> ServerTimeline:
        samples = self._samples.get(name, [])
        engines = max((load.engines for _, load in samples), default=1)
        return ServerTimeline(
            replica=replica,
            seconds=tuple(round(seconds, 2) for seconds, _ in samples),
            running=tuple(load.open_requests - load.waiting for _, load in samples),
            waiting=tuple(load.waiting for _, load in samples),
            kv_cache_usage=tuple(load.kv_cache_usage for _, load in samples),
            engines=engines,
            fullest=tuple(load.fullest for _, load in samples) if engines > 1 else (),
        )

    @property
    def scrapes_of_all(self) -> list[dict[str, Scrape]]:
        """Each round of samples in which all servers responded, oldest first."""
        rounds: dict[float, dict[str, Scrape]] = {}
        for name, samples in self._samples.items():
            for seconds, load in samples:
                rounds.setdefault(seconds, {})[name] = load.counters
        return [rounds[seconds] for seconds in sorted(rounds) if len(rounds[seconds]) == len(self.scrapes)]

    @property
    def total(self) -> Load | None:
        """The latest metrics of all servers together; None while one of them has not responded yet."""
        latest = [samples[-1][1] for samples in self._samples.values()]
        return sum(latest[1:], latest[0]) if len(latest) == len(self.scrapes) else None

    @property
    def all_alive(self) -> bool:
        """Whether no server has ended. The supervisor starts none a second time."""
        return all(self._ended(name) is None for name in self.scrapes)

    @property
    def blamed(self) -> str:
        """The daemon that died or hung; the first daemon if none did."""
        ended = (name for name in self.scrapes if self._ended(name))
        return self._blamed or next(ended, None) or next(iter(self.scrapes))

    def settle(self, seconds: float = SETTLE_S) -> None:
        """Wait until a server that does not respond after the client's end is recorded as ended."""
        deadline = self.clock() + seconds
        while self.died is None and self.hung is None and self.all_alive and self.clock() < deadline:
            try:
                for scrape in self.scrapes.values():
                    scrape()
                return
            except httpx.HTTPError:
                time.sleep(0.05)

    def _ended(self, name: str) -> str | None:
        daemon = attempts.find_daemon(self.attempt, name)
        if daemon is None or daemon.ended_at:
            return attempts.how_it_ended(daemon) if daemon else f"the process of {name} has ended"
        return None if supervisor.is_alive(self.attempt) else "the server's process has ended"

    def __call__(self) -> str | None:
        """Return a reason to stop the client, or None."""
        for name in self.scrapes:
            if ended := self._ended(name):
                self.died, self._blamed = ended, name
                return self.died
        now = self.clock()
        if now >= self._next:
            self._next = now + SCRAPE_S
            for name, scrape in self.scrapes.items():
                if self.died is None and self.hung is None:
                    self._sample(name, scrape, now)
        return self.died or self.hung

    def _sample(self, name: str, scrape: Callable[[], Load], now: float) -> None:
        fault = "did not respond on /metrics"
        try:
            load, samples = scrape(), self._samples.setdefault(name, [])
            if not samples or load.generated != samples[-1][1].generated or load.open_requests == 0:
                self._moved_at[name] = now
            samples.append((now - self._began, load))
            fault = f"generated no token with {load.open_requests:.0f} requests open"
        except httpx.HTTPStatusError as error:
            fault = f"returned {error.response.status_code} on /metrics"
            if error.response.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                self.died, self._blamed = f"{name} {fault}", name  # the key is refused: it is another program
        except httpx.HTTPError:
            pass  # hung after a while; a server that has ended is detected by its process
        if now - self._moved_at[name] > self.no_progress_s:
            self.hung, self._blamed = f"{name} {fault} for {now - self._moved_at[name]:.0f} s", name


def scraper(url: str, key: str) -> Callable[[], Load]:
    """Return a function that reads one server's /metrics. It raises ``httpx.HTTPError``, also for text in another format."""
    client = httpx.Client(base_url=url, timeout=2.0, headers={"Authorization": f"Bearer {key}"}, trust_env=False)

    def scrape() -> Load:
        response = client.get("/metrics")
        response.raise_for_status()
        try:
            return parse_metrics(response.text)
        # The parser raises IndexError for some texts, and infinite counts have no integer (OverflowError).
        except (ValueError, ArithmeticError, LookupError) as error:
            raise httpx.DecodingError(f"{url}/metrics returned text that is not in Prometheus format: {error}") from error

    return scrape
