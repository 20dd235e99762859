"""Format numbers, units and terms for a reader."""

import math
import unicodedata
from collections.abc import Mapping
from typing import Any, TypeGuard

from servemark.records import LoadPoint, Measurement, Topology
from servemark.records.topology import ROUTER_POLICIES
from snakemake_executor_plugin_slurm_guarded.secret_names import looks_secret

NOTHING = "\N{EN DASH}"
_GROUP = "\N{NARROW NO-BREAK SPACE}"
_NBSP = "\N{NO-BREAK SPACE}"

METRICS = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "itl": "Inter-token latency (between chunks)",
    "e2el": "End-to-end latency",
}
LENGTHS = {"input_tokens": "Input length", "output_tokens": "Output length"}
"""Lengths of requests in tokens, of which the report has histograms for datasets."""
MEMORY = {
    "weights_gib": "Weights per rank (GiB)",
    "kv_cache_gib": "KV cache per rank (GiB)",
    "kv_cache_tokens": "KV cache of one engine (tokens)",
    "max_concurrency": "Full-length requests that fit in the KV cache",
}


def number(value: float | None) -> str:
    """Return at least three significant digits without exponent, with grouped thousands; an en dash for None, NaN or infinity."""
    if not _known(value):
        return NOTHING
    if value == 0:
        return "0"
    # Round first, so that 99.96 becomes 100 and not 100.0.
    rounded = float(f"{value:.3g}")
    digits = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{value:,.{digits}f}".replace(",", _GROUP)


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def count(value: float | None) -> str:
    """Return a number of things without decimals, with grouped thousands."""
    return f"{value:,.0f}".replace(",", _GROUP) if _known(value) else NOTHING


def quantity(value: float | None, unit: str) -> str:
    """Return a number and its unit with a no-break space."""
    return f"{number(value)}{_NBSP}{unit}" if _known(value) else NOTHING


def seconds(value: float | None) -> str:
    """Return seconds with one decimal."""
    return f"{value:,.1f}".replace(",", _GROUP) if _known(value) else NOTHING


def signed(value: float | None) -> str:
    """Return a difference with its sign, such as ``+12.3``; 0 has none."""
    if not value or not _known(value):
        return number(value)
    return ("+" if value > 0 else "\N{MINUS SIGN}") + number(abs(value))


def clock(value: float | None) -> str:
    """Return seconds as hours, minutes and seconds, such as ``0:21:38``."""
    if not _known(value):
        return NOTHING
    whole = round(value)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def ratio(value: float | None) -> str:
    """Return a ratio with two decimals, such as ``0.83``."""
    return f"{value:.2f}" if _known(value) else NOTHING


def moment(text: str | None) -> str:
    """Return a record's time to the second, without its zone, which is UTC."""
    return text[:19].replace("T", " ") if text else NOTHING


def spread(low: float | None, high: float | None) -> str:
    """Return a range, or one number if both ends look the same."""
    first, last = number(low), number(high)
    return first if first == last else f"{first}\N{EN DASH}{last}"


def amount(value: int) -> str:
    """Return a large count in words, such as ``1.08 million``."""
    for size, name in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if value >= size:
            return f"{number(value / size)}{_NBSP}{name}"
    return number(value)


def size(count: float) -> str:
    """Return bytes in the largest binary unit in which the number is at least 1."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return quantity(count / 1024**power, unit)
    return quantity(count, "B")


def plural(count: int, noun: str) -> str:
    """Return the count with its noun, such as ``1 gap`` or ``2 gaps``."""
    return f"{count}{_NBSP}{noun}" + ("" if count == 1 else "s")


def load(concurrency: int | None, request_rate: float | None) -> str:
    """Return the load in words: concurrency, requests per second, or both."""
    if request_rate is None:
        return "all at once" if concurrency is None else f"concurrency{_NBSP}{concurrency}"
    cap = "" if concurrency is None else f", at most {concurrency} at once"
    return f"{request_rate:g}{_NBSP}requests/s{cap}"


def load_order(concurrency: int | None, request_rate: float | None) -> tuple[bool, int, bool, float]:
    """Return the sort key of a load: by concurrency, then loads without one by request rate."""
    return concurrency is None, concurrency or 0, request_rate is not None, request_rate or 0.0


def asked(ask: str) -> str:
    """Return the target of the client's requests in words."""
    return "one replica, past the router" if ask == "replica" else "the endpoint"


def point(at: LoadPoint) -> str:
    """Return workload, load and repetition of a load point."""
    return f"{at.workload}, {load(at.concurrency, at.request_rate)}, repetition{_NBSP}{at.repetition}"


def topology(shape: Topology) -> str:
    """Return one line with nodes, devices, parallel sizes above one, replicas and executor."""
    parts = [f"{plural(shape.nodes, 'node')} \N{MULTIPLICATION SIGN} {plural(shape.devices_per_node, 'device')}"]
    sizes = (("TP", shape.tensor_parallel), ("PP", shape.pipeline_parallel), ("DP", shape.data_parallel))
    parts += [f"{name}{_NBSP}{value}" for name, value in sizes if value > 1]
    if shape.replicas > 1:
        parts.append(plural(shape.replicas, "replica"))
    if shape.balancing == "router":
        parts.append("engines balanced by the router")
    if label := ROUTER_POLICIES[shape.routing].label:
        parts.append(label)
    if shape.client == "own":
        parts.append("client on a node of its own")
    return ", ".join([*parts, shape.traits.label])


def reasons(measurement: Measurement) -> list[str]:
    """Return the failure of a measurement and then the reasons of its verdict, each as code and detail."""
    failure = measurement.failure
    found = [f"{failure.reason}: {failure.detail}"] if failure else []
    return found + [f"{reason.code}: {reason.detail}" for reason in measurement.reasons]


def printable(text: str) -> str:
    """Return the text with ``?`` for characters that control a terminal or break a line."""
    return "".join("?" if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") else char for char in text)


def plain(value: Any, name: str = "") -> Any:
    """Copy a nested configuration as plain YAML types. Hide the text under keys that are named like a secret."""
    if isinstance(value, Mapping):
        return {str(key): plain(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, name) for item in value]
    if isinstance(value, str) and looks_secret(name):
        return "(hidden)"
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
