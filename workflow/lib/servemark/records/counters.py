"""What the servers counted themselves during a load point, read from their /metrics before and after it."""

from pydantic import Field, FiniteFloat

from servemark.records.base import Strict


class EngineCounters(Strict):
    """Counters of one engine of one replica between two scrapes. None: the server does not report the counter."""

    replica: str
    engine: str = Field(description="label `engine` of the server's metrics")
    finished: int = Field(description="requests, aborted ones included")
    generated: int = Field(description="output tokens")
    preemptions: int = Field(default=0, description="requests that lost their KV cache to others and were computed again")
    ttft_s: FiniteFloat = Field(default=0.0, description="sum of the server's own times to first token, seconds")
    ttft_count: int = 0
    prefix_queries: int | None = Field(default=None, description="prompt tokens that were looked up in the prefix cache")
    prefix_hits: int | None = Field(default=None, description="prompt tokens that the prefix cache had")
    drafts: int | None = Field(default=None, description="steps with speculated tokens")
    draft_tokens: int | None = Field(default=None, description="speculated tokens")
    accepted_tokens: int | None = Field(default=None, description="speculated tokens that the model accepted")


class ServerCounters(Strict):
    """What all servers of a deployment counted during one load point."""

    engines: tuple[EngineCounters, ...] = Field(description="from before the client's start to after its end, warm-ups included")
    measured: tuple[EngineCounters, ...] = Field(
        default=(), description="from the first scrape after the last warm-up; empty: no scrape came between warm-ups and end"
    )
    finished_before: int = Field(default=0, description="requests that the servers had finished before the first scrape")
    vocabulary: int | None = Field(default=None, description="tokens that the model knows (`vocab_size` of its config.json)")
