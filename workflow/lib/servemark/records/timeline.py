"""What the servers said of themselves while a load point was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, FiniteFloat, model_validator

from servemark.records.base import Record, Strict


class ServerTimeline(Strict):
    """One server's answers to /metrics in the order of time: entry i of every list is of the same answer."""

    replica: str
    seconds: tuple[FiniteFloat, ...] = Field(description="since the watch began, a moment before the client was started")
    running: tuple[FiniteFloat, ...] = Field(description="requests in the batch; several engines added up")
    waiting: tuple[FiniteFloat, ...] = Field(description="requests in the queue; several engines added up")
    kv_cache_usage: tuple[FiniteFloat | None, ...] = Field(description="0 to 1, of the fullest engine; None where the server does not say")
    engines: int = Field(default=1, description="data parallel engines that the server told of")
    fullest: tuple[FiniteFloat, ...] = Field(default=(), description="requests of the fullest engine; empty: one engine")

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        lists = (self.seconds, self.running, self.waiting, self.kv_cache_usage)
        if len({len(values) for values in lists}) != 1 or len(self.fullest) not in (0, len(self.seconds)):
            raise ValueError("the lists of a server's answers have other lengths")
        return self


class Timeline(Record):
    """A load point second by second, of the measurement with the same deployment, point and ``started_at``. No result depends on it."""

    KIND = "timeline"
    deployment: str
    point: str
    started_at: str
    interval_s: FiniteFloat = Field(description="how often each server was asked")
    servers: tuple[ServerTimeline, ...]

    @staticmethod
    def path(attempt: Path, point: str) -> Path:
        """Return where a point's is kept: in the attempt's folder, which outlives replays and goes into the archive."""
        return attempt / "timelines" / f"{point}.json"
