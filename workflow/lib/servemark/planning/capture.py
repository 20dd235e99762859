"""Which CUDA graphs a deployment's load points need: what ``max-cudagraph-capture-size: workload`` stands for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from servemark.planning.options import flag, max_num_seqs
from servemark.records import Hardware, Topology

OPTION = "max-cudagraph-capture-size"
WORKLOAD = "workload"
MARGIN = 1.25
"""Of several engines, one may have so many times the equal share: neither a router that gives requests out in turn nor vLLM's own
balancing keeps the shares equal, and a step that is larger than the largest graph runs without one."""

# Options that turn speculative decoding on (vllm/engine/arg_utils.py).
SPECULATION = ("speculative-config", "spec-method", "spec-model", "spec-tokens")
_OTHER_SIZES = ("cudagraph-capture-sizes", "compilation-config")


class Load(Protocol):
    """What of a load point is looked at."""

    @property
    def name(self) -> str: ...

    @property
    def concurrency(self) -> int | None: ...

    @property
    def ask(self) -> str: ...


def captured(requests: int) -> int:
    """The smallest size that vLLM captures and that holds so many requests: 1, 2, 4, steps of 8 to 256, then of 16.

    Source: vllm/config/vllm.py, _set_cudagraph_sizes (the same list in 0.25.1 and 0.32.0). With speculative decoding a request takes
    several places of a graph, by rules that differ between the two.
    """
    if requests <= 4:
        return next(size for size in (1, 2, 4) if size >= requests)
    step = 8 if requests <= 256 else 16
    return math.ceil(requests / step) * step


def needed(topology: Topology, concurrency: int, at_a_time: int) -> int:
    """The largest graph that one engine needs while ``concurrency`` requests are in flight over all that the topology has.

    Args:
        at_a_time: requests that an engine runs at once; the others wait.
    """
    engines = topology.replicas * topology.data_parallel
    share = math.ceil(concurrency / engines)
    if engines > 1:
        share = min(concurrency, math.ceil(share * MARGIN))
    return captured(min(share, at_a_time))


def resolve(
    options: Mapping[str, Any], topology: Topology, points: Sequence[Load], hardware: Hardware
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The options with a number in the place of ``workload``, and why there can be none: (options, one sentence a reason).

    Where nothing is captured (CPU, eager mode) the option is left out.
    """
    if options.get(OPTION) != WORKLOAD:
        return dict(options), ()
    rest = {name: value for name, value in options.items() if name != OPTION}
    if hardware.accelerator != "cuda" or flag(rest, "enforce-eager"):
        return rest, ()
    if refused := [
        f"options.{OPTION}: {WORKLOAD}, but {why}; give a number instead." for why in _unknown(rest, points)
    ]:
        return rest, tuple(refused)
    at_a_time = max_num_seqs(rest, topology, hardware)
    size = max(needed(topology.asked(point.ask), point.concurrency or 1, at_a_time) for point in points)
    # In its old place: a plan's options are shown in the order in which they were given.
    return {name: size if name == OPTION else value for name, value in options.items()}, ()


def _unknown(options: Mapping[str, Any], points: Sequence[Load]) -> list[str]:
    """Why the largest number of requests at once, or what it means for graphs, is not known."""
    why = []
    if unlimited := [point.name for point in points if point.concurrency is None]:
        others = f" and {len(unlimited) - 1} more" if len(unlimited) > 1 else ""
        why.append(f"{unlimited[0]}{others} has a request rate and no concurrency, so requests at once have no limit")
    if spoken := [name for name in options if name.split(".")[0] in SPECULATION]:
        why.append(f"with speculative decoding ({spoken[0]}) a request takes several places of a graph")
    if other := [name for name in options if name.split(".")[0] in _OTHER_SIZES]:
        why.append(f"{other[0]} may name sizes too, and vLLM ends when the two differ")
    return why
