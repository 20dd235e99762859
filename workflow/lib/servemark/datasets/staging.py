"""stage_dataset: write the checked rows of a dataset as one JSON Lines file, whose name is its sha256.

CACHE/datasets/SHA256.jsonl            {"prompt": TEXT, "output_tokens": N} in each line, in the order of the source; or "messages"
CACHE/datasets/SHA256.responses.jsonl  the same rows with "response", of which planning counts the tokens (``recorded.py``)
CACHE/datasets/SHA256.TOKENIZER.json   what one tokenizer counted (``token_counts.py``, ``recorded.py``)
"""

import json
from collections import Counter
from pathlib import Path

from servemark.datasets import hub, rows
from servemark.datasets.row import Fault
from servemark.datasets.store import drafts
from servemark.errors import DatasetRefused
from servemark.progress import Progress
from servemark.records import Dataset, DatasetSource, Lengths

FOLDER = "datasets"
RESPONSES = ".responses.jsonl"


def stage(source: DatasetSource, cache: Path, progress: Progress, *, responses: bool = False, hub_cache: Path | None = None) -> Dataset:
    """Stage a dataset.

    Args:
        hub_cache: a further cache of huggingface_hub.
        responses: also stage the recorded responses, if the source has some.

    Raises:
        DatasetRefused: a row cannot be used, or there is none.
        WeightsRefused: the hub refuses, or cannot be reached.
        StorageRefused: the cache takes no files.
    """
    skipped, conversations = 0, 0
    last_s: float | None = None
    prompts: Counter[int] = Counter()
    outputs: Counter[int] = Counter()
    folder, files = hub.fetch(source, cache, progress, caches=hub_cache) if source.kind == "hf" else (Path(), ())
    inputs = [folder / file.path for file in files] or [Path(source.path)]
    progress.say(f"reading {source.path}")
    with drafts((cache / FOLDER).absolute(), 2) as (staged, answered):
        for row in rows.read(source, inputs):
            if isinstance(row, Fault):
                raise refused(source, f"{row.place} {row.text}")
            if row is None:
                skipped += 1
                continue
            staged.add(line(row.content()))
            if responses and row.response is not None:
                answered.add(line(row.content() | {"response": row.response}))
            last_s = row.timestamp
            prompts[row.bytes] += 1
            outputs[row.output_tokens or 0] += 1
            conversations += bool(row.messages)
            if prompts.total() % 100_000 == 0:
                progress.waiting(f"{prompts.total():,} rows")
        if not prompts:
            raise refused(source, f"{source.path} has no rows")
        if last_s == 0:
            raise refused(source, f"{source.path} has the same `timestamp` in every row")
        # As readable as the user's own file, which may be private.
        mode = 0o600 | inputs[0].stat().st_mode & 0o044
        path, sha256 = staged.keep(".jsonl", mode)
        recorded = str(answered.keep(RESPONSES, mode)[0]) if answered.bytes else None
    return Dataset(
        name=source.name,
        source=source,
        files=files,
        path=str(path),
        sha256=sha256,
        bytes=staged.bytes,
        rows=prompts.total(),
        conversations=conversations,
        arrivals_per_s=last_s and (prompts.total() - 1) / last_s,
        responses=recorded,
        skipped=skipped,
        prompt_bytes=Lengths.of(sorted(prompts.items())),
        output_tokens=None if outputs[0] else Lengths.of(sorted((length, number) for length, number in outputs.items() if number)),
    )


def line(row: dict[str, object]) -> bytes:
    """Return a row as a line of a staged file."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def refused(source: DatasetSource, fault: str) -> DatasetRefused:
    """Return the error for a dataset that cannot be used."""
    return DatasetRefused(
        f"A dataset cannot be used: {fault}.",
        look=source.path,
        do="Set another split, subset or column and rerun." if source.kind == "hf" else "Correct the file and rerun.",
        reason="dataset_refused",
    )
