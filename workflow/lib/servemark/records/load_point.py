"""One load on a deployment; plan and measurement embed the same record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from servemark.records.base import Strict
from servemark.records.workload import AnyPrompts


class LoadPoint(Strict):
    """What is sent to a deployment, and how: prompts, concurrency or request rate, repetition and seed."""

    name: str = Field(description="WORKLOAD-cCONCURRENCY-rREPETITION, or WORKLOAD-qRATE-rREPETITION")
    workload: str = Field(description="its name in the configuration")
    prompts: AnyPrompts
    concurrency: int | None = Field(description="requests in flight; with a request rate, the upper limit or none")
    request_rate: float | None = Field(default=None, description="requests/s; none: the concurrency is the load")
    repetition: int = Field(description="from 1")
    seed: int = Field(description="of the prompts, 0 to 2**31 - 1")
    requests: int
    warmups: int
    warmup_tokens: int | None = Field(
        default=None, description="output tokens of a warm-up, at most; none: vLLM's own warm-ups with full outputs"
    )
    client_options: dict[str, Any] = {}
    clients: int = Field(default=1, description="processes of the client that share the load")
    ask: Literal["endpoint", "replica"] = Field(default="endpoint", description="one address, or the first replica past the router")

    @property
    def prefix_tokens(self) -> int:
        """Tokens that all prompts begin with, before their own."""
        return self.prompts.prefix_tokens(self.client_options)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the longest prompt, the shared prefix included."""
        return self.prefix_tokens + self.prompts.input_tokens

    @property
    def request_tokens(self) -> int:
        """Tokens of the longest prompt and its output."""
        return self.prompt_tokens + self.prompts.output_tokens


_RENAMED = {"point": "name", "asked": "requests", "options": "client_options"}


def embed(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return a planned point or a measurement of version 1 in the form of version 2, with its load point under ``load``.

    Version 1 knew random prompts only and spelled the load point out among its other keys; a measurement held a part of it in
    ``key_parts`` alone.
    """
    own = {_RENAMED.get(name, name): value for name, value in flat.items()}
    shape = flat["key_parts"]["point"]["workload"] if "key_parts" in flat else {}
    known = {_RENAMED.get(name, name): value for name, value in shape.items()} | own
    load = {name: known[name] for name in LoadPoint.model_fields if name in known}
    load["prompts"] = {"dataset": "random"} | {name: own.pop(name) for name in ("input_tokens", "output_tokens")}
    return {name: value for name, value in own.items() if name not in load} | {"load": load}
