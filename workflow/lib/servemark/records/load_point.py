"""One load on a deployment, and what its requests contain: one class of prompts for each ``dataset``.

Configuration, plan, ledger key, command line of the client, and measurement share these classes; plan and measurement embed one record.
To add a kind of prompts, write a class here and a class in ``config/workload.py``, and name both in the unions below them.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from servemark.records.base import MOST, Count, Strict

PREFIX = "random-prefix-len"
"""Option of the client: number of shared tokens, drawn once, in front of each prompt's own ``input_tokens``.

Source: vllm/benchmarks/datasets, RandomDataset, ``total_input_len = prefix_len + int(input_len)`` (0.32.0).
"""


class Prompts(Strict):
    """Base of all kinds. Planning uses ``input_tokens`` and ``output_tokens`` as upper bounds of prompts and outputs."""

    dataset: str
    input_tokens: Count
    output_tokens: Count

    @property
    def backend(self) -> str:
        """The name under which the client finds servemark's request function."""
        return "servemark"

    @abstractmethod
    def client_arguments(self) -> list[str]:
        """Return the arguments of ``vllm bench serve`` that select these prompts and the lengths of their outputs."""

    def key_part(self) -> dict[str, Any]:
        """Return the prompts' part of the ledger key: everything that decides the requests, and no name of a file or folder."""
        return self.model_dump()

    def expected_input_tokens(self, request: int) -> int | None:
        """Return the expected length of prompt number ``request`` (from 0) without a shared prefix, tokens; None: not checked."""
        return self.input_tokens

    def expected_output_tokens(self, request: int) -> int | None:
        """Return the expected length of an output, tokens; None: the result file has it. ``request``: see ``expected_input_tokens``."""
        return self.output_tokens

    def prefix_tokens(self, client_options: Mapping[str, Any]) -> int:
        """Return the number of shared tokens in front of each prompt's own."""
        return 0


class RandomPrompts(Prompts):
    """Random tokens of fixed length."""

    dataset: Literal["random"] = Field(description="source of the prompts: `random` (random tokens of fixed length)")
    input_tokens: Count = Field(description="prompt length, tokens; `client_options.random-prefix-len: N` adds N shared ones")
    output_tokens: Count = Field(description="output length, tokens; the end-of-text token is ignored")

    def client_arguments(self) -> list[str]:
        lengths = ["--random-input-len", str(self.input_tokens), "--random-output-len", str(self.output_tokens)]
        return ["--dataset-name", self.dataset, *lengths]

    def prefix_tokens(self, client_options: Mapping[str, Any]) -> int:
        return int(str(client_options.get(PREFIX) or 0))


class StagedPrompts(Prompts):
    """Rows of a staged dataset. Each point sends rows in an order of its own, and its client processes share them.

    Planning fills in digest and lengths, which the configuration does not contain.
    """

    dataset: Literal["staged"]
    name: str = Field(description="the dataset's name in the run")
    sha256: str = Field(default="", description="of the staged file; empty before planning")
    counted_from: str = Field(
        default="",
        description="sha256 of the dataset, if a tokenizer counted the output lengths of the staged file; empty: it is `sha256`",
    )
    rows: int = Field(default=0, description="rows of the staged file; 0 before planning")
    recorded: bool = Field(default=False, description="each output has the length that its row states")
    timed: bool = Field(default=False, description="rows are sent in their order and rhythm, stretched to the request rate")
    input_tokens: Count = Field(default=1, description="tokens of the longest prompt; 1 before planning")
    output_tokens: Count = Field(description="output length, tokens; of recorded lengths: the longest")

    def unplanned(self) -> "StagedPrompts":
        """Return the prompts as the configuration has them, without digest and lengths of the dataset."""
        # No limit of the output then shortens the warm-ups.
        output_tokens = MOST if self.recorded else self.output_tokens
        return StagedPrompts(dataset=self.dataset, name=self.name, recorded=self.recorded, timed=self.timed, output_tokens=output_tokens)

    def client_arguments(self) -> list[str]:
        if self.timed:
            return ["--dataset-name", "timed_trace"]
        # Each process has a file of its own rows, in their order; -1 takes the output length of each row.
        return ["--dataset-name", "custom", "--disable-shuffle", "--skip-chat-template", "--custom-output-len", "-1"]

    @property
    def backend(self) -> str:
        # vLLM's client allows its dataset with times for this name only (benchmarks/serve.py, 0.32.0).
        return "openai" if self.timed else super().backend

    @property
    def dataset_sha256(self) -> str:
        """The sha256 in the dataset's record."""
        return self.counted_from or self.sha256

    def key_part(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "sha256": self.sha256,
            "output_tokens": "recorded" if self.recorded else self.output_tokens,
            # A default is left out, so ledger keys stay the same.
            **({"arrivals": "recorded"} if self.timed else {}),
        }

    def expected_input_tokens(self, request: int) -> int | None:
        return None

    def expected_output_tokens(self, request: int) -> int | None:
        return None if self.recorded else self.output_tokens


