"""stage_dataset: write the checked rows of a dataset as one JSON Lines file, whose name is its sha256.

CACHE/datasets/SHA256.jsonl           {"prompt": TEXT, "output_tokens": N} in each line, in the order of the source; or "messages"
CACHE/datasets/SHA256.TOKENIZER.json  the longest prompt in tokens of one tokenizer (``token_counts.py``)
"""

import hashlib
import json
import os
import tempfile
from collections import Counter
from pathlib import Path

from servemark.datasets import rows
from servemark.errors import DatasetRefused
from servemark.files import storage
from servemark.progress import Progress
from servemark.records import Dataset, DatasetSource, Lengths

FOLDER = "datasets"


def stage(source: DatasetSource, cache: Path, progress: Progress) -> Dataset:
    """Stage a dataset.

    Raises:
        DatasetRefused: a row cannot be used, or there is none.
        CacheClosed: the cache takes no files.
    """
    folder = (cache / FOLDER).absolute()
    skipped, conversations, size, digest = 0, 0, 0, hashlib.sha256()
    prompts: Counter[int] = Counter()
    outputs: Counter[int] = Counter()
    progress.say(f"reading {source.path}")
    with storage.naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=folder, prefix=".draft-")
        try:
            with os.fdopen(handle, "wb") as stream:
                for row in rows.read(source):
                    if isinstance(row, rows.Fault):
                        raise refused(source, f"{row.place} {row.text}")
                    if row is None:
                        skipped += 1
                        continue
                    line = _line(row)
                    stream.write(line)
                    digest.update(line)
                    size += len(line)
                    prompts[row.bytes] += 1
                    conversations += bool(row.messages)
                    outputs[row.output_tokens or 0] += 1
                    if prompts.total() % 100_000 == 0:
                        progress.waiting(f"{prompts.total():,} rows")
            if not prompts:
                raise refused(source, f"{source.path} has no rows")
            path = folder / f"{digest.hexdigest()}.jsonl"
            # As readable as the user's own file, which may be private.
            os.chmod(draft, 0o600 | os.stat(source.path).st_mode & 0o044)
            os.replace(draft, path)
        finally:
            Path(draft).unlink(missing_ok=True)
    return Dataset(
        name=source.name,
        source=source,
        path=str(path),
        sha256=digest.hexdigest(),
        bytes=size,
        rows=prompts.total(),
        conversations=conversations,
        skipped=skipped,
        prompt_bytes=Lengths.of(sorted(prompts.items())),
        output_tokens=None if outputs[0] else Lengths.of(sorted((length, number) for length, number in outputs.items() if number)),
    )


def _line(row: rows.Row) -> bytes:
    content: dict[str, object] = {"messages": row.messages} if row.messages else {"prompt": row.prompt}
    content |= {} if row.output_tokens is None else {"output_tokens": row.output_tokens}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def refused(source: DatasetSource, fault: str) -> DatasetRefused:
    """Return the error for a dataset that cannot be used."""
    return DatasetRefused(
        f"A dataset cannot be used: {fault}.", look=source.path, do="Correct the file and rerun.", reason="dataset_refused"
    )
