"""Fill digest and lengths of staged datasets, and the tokens of the chat template, into the load points, before planning needs them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from servemark.datasets import recorded
from servemark.datasets.token_counts import RowRefused, TokenCounts
from servemark.errors import PlanRefused
from servemark.records import Dataset, LoadPoint, Manifest, PlannedSearch, StagedPrompts
from servemark.weights import chat_template


def resolved(
    points: Iterable[LoadPoint], datasets: Mapping[str, Dataset], model: Manifest, options: Mapping[str, Any]
) -> tuple[LoadPoint, ...]:
    """Return the load points with the lengths of their prompts as a server of the model counts them.

    Args:
        datasets: by name.
        options: the server's, in kebab case.

    Raises:
        PlanRefused: `output_tokens: recorded` of a dataset whose rows do not all have output tokens, or messages that cannot be sent.
        OSError: a staged file cannot be read.
    """
    of_api: dict[str, TokenCounts] = {}
    found = []
    for load in points:
        if load.api not in of_api:
            of_api[load.api] = _counts(load, Path(model.path), options)
        counts = of_api[load.api]
        if isinstance(load.prompts, StagedPrompts):
            prompts = _known(load, load.prompts, datasets[load.prompts.name], counts)
            found.append(load.model_copy(update={"prompts": prompts}))
        else:
            found.append(load if load.api == "completions" else load.model_copy(update={"template_tokens": counts.added}))
    return tuple(found)


def longest_rows(
    points: Iterable[LoadPoint], datasets: Mapping[str, Dataset], model: Manifest, options: Mapping[str, Any]
) -> dict[str, str]:
    """Return the place of the longest prompt of each workload with a dataset, for a message; arguments as of :func:`resolved`.

    A user's file has one line for each staged row. For other sources, name the staged file. Without ``tokenizer.json`` there is no place.
    """
    found = {}
    for load in {load.workload: load for load in points if isinstance(load.prompts, StagedPrompts)}.values():
        assert isinstance(load.prompts, StagedPrompts), "the others are left out"
        dataset = datasets[load.prompts.name]
        _, line = _counts(load, Path(model.path), options).longest(dataset)
        if line:
            found[load.workload] = f"line {line} of {dataset.source.file or dataset.path}"
    return found


def of_trials(searches: Iterable[PlannedSearch], ends: Iterable[LoadPoint]) -> tuple[PlannedSearch, ...]:
    """Return the searches with the prompts of their trials. ``ends``: the load points at both ends of each, resolved."""
    known = {load.workload: load for load in ends}
    return tuple(
        one.model_copy(
            update={"template_tokens": load.template_tokens}
            | ({"prompts": load.prompts} if isinstance(load.prompts, StagedPrompts) else {})
        )
        for one in searches
        for load in (known[one.workload],)
    )


def _counts(load: LoadPoint, model: Path, options: Mapping[str, Any]) -> TokenCounts:
    if load.api == "completions":
        return TokenCounts(model)
    _require_template(load, model, options)
    return TokenCounts(model, None if chat_template.needs_none(model, options) else chat_template.read(model, options))


def _require_template(load: LoadPoint, model: Path, options: Mapping[str, Any]) -> None:
    if fault := chat_template.fault(model, options):
        raise PlanRefused(f"workloads.{load.workload}.api: chat: {fault}.", do=chat_template.REMEDY, reason="no_chat_template")


def _known(load: LoadPoint, prompts: StagedPrompts, dataset: Dataset, counts: TokenCounts) -> StagedPrompts:
    if dataset.conversations and load.api != "chat":
        raise PlanRefused(
            f"{dataset.conversations} row(s) of {dataset.source.path} are conversations (lists of messages), "
            f"but workloads.{load.workload} sends to /v1/completions.",
            look=dataset.source.path,
            do=f"Set `api: chat` in workloads.{load.workload}.",
            reason="dataset_refused",
        )
    if prompts.timed and load.requests > dataset.rows:
        raise PlanRefused(
            f"{load.name} has {load.requests} requests, and {dataset.source.path} has {dataset.rows} arrivals.",
            do=f"Set fewer `requests` or a shorter `duration` in workloads.{load.workload}.",
            reason="dataset_refused",
        )
    found: dict[str, Any] = {"sha256": dataset.sha256, "rows": dataset.rows}
    if prompts.recorded:
        found |= _recorded(load, dataset, counts)
    try:
        longest, _ = counts.longest(dataset)
    except RowRefused as error:
        raise PlanRefused(
            f"The model's chat template refuses a conversation of {dataset.source.path}: {error}",
            look=f"{dataset.path}, the staged file. It has no rows without a text, so lines of the source can have other numbers.",
            do="Correct this conversation in the source, or set another template with the option `chat-template` of the deployment.",
            reason="dataset_refused",
        ) from None
    return prompts.model_copy(update=found | {"input_tokens": longest})


def _recorded(load: LoadPoint, dataset: Dataset, counts: TokenCounts) -> dict[str, Any]:
    """Return what prompts have from the recorded lengths of a dataset."""
    if dataset.output_tokens:
        return {"output_tokens": dataset.output_tokens.most}
    if dataset.responses is None:
        raise PlanRefused(
            f"Not every row of {dataset.source.path} has `output_tokens`, which `output_tokens: recorded` needs.",
            look=dataset.source.path,
            do=f"Set a number in workloads.{load.workload}.output_tokens, or add `output_tokens` to each row of your file.",
            reason="dataset_refused",
        )
    counted = recorded.counted(dataset, counts)
    if counted is None:
        raise PlanRefused(
            f"servemark cannot count the recorded responses of {dataset.source.path}, because the model has no tokenizer.json.",
            look=str(counts.model),
            do=f"Set a number in workloads.{load.workload}.output_tokens, or use a JSON Lines file with `output_tokens` in each row.",
            reason="dataset_refused",
        )
    if not counted.rows:
        raise PlanRefused(
            f"No recorded response of {dataset.source.path} has a token.",
            do=f"Set a number of output tokens in workloads.{load.workload}.",
            reason="dataset_refused",
        )
    return {"sha256": counted.sha256, "rows": counted.rows, "output_tokens": counted.most, "counted_from": dataset.sha256}
