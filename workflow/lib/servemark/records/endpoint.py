"""An endpoint that is held for people to use: what it says of itself while it lives, and how it ended."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from servemark.records.base import Record
from servemark.records.deployment import DaemonState


class EndpointStatus(Record):
    """The heartbeat of a served endpoint. hold_endpoint writes it every few seconds; it is no rule's input."""

    KIND = "endpoint_status"
    deployment: str
    state: Literal["held", "silent", "ended"] = Field(description="silent: alive, but a server does not respond to /metrics")
    at: str = Field(description="when this was written, UTC")
    since: str = Field(description="start of serving")
    ends_at: str | None = Field(default=None, description="end of the allocation's time; null without an allocation")
    url: str | None = None
    served_name: str | None = None
    nodes: tuple[str, ...] = ()
    job_id: str | None = None
    attempt: str | None = None
    finished: int = Field(default=0, description="requests completed since serving began")
    running: int = Field(default=0, description="requests that the servers have now, waiting ones included")
    why: str | None = Field(default=None, description="why it ended, from the supervisor")


class Held(Record):
    """The regular end of a served endpoint. hold_endpoint writes it; the next run removes it when it begins."""

    KIND = "held"
    deployment: str
    attempt: str
    why: Literal["stop_requested", "out_of_time"]
    since: str | None = Field(default=None, description="null: it ended before it was ready")
    until: str
    finished: int = Field(default=0, description="requests completed, as of the last heartbeat")
    daemons: tuple[DaemonState, ...] = ()
    leftovers: tuple[str, ...] = Field(default=(), description="processes that did not end by themselves")
