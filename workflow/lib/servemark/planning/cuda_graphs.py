"""The CUDA graphs that a deployment's load points need: the numbers for the value ``workload`` of vLLM's two options.

``max-cudagraph-capture-size`` becomes a number, up to which vLLM captures its own sizes; ``cudagraph-capture-sizes`` becomes a list.
Sources: vllm/config/vllm.py, _set_cudagraph_sizes, and vllm/engine/arg_utils.py (0.25.1 and 0.32.0).
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from servemark.config.cuda_graphs import LARGEST, SIZES, WORKLOAD, conflict, numbers
from servemark.planning.options import flag, max_num_seqs, whole
from servemark.records import Hardware, LoadPoint, Topology

MARGIN = 1.25
"""The most requests of one of several engines over the equal share. vLLM's balancing does not keep the shares equal, and neither does a
router while requests end in waves. A step larger than the largest graph runs without one."""

UNEVEN = 2
"""Sizes of vLLM's list above the equal share that each of several engines gets: 8 and 16 requests more, or 16 and 32 from 256 on. One
engine often has a few requests more than the others (``engine_most`` in advice.yaml), and data parallel engines pad to the largest step."""

# Options that turn speculative decoding on (vllm/engine/arg_utils.py).
SPECULATION = ("speculative-config", "spec-method", "spec-model", "spec-tokens")
_WHOLE_CONFIG = "compilation-config"


def dense(largest: int) -> tuple[int, ...]:
    """Return the sizes that vLLM captures up to ``largest``: 1, 2, 4, then every 8 to 256, then every 16.

    Speculative decoding and ``performance-mode: interactivity`` change the list; this ignores them.
    """
    return tuple(size for size in (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)) if size <= largest)


def rounded_up(requests: int) -> int:
    """Return the smallest size of vLLM's list that holds ``requests``."""
    return next(size for size in dense(requests + 16) if size >= requests)


