"""Check the limits that apply to every key, and the number of load points."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from servemark.config.model import Config
from servemark.config.problems import Loc, Problem

MAX_POINTS = 20_000
"""Load points of one run: 1,000 deployments of 20 points each."""
LARGEST = 2**63 - 1
LONGEST = 100_000
"""Characters of a text. Linux starts no program with an argument or a variable of 128 KiB (MAX_ARG_STRLEN)."""


def faults(value: Any, loc: Loc = ()) -> Iterator[Problem]:
    """Find the texts, numbers and keys in ``value`` that no program could be given; ``loc`` is where ``value`` stands."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(key, str) and (fault := _fault(key)):
                yield Problem((*loc, key), f"the key {fault}", hide=True)
            else:
                yield from faults(inner, (*loc, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from faults(inner, (*loc, index))
    elif fault := _fault(value):
        yield Problem(loc, fault)


def _fault(value: Any) -> str | None:
    if isinstance(value, str):
        if len(value) > LONGEST:
            return f"has {len(value):,} characters; at most {LONGEST:,} are possible"
        # Line ends, tabs, and spaces and marks of any script may stand in a text.
        found = next((c for c in value if not c.isprintable() and c not in "\n\t" and (ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000)), None)
        return f"holds the control character U+{ord(found):04X}" if found else None
    if isinstance(value, int):
        return None if abs(value) <= LARGEST else "is a number of more than 64 bits"
    if isinstance(value, float):
        return None if math.isfinite(value) else "must be a finite number"
    # Dates are left to the keys' own types, which know whether quotes help.
    return "is neither text nor a number nor a list" if isinstance(value, bytes | set) else None


def too_many(config: Config) -> list[Problem]:
    """Refuse a run of more than ``MAX_POINTS`` load points. They are counted, not made: that could take all memory."""
    named = Counter(name for deployment in config.deployments.values() for name in deployment.workloads or ())
    unnamed = sum(deployment.workloads is None for deployment in config.deployments.values())
    counts = {
        name: (unnamed + named[name]) * workload.repetitions * len(workload.request_rate or workload.concurrency or ())
        for name, workload in config.workloads.items()
    }
    if sum(counts.values()) <= MAX_POINTS:
        return []
    name = max(counts, key=counts.__getitem__)
    workload = config.workloads[name]
    swept = "request_rate" if workload.request_rate else "concurrency"
    key = "repetitions" if workload.repetitions >= len(getattr(workload, swept)) else swept
    text = (
        f"makes {counts[name]:,} of this run's {sum(counts.values()):,} load points (deployments x {swept} x repetitions), and a run "
        f"has at most {MAX_POINTS:,}; divide the experiment into several runs"
    )
    return [Problem(("workloads", name, key), text)]
