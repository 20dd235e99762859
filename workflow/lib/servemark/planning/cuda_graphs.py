"""Which CUDA graphs a deployment's load points need: what ``workload`` stands for in the two options that say what is captured.

``max-cudagraph-capture-size`` becomes a number, up to which vLLM captures its own dense list; ``cudagraph-capture-sizes`` becomes a list.
Sources: vllm/config/vllm.py, _set_cudagraph_sizes, and vllm/engine/arg_utils.py (0.25.1 and 0.32.0).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from servemark.config.cuda_graphs import LARGEST, SIZES, WORKLOAD, both, numbers
from servemark.planning.options import flag, max_num_seqs, whole
from servemark.records import Hardware, LoadPoint, Topology

MARGIN = 1.25
"""Of several engines, one may have so many times the equal share: vLLM's own balancing does not keep the shares equal, nor does a router
while a wave of requests ends and the next begins, and a step that is larger than the largest graph runs without one."""

UNEVEN = 2
"""Sizes of vLLM's own list that are captured above the equal share of one of several engines: 8 and 16 requests more, or 16 and 32 from 256
on. Balancing leaves one engine with a few requests more than the share (``engine_most`` in advice.yaml), and data parallel engines all pad
to the largest step among them. docs/explanation/start-up.md has what a coarser list costs."""

# Options that turn speculative decoding on (vllm/engine/arg_utils.py).
SPECULATION = ("speculative-config", "spec-method", "spec-model", "spec-tokens")
_WHOLE_CONFIG = "compilation-config"


def dense(largest: int) -> tuple[int, ...]:
    """Return the sizes that vLLM captures when it is told the largest alone: 1, 2, 4, steps of 8 to 256, then of 16.

    With speculative decoding a request takes several places of a graph, by rules that differ between the releases. Not looked at:
    ``performance-mode: interactivity``, with which every size to 32 is captured.
    """
    return tuple(size for size in (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)) if size <= largest)


def captured(requests: int) -> int:
    """Return the smallest size of vLLM's own list that holds so many requests."""
    return next(size for size in dense(requests + 16) if size >= requests)


def coarse(largest: int) -> tuple[int, ...]:
    """Return sizes for the steps between those that load points name: doubling to 32, then steps of 32, or of an eighth from 512 on.

    vLLM pads a step to the next size, so padding stays below 32 requests, or below an eighth of the step from 256 on.
    docs/explanation/start-up.md has what padding costs. To 512 these are 21 sizes where vLLM's own are 51; all of them are in its own list
    too.
    """
    sizes, size = [], 1
    while size <= largest:
        sizes.append(size)
        size += size if size < 32 else max(32, 2 ** (size.bit_length() - 1) // 8)
    return tuple(sizes)


def shares(topology: Topology, concurrency: int) -> tuple[int, int]:
    """Return requests that one engine has while ``concurrency`` are in flight over all of them: the equal share, and the most."""
    engines = topology.replicas * topology.data_parallel
    equal = math.ceil(concurrency / engines)
    return equal, min(concurrency, math.ceil(equal * MARGIN)) if engines > 1 else equal


def needed(topology: Topology, concurrency: int, at_a_time: int) -> int:
    """Return the largest graph that one engine needs: ``concurrency`` requests are in flight over all, and it runs ``at_a_time``."""
    return captured(min(shares(topology, concurrency)[1], at_a_time))


def named(topology: Topology, concurrency: int) -> tuple[int, ...]:
    """Return the sizes that one engine's steps need: the equal share, and of several engines `UNEVEN` sizes more, and the most."""
    equal, most = map(captured, shares(topology, concurrency))
    return (equal, *[size for size in dense(most) if equal < size < most][:UNEVEN], most)


def sparse(topology: Topology, points: Sequence[LoadPoint], at_a_time: int) -> list[int]:
    """Return few sizes that still fit the steps that are taken most, and nothing beyond the largest of those.

    In a closed loop nearly all decode steps have the number of requests that a point gives to an engine, or a few more or less; for these
    there are sizes (:func:`named`), rounded up as vLLM's own are: sequence parallelism drops sizes that are no multiple of the tensor
    parallel size (0.25.1). They end at ``at_a_time``: vLLM captures no full graph for more requests than it runs
    (vllm/v1/cudagraph_dispatcher.py). Other steps are padded to a size of :func:`coarse`. Data parallel engines pad to the largest step
    among them (vllm/v1/worker/dp_utils.py), which is one of these sizes.
    """
    needs = {min(size, at_a_time) for point in points for size in named(topology.asked(point.ask), point.concurrency or 1)}
    return sorted(needs | set(coarse(max(needs))))


def given(options: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    """Return the option that says what is captured, and the sizes that vLLM makes of it; no sizes where the choice is vLLM's."""
    if listed := numbers(options.get(SIZES)):
        return SIZES, tuple(sorted(set(listed)))
    largest = numbers(options.get(LARGEST))
    return LARGEST, dense(largest[0]) if len(largest) == 1 else ()


def resolve(
    options: Mapping[str, Any], topology: Topology, points: Sequence[LoadPoint], hardware: Hardware
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the options with numbers in the place of ``workload``, and what speaks against them: (options, one sentence a reason).

    Where nothing is captured (CPU, eager mode) the word's option is left out. ``config/cuda_graphs.py`` refuses two words.
    """
    words = [name for name in (LARGEST, SIZES) if options.get(name) == WORKLOAD]
    rest = {name: value for name, value in options.items() if name not in words}
    if hardware.accelerator != "cuda" or flag(rest, "enforce-eager"):
        return rest, ()
    conflict = _conflict(options)
    if conflict or not words:
        return rest, conflict
    (word,) = words
    instead = "a number" if word == LARGEST else "a list of numbers"
    if refused := [f"options.{word}: {WORKLOAD}, but {why}; give {instead} instead." for why in _unknown(rest, points)]:
        return rest, tuple(refused)
    at_a_time = max_num_seqs(rest, topology, hardware)
    if word == LARGEST:
        size: int | list[int] = max(needed(topology.asked(point.ask), point.concurrency or 1, at_a_time) for point in points)
    else:
        size = sparse(topology, points, at_a_time)
    # In its old place: a plan's options are shown in the order in which they were given.
    return {name: size if name == word else value for name, value in options.items()}, ()


def _conflict(options: Mapping[str, Any]) -> tuple[str, ...]:
    """vLLM ends where a largest size is given beside a list that ends elsewhere; what is beyond max-num-batched-tokens it drops before."""
    if options.get(LARGEST) is None or options.get(SIZES) is None:
        return ()
    limit = whole(options, "max-num-batched-tokens") or math.inf
    ends = max((size for size in numbers(options[SIZES]) if size <= limit), default=0)
    return () if [ends] == numbers(options[LARGEST]) else (f"options.{both(options)}.",)


def _unknown(options: Mapping[str, Any], points: Sequence[LoadPoint]) -> list[str]:
    """Return why the largest number of requests at once, or what it means for graphs, is not known."""
    why = []
    if unlimited := [point.name for point in points if point.concurrency is None]:
        others = f" and {len(unlimited) - 1} more" if len(unlimited) > 1 else ""
        why.append(f"{unlimited[0]}{others} has a request rate and no concurrency, so requests at once have no limit")
    if spoken := [name for name in options if name.split(".")[0] in SPECULATION]:
        why.append(f"with speculative decoding ({spoken[0]}) a request takes several places of a graph")
    if other := [name for name in options if name.split(".")[0] == _WHOLE_CONFIG]:
        why.append(f"{other[0]} may name sizes too, and vLLM ends when the two differ")
    return why