Api = Literal["completions", "chat"]


class PrefixPrompts(Prompts):
    """Random tokens in groups. The prompts of a group begin with the same tokens, and each has its own end.

    Source: vllm/benchmarks/datasets, PrefixRepetitionRandomDataset (0.32.0), which sends the groups' prompts in a random order.
    """

    dataset: Literal["prefix"]
    groups: Count = Field(description="number of groups; each has as many requests as another")
    group_tokens: Count = Field(description="tokens that the prompts of a group share")
    own_tokens: Count = Field(description="further tokens of each prompt")
    input_tokens: Count = Field(description="tokens of a prompt: both together")
    output_tokens: Count = Field(description="output length, tokens")

    def client_arguments(self) -> list[str]:
        sizes = {
            "prefix-len": self.group_tokens,
            "suffix-len": self.own_tokens,
            "num-prefixes": self.groups,
            "output-len": self.output_tokens,
        }
        options = [word for name, size in sizes.items() for word in (f"--prefix-repetition-{name}", str(size))]
        return ["--dataset-name", "prefix_repetition", *options]


AnyPrompts = Annotated[RandomPrompts | StagedPrompts | PrefixPrompts, Field(discriminator="dataset")]


class LoadPoint(Strict):
    """The requests to a deployment: prompts, concurrency or request rate, repetition and seed."""

    name: str = Field(description="WORKLOAD-cCONCURRENCY-rREPETITION, or WORKLOAD-qRATE-rREPETITION")
    workload: str = Field(description="its name in the configuration")
    prompts: AnyPrompts
    concurrency: int | None = Field(description="requests in flight; with a request rate, the upper limit or none")
    request_rate: float | None = Field(default=None, description="requests/s; none: the concurrency is the load")
    repetition: int = Field(description="from 1")
    restart: int = Field(default=0, description="number of the servers' start, from 0 (`restarts`)")
    seed: int = Field(description="of the prompts, 0 to 2**31 - 1")
    requests: int
    warmups: int
    warmup_tokens: int | None = Field(default=None, description="output tokens of a warm-up; none: vLLM's own warm-ups, full outputs")
    client_options: dict[str, Any] = {}
    clients: int = Field(default=1, description="processes of the client that share the load")
    ask: Literal["endpoint", "replica"] = Field(default="endpoint", description="the endpoint's address, or only its first replica")
    api: Api = Field(default="completions", description="route of the requests: /v1/completions, or /v1/chat/completions")
    template_tokens: int | None = Field(
        default=0, description="tokens that the chat template adds to a random prompt; 0 before planning; null: not known"
    )
    ramp_up_s: float | None = Field(default=None, description="seconds over which the slots start; none: all start together")
    sending_s: float | None = Field(default=None, description="seconds after which no request starts; `requests` is then the upper limit")

    @property
    def prefix_tokens(self) -> int:
        """Shared tokens in front of each prompt's own."""
        return self.prompts.prefix_tokens(self.client_options)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the longest prompt, the shared prefix and the chat template included."""
        return self.prefix_tokens + self.prompts.input_tokens + (self.template_tokens or 0)

    @property
    def request_tokens(self) -> int:
        """Tokens of the longest prompt and its output."""
        return self.prompt_tokens + self.prompts.output_tokens


_RENAMED = {"point": "name", "asked": "requests", "options": "client_options"}


def embed(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return a planned point or a measurement of version 1 in the form of version 2, with its load point under ``load``.

    Version 1 has random prompts only, and the load point's values among its other keys. In a measurement some of them are in
    ``key_parts`` only.
    """
    own = {_RENAMED.get(name, name): value for name, value in flat.items()}
    shape = flat["key_parts"]["point"]["workload"] if "key_parts" in flat else {}
    known = {_RENAMED.get(name, name): value for name, value in shape.items()} | own
    load = {name: known[name] for name in LoadPoint.model_fields if name in known}
    load["prompts"] = {"dataset": "random"} | {name: own.pop(name) for name in ("input_tokens", "output_tokens")}
    return {name: value for name, value in own.items() if name not in load} | {"load": load}