def coarse(largest: int) -> tuple[int, ...]:
    """Return sizes up to ``largest`` for rare steps, all of them in vLLM's list: doubling to 32, every 32 to 512, then by an eighth.

    vLLM pads a step to the next size: by less than 32 requests, or an eighth of the step from 256 on. Up to 512 these are 21 sizes, where
    vLLM has 51. docs/explanation/start-up.md has the cost of padding.
    """
    sizes, size = [], 1
    while size <= largest:
        sizes.append(size)
        size += size if size < 32 else max(32, 2 ** (size.bit_length() - 1) // 8)
    return tuple(sizes)


def shares(topology: Topology, concurrency: int) -> tuple[int, int]:
    """Return the requests of one engine while ``concurrency`` are in flight over all engines: (equal share, most)."""
    engines = topology.replicas * topology.data_parallel
    equal = math.ceil(concurrency / engines)
    return equal, min(concurrency, math.ceil(equal * MARGIN)) if engines > 1 else equal


def needed(topology: Topology, concurrency: int, at_a_time: int) -> int:
    """Return the largest graph that an engine needs at ``concurrency`` over all engines if it runs ``at_a_time`` requests."""
    return rounded_up(min(shares(topology, concurrency)[1], at_a_time))


def sparse(topology: Topology, points: Sequence[LoadPoint], at_a_time: int) -> list[int]:
    """Return few sizes that fit the most frequent steps, up to the largest of those.

    In a closed loop nearly all decode steps have an engine's share of a point's requests, or a few more. These get the sizes of vLLM's
    list: the equal share, with several engines `UNEVEN` more, and the most. Sequence parallelism drops sizes that are no multiple of the
    tensor parallel size (0.25.1). Other steps are padded to a size of :func:`coarse`. vLLM captures no full graph above ``at_a_time``
    (vllm/v1/cudagraph_dispatcher.py). Data parallel engines pad to the largest step among them (vllm/v1/worker/dp_utils.py).
    """
    needs = set()
    for point in points:
        equal, most = map(rounded_up, shares(topology.asked(point.ask), point.concurrency or 1))
        needs |= {equal, *[size for size in dense(most) if equal < size < most][:UNEVEN], most}
    needs = {min(size, at_a_time) for size in needs}
    return sorted(needs | set(coarse(max(needs))))


def given(options: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    """Return the option that chooses the graphs and the sizes that vLLM captures; () if vLLM chooses them."""
    if listed := numbers(options.get(SIZES)):
        return SIZES, tuple(sorted(set(listed)))
    largest = numbers(options.get(LARGEST))
    return LARGEST, dense(largest[0]) if len(largest) == 1 else ()


def resolve(
    options: Mapping[str, Any], topology: Topology, points: Sequence[LoadPoint], hardware: Hardware
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the options with numbers in place of ``workload``, and one sentence for each reason why that is impossible.

    If vLLM captures nothing (CPU, eager mode), the option is left out. ``config/cuda_graphs.py`` refuses the word in both options.
    """
    words = [name for name in (LARGEST, SIZES) if options.get(name) == WORKLOAD]
    rest = {name: value for name, value in options.items() if name not in words}
    if hardware.accelerator != "cuda" or flag(rest, "enforce-eager"):
        return rest, ()
    if not words:
        return rest, _contradiction(options)
    (word,) = words
    instead = "a number" if word == LARGEST else "a list of numbers"
    if refused := [f"options.{word}: {WORKLOAD}, but {why}; write {instead} instead." for why in _unknown(rest, points)]:
        return rest, tuple(refused)
    at_a_time = max_num_seqs(rest, topology, hardware)
    if word == LARGEST:
        size: int | list[int] = max(needed(topology.asked(point.ask), point.concurrency or 1, at_a_time) for point in points)
    else:
        size = sparse(topology, points, at_a_time)
    # The plan keeps the order of the options.
    return {name: size if name == word else value for name, value in options.items()}, ()


def _contradiction(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence if the list does not end at the largest size: vLLM exits. It first drops sizes above max-num-batched-tokens."""
    if options.get(LARGEST) is None or options.get(SIZES) is None:
        return ()
    limit = whole(options, "max-num-batched-tokens") or math.inf
    ends = max((size for size in numbers(options[SIZES]) if size <= limit), default=0)
    return () if [ends] == numbers(options[LARGEST]) else (f"options.{conflict(options)}.",)


def _unknown(options: Mapping[str, Any], points: Sequence[LoadPoint]) -> list[str]:
    """Return why the most requests in flight, or the graphs for them, are unknown."""
    why = []
    if unlimited := [point.name for point in points if point.concurrency is None]:
        others = f" and {len(unlimited) - 1} more" if len(unlimited) > 1 else ""
        why.append(f"{unlimited[0]}{others} has a request rate and no concurrency, so requests in flight have no limit")
    if speculative := [name for name in options if name.split(".")[0] in SPECULATION]:
        why.append(f"with speculative decoding ({speculative[0]}) a request takes several entries of a graph")
    if other := [name for name, value in options.items() if _chooses(name, value)]:
        why.append(f"{other[0]} chooses sizes too, and vLLM exits if it gets them twice")
    return why


def _chooses(name: str, value: object) -> bool:
    """Return whether an option is a compilation-config with sizes, or a dotted part with them.

    vLLM writes its two options into the compilation-config, whose other keys stay (engine/arg_utils.py, create_engine_config, 0.32.0).
    JSON that cannot be read counts as one with sizes.
    """
    outer, _, inner = name.partition(".")
    if outer != _WHOLE_CONFIG or value is None:
        return False
    keys: Iterable[str] = [inner.split(".")[0].rstrip("+")]
    if not inner:
        try:
            keys = json.loads(str(value))
        except ValueError:
            return True
    return any(str(key).replace("_", "-") in (LARGEST, SIZES) for key in keys)
