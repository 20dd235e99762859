"""Watching a server while it is measured: alive, the same process, and generating tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from servemark.deployment import attempts
from servemark.deployment.server import SERVER
from servemark.processes import Identity

SCRAPE_S = 1.0


@dataclass(frozen=True)
class Load:
    """What the server says of itself: tokens generated since its start, open requests."""

    generated: float
    open_requests: float


def parse_metrics(text: str) -> Load:
    """Read vLLM's Prometheus text; several engines are added up."""
    sums = {"vllm:generation_tokens": 0.0, "vllm:num_requests_running": 0.0, "vllm:num_requests_waiting": 0.0}
    for family in text_string_to_metric_families(text):
        if family.name in sums:
            sums[family.name] += sum(s.value for s in family.samples if not s.name.endswith("_created"))
    return Load(sums["vllm:generation_tokens"], sums["vllm:num_requests_running"] + sums["vllm:num_requests_waiting"])


@dataclass
class ServerWatch:
    """Called again and again while a client runs; a returned text is the reason to end the measurement.

    A server counts as hung when, for ``no_progress_s``, it either does not answer /metrics or generates nothing while requests are open.
    """

    attempt: Path
    scrape: Callable[[], Load]
    no_progress_s: float
    clock: Callable[[], float] = time.monotonic
    died: str | None = None
    hung: str | None = None
    generated: float = 0.0
    _next: float = 0.0
    _moved_at: float = field(default=-1.0)
    _identity: Identity | None = None

    def begin(self, pid: int | None) -> None:
        """Remember which process serves."""
        self._identity = Identity.of(pid) if pid else None
        self._moved_at = self.clock()

    @property
    def same_process(self) -> bool:
        """Whether the process that served at the beginning still serves."""
        return self._identity is not None and self._identity.alive

    def __call__(self) -> str | None:
        daemon = attempts.find_daemon(self.attempt, SERVER)
        if daemon is None or daemon.ended_at or not self.same_process:
            self.died = attempts.how_it_ended(daemon) if daemon and daemon.ended_at else "the server's process is gone"
            return self.died
        now = self.clock()
        if now >= self._next:
            self._next = now + SCRAPE_S
            self._look(now)
        return self.died or self.hung

    def _look(self, now: float) -> None:
        silent = "did not answer /metrics"
        try:
            load = self.scrape()
            if load.generated != self.generated or load.open_requests == 0:
                self._moved_at = now
            self.generated = load.generated
            silent = f"generated nothing with {load.open_requests:.0f} requests open"
        except httpx.HTTPStatusError as error:
            self.died = f"the server answers {error.response.status_code} on /metrics"
        except httpx.HTTPError:
            pass  # no answer: the clock runs on, and a server that has ended is seen by its process
        if now - self._moved_at > self.no_progress_s:
            self.hung = f"the server {silent} for {now - self._moved_at:.0f} s"


def scraper(url: str, key: str, timeout_s: float = 2.0) -> Callable[[], Load]:
    """A function that reads one server's /metrics."""
    client = httpx.Client(base_url=url, timeout=timeout_s, headers={"Authorization": f"Bearer {key}"}, trust_env=False)

    def scrape() -> Load:
        answer = client.get("/metrics")
        answer.raise_for_status()
        return parse_metrics(answer.text)

    return scrape
