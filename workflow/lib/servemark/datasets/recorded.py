"""Output lengths from recorded responses: the tokens that the tokenizer of a model makes of them."""

import itertools
import json
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from servemark.datasets.staging import RESPONSES, line
from servemark.datasets.store import drafts
from servemark.datasets.token_counts import TokenCounts
from servemark.records import Dataset, write_atomically

_AT_ONCE = 256


@dataclass(frozen=True)
class Recorded:
    """A staged file with an output length in each row: its sha256, its rows, and the longest output in tokens."""

    sha256: str
    rows: int
    most: int


def counted(dataset: Dataset, counts: TokenCounts) -> Recorded | None:
    """Return the dataset with the lengths of its responses, as a staged file next to it; None without ``tokenizer.json``.

    A row whose response has no token is left out.

    Raises:
        OSError: the responses cannot be read, or the folder cannot be written.
    """
    assert dataset.responses, "the caller asks for a dataset with responses"
    tokenizer, responses = counts.digest, Path(dataset.responses)
    if tokenizer is None:
        return None
    known = responses.with_name(responses.name.removesuffix(RESPONSES) + f".{tokenizer}.outputs.json")
    try:
        found = Recorded(**json.loads(known.read_text()))
        if responses.with_name(f"{found.sha256}.jsonl").is_file():
            return found
    except (OSError, ValueError, TypeError):
        pass
    rows, most = 0, 0
    with drafts(responses.parent) as (draft,):
        for row, tokens in _lengths(responses, counts):
            if tokens:
                draft.add(line(row | {"output_tokens": tokens}))
                rows, most = rows + 1, max(most, tokens)
        _, sha256 = draft.keep(".jsonl", stat.S_IMODE(responses.stat().st_mode))
    found = Recorded(sha256, rows, most)
    write_atomically(known, json.dumps(asdict(found)) + "\n")
    return found


def _lengths(path: Path, counts: TokenCounts) -> Iterator[tuple[dict[str, object], int]]:
    with open(path, "rb") as stream:
        while rows := [json.loads(text) for text in itertools.islice(stream, _AT_ONCE)]:
            responses = [row.pop("response") for row in rows]
            yield from zip(rows, counts.of(responses), strict=True)
