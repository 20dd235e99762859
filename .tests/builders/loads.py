"""Load points of random prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servemark.records import LoadPoint, RandomPrompts

LENGTHS = ("input_tokens", "output_tokens")


def load(**changes: Any) -> LoadPoint:
    """Return a load point of four concurrent requests, 8 tokens in, 5 out; ``input_tokens`` and ``output_tokens`` set the prompts'."""
    values: dict[str, Any] = {
        "workload": "chat",
        "concurrency": 4,
        "repetition": 1,
        "seed": 0,
        "requests": 4,
        "warmups": 0,
    }
    values |= {"input_tokens": 8, "output_tokens": 5, **changes}
    prompts = RandomPrompts(dataset="random", **{name: values.pop(name) for name in LENGTHS})
    name = f"{values['workload']}-c{values['concurrency']}-r{values['repetition']}"
    return LoadPoint(**{"name": name, "prompts": prompts} | values)


def split(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split ``values`` into those of a load point and the rest."""
    own = {*LoadPoint.model_fields, *LENGTHS}
    inside = {name: value for name, value in values.items() if name in own}
    return inside, {name: value for name, value in values.items() if name not in own}


def at_load(record: Any, **changes: Any) -> Any:
    """Return the measurement or planned point with another load point."""
    return record.model_copy(update={"load": record.load.model_copy(update=changes)})


class UnevenPrompts(RandomPrompts):
    """Prompts of unknown length; each output is one token longer than the previous one."""

    def client_arguments(self) -> list[str]:
        return ["--dataset-name", "uneven"]

    def key_part(self) -> dict[str, Any]:
        return {"dataset": "uneven", "sha256": "ab"}

    def expected_input_tokens(self, request: int) -> int | None:
        return None

    def expected_output_tokens(self, request: int) -> int:
        return self.output_tokens + request
