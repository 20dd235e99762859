"""Builders of a run with very many measurements: thousands of load points, each with its own results."""

from __future__ import annotations

import random
from dataclasses import replace

from builders import report_data
from builders import report_data_parts as parts
from servemark import records
from servemark.report.gather import RunRecords


def measurements(deployments: int, loads: int, repetitions: int, unusual: int = 500) -> list[records.Measurement]:
    """Return a sweep; of every ``unusual`` measurements one is SUSPECT and another one INVALID."""
    draw = random.Random(20_000)
    found = []
    for number in range(deployments):
        for concurrency in range(1, loads + 1):
            for repetition in range(1, repetitions + 1):
                output = draw.uniform(80.0, 90.0) * concurrency**0.7 * (1 + number / deployments)
                place = (f"d{number:04d}", concurrency, repetition)
                figures = {"output": output, "ttft": draw.uniform(9.0, 40.0), "tpot": draw.uniform(8.0, 20.0)}
                kind = len(found) % unusual
                if kind == 1:
                    item = report_data.invalid(place[0], concurrency=concurrency, repetition=repetition)
                else:
                    item = report_data.measurement(*place, **figures)
                if kind == 2:
                    reason = records.Reason(code="slow_start", severity="SUSPECT", detail=f"Too slow at first: {output}")
                    item = item.model_copy(update={"verdict": "SUSPECT", "reasons": (reason,)})
                found.append(item)
    return found


def large(deployments: int, loads: int, repetitions: int) -> RunRecords:
    """Return a run of one workload with as many measurements as the product of the three numbers."""
    base, items = report_data.demo(), measurements(deployments, loads, repetitions)
    by_name: dict[str, list[records.Measurement]] = {}
    for item in items:
        by_name.setdefault(item.deployment, []).append(item)
    one = {"model": "tiny", "environment": "cpu"}
    return replace(
        base,
        config=base.config | {"deployments": dict.fromkeys(by_name, one)},
        plans={name: report_data.plan(name, tuple(some)) for name, some in by_name.items()},
        startups={name: report_data.startup(name) for name in by_name},
        stopped={name: records.Stopped(deployment=name, seconds=2.4) for name in by_name},
        measurements=items,
        attempts=[parts.attempt(name) for name in by_name],
        distributions=parts.distributions(items[-loads * repetitions * max(1, 150 // loads) :]),
        timelines=parts.timelines(items[-2000:]),
    )
