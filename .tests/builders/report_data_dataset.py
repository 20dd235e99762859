"""Builder of a run with a dataset: recorded prompts of many lengths, some of them in the prefix cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from builders import report_data
from builders import report_data_parts as parts
from servemark import records
from servemark.report.distributions import bins
from servemark.report.gather import RunRecords

SHARE = 0.375
"""The share of the prompts' tokens that the prefix cache had, over both engines."""


def dataset() -> records.Dataset:
    """Return the manifest of a staged file of 107 rows."""
    source = records.DatasetSource(file="prompts.jsonl")
    lengths = records.Lengths.of([(40, 60), (300, 47)])
    return records.Dataset(
        name=source.name, source=source, path="/cache/datasets/0.jsonl", sha256=report_data.digest("rows"), bytes=20_480, rows=107,
        prompt_bytes=lengths, output_tokens=lengths,
    )  # fmt: skip


def counters() -> records.ServerCounters:
    """Return the counters of two replicas, with other hit shares each."""
    return records.ServerCounters(
        engines=tuple(
            records.EngineCounters(replica=f"r{number}", engine="0", finished=16, generated=512, prefix_queries=queries, prefix_hits=hits)
            for number, queries, hits in ((0, 3000, 1500), (1, 1000, 0))
        )
    )


def run() -> RunRecords:
    """Return the demo with recorded prompts: inputs over a factor of 100, outputs within a factor of 10."""
    data, staged = report_data.demo(), dataset()
    prompts = records.StagedPrompts(
        dataset="staged", name=staged.name, sha256=staged.sha256, rows=staged.rows, recorded=True, input_tokens=900, output_tokens=64
    )
    items = [
        item.model_copy(update={"load": item.load.model_copy(update={"prompts": prompts}), "counters": counters()})
        for item in data.measurements
    ]
    plans = {name: report_data.plan(name, tuple(item for item in items if item.deployment == name)) for name in data.plans}
    drawn = np.random.default_rng(7)
    found = []
    for item in parts.distributions(items):
        names = item.metrics["ttft"].counts
        inputs, outputs = np.clip(np.rint(drawn.lognormal(4.2, 0.9, 64)), 8, 900), np.rint(drawn.uniform(16, 64, 64))
        lengths = {
            "input_tokens": bins(dict.fromkeys(names, inputs), whole=True),
            "output_tokens": bins(dict.fromkeys(names, outputs), whole=True),
        }
        found.append(replace(item, metrics={**item.metrics, **lengths}))
    return replace(data, measurements=items, plans=plans, datasets={staged.name: staged}, distributions=found)
