"""What the requests of a workload hold: one class for each ``dataset``.

Configuration, plan, ledger key, command line of the client, and measurement share these classes. To add a kind, write a class here and a
class in ``config/workload.py``, and name both in the unions below them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from servemark.records.base import Count, Strict

PREFIX = "random-prefix-len"
"""Option of the client: so many tokens, drawn once, stand before each prompt's own ``input_tokens``.

Source: vllm/benchmarks/datasets, RandomDataset, ``total_input_len = prefix_len + int(input_len)`` (0.32.0).
"""


class Prompts(Strict):
    """Base of the kinds. Planning counts with ``input_tokens`` and ``output_tokens``: no prompt and no output is longer."""

    dataset: str
    input_tokens: Count
    output_tokens: Count

    @abstractmethod
    def client_arguments(self) -> list[str]:
        """Return the arguments of ``vllm bench serve`` that select these prompts and the lengths of their outputs."""

    def key_part(self) -> dict[str, Any]:
        """Return the prompts' part of the ledger key: everything that decides what is sent, and no name of a file or folder."""
        return self.model_dump()

    def expected_input_tokens(self, request: int) -> int | None:
        """Return the expected length of prompt number ``request`` (from 0) without a shared prefix, tokens; None: not checked."""
        return self.input_tokens

    def expected_output_tokens(self, request: int) -> int:
        """Return the expected length of an output, tokens. ``request``: see ``expected_input_tokens``."""
        return self.output_tokens

    def prefix_tokens(self, client_options: Mapping[str, Any]) -> int:
        """Return how many tokens, the same in all prompts, stand before each prompt's own."""
        return 0


class RandomPrompts(Prompts):
    """Random tokens of fixed length."""

    dataset: Literal["random"] = Field(description="where prompts come from: `random` (random tokens of fixed length)")
    input_tokens: Count = Field(description="prompt length, tokens; `client_options.random-prefix-len: N` adds N shared ones")
    output_tokens: Count = Field(description="output length, tokens; the end-of-text token is ignored")

    def client_arguments(self) -> list[str]:
        lengths = ["--random-input-len", str(self.input_tokens), "--random-output-len", str(self.output_tokens)]
        return ["--dataset-name", self.dataset, *lengths]

    def prefix_tokens(self, client_options: Mapping[str, Any]) -> int:
        return int(str(client_options.get(PREFIX) or 0))


AnyPrompts = Annotated[RandomPrompts, Field(discriminator="dataset")]
