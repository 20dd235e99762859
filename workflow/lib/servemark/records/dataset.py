"""Datasets of prompts: where they come from, and their staged form."""

import hashlib
import itertools
import re
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from servemark.records.base import Record, Strict
from servemark.records.inputs import ModelFile

SOURCES = ("file", "sharegpt", "hf")
"""Keys of a dataset's source."""


class DatasetSource(Strict):
    """Where prompts come from: exactly one of the keys ``file``, ``sharegpt`` and ``hf``.

    ``split``, ``subset`` and ``column`` belong to ``hf``, ``arrivals`` to ``file``.
    """

    file: str | None = Field(default=None, description="JSON Lines file with a `prompt` in each line, or `messages` for `api: chat`")
    sharegpt: str | None = Field(
        default=None,
        description="JSON file in the format of ShareGPT; the first message is the prompt, the second one the recorded response",
    )

    hf: str | None = Field(
        default=None,
        description="`ORG/NAME@COMMIT`: a dataset of the Hugging Face hub at a commit (40 hexadecimal digits), as Parquet or JSON Lines",
    )
    split: str | None = Field(default=None, description="split of the dataset of the hub; default: `train`")
    subset: str | None = Field(
        default=None, description="subset (configuration) of the dataset of the hub; default: the only one, or its default"
    )
    column: str | None = Field(default=None, description="column with the prompts, text or a list of messages; default: `prompt`")

    arrivals: Literal["recorded"] | None = Field(
        default=None,
        description="`recorded`: each row of the `file` has a `timestamp` (seconds), and requests keep this order and rhythm, stretched to "
        "`request_rate`. Default: Poisson arrivals in a random order",
    )

    @property
    def kind(self) -> str:
        """The key that is set."""
        return next(name for name in SOURCES if getattr(self, name) is not None)

    @property
    def path(self) -> str:
        """The file with the rows, or the repository and its commit."""
        return self.file or self.sharegpt or self.hf or ""

    @property
    def name(self) -> str:
        """The dataset's name in a run: the end of the path as one word, and a digest that tells sources apart."""
        digest = hashlib.sha256(self.model_dump_json(exclude_none=True).encode()).hexdigest()[:8]
        end = self.path.rpartition("/")[2]
        end = end.partition("@")[0] if self.hf else end.rpartition(".")[0]
        word = re.sub(r"[^a-z0-9]+", "-", end.lower()).strip("-")[:40]
        return f"{word or self.kind}-{digest}"


def length_edges(most: int) -> list[int]:
    """Return the edges of bins of lengths from 0 to above ``most``; each power of two begins four bins."""
    return sorted({(4 + part) << power >> 2 for power in range(most.bit_length() + 1) for part in range(4)} | {0})


class Lengths(Strict):
    """Distribution of a length over the rows. ``counts[i]`` rows have a length in [edges[i], edges[i + 1])."""

    least: int
    mean: float
    most: int
    edges: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, by_length: Sequence[tuple[int, int]]) -> "Lengths":
        """Return the distribution of (length, number of rows), at least one. :func:`length_edges` gives the edges."""
        rows = sum(number for _, number in by_length)
        least, most = min(length for length, _ in by_length), max(length for length, _ in by_length)
        edges = length_edges(most)
        counts = [sum(number for length, number in by_length if low <= length < high) for low, high in itertools.pairwise(edges)]
        used = [index for index, count in enumerate(counts) if count]
        first, last = used[0], used[-1]
        mean = sum(length * number for length, number in by_length) / rows
        return cls(
            least=least, mean=round(mean, 3), most=most, edges=tuple(edges[first : last + 2]), counts=tuple(counts[first : last + 1])
        )


class Dataset(Record):
    """A staged dataset: one JSON Lines file of checked rows. stage_dataset writes it."""

    KIND = "dataset"
    name: str
    source: DatasetSource
    files: tuple[ModelFile, ...] = Field(default=(), description="files of the hub's repository that have the rows")
    path: str = Field(description="the staged file; its name is its sha256")
    sha256: str = Field(description="of the staged file; the dataset's identity in the ledger")
    bytes: int
    rows: int
    conversations: int = Field(default=0, description="rows with `messages`, which only `api: chat` can send")
    arrivals_per_s: float | None = Field(default=None, description="mean rate of the recorded arrivals, requests/s; null: no `arrivals`")
    responses: str | None = Field(
        default=None, description="staged file with the recorded responses; null: `output_tokens: recorded` does not need them"
    )
    skipped: int = Field(default=0, description="entries of a ShareGPT file without a person's message and a response")
    prompt_bytes: Lengths = Field(description="bytes of the prompts in UTF-8; a prompt has at most as many tokens, and a few special ones")
    output_tokens: Lengths | None = Field(default=None, description="recorded output tokens; null: not every row has them")
