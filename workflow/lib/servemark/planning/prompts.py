"""Fill digest and lengths of staged datasets into the load points, before planning needs them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from servemark.datasets import token_counts
from servemark.errors import PlanRefused
from servemark.records import Dataset, LoadPoint, Manifest, StagedPrompts


def resolved(points: Iterable[LoadPoint], datasets: Mapping[str, Dataset], model: Manifest) -> tuple[LoadPoint, ...]:
    """Return the load points with the lengths of their prompts as the tokenizer of a model counts them.

    Args:
        datasets: by name.

    Raises:
        PlanRefused: `output_tokens: recorded` of a dataset whose rows do not all have output tokens.
        OSError: a staged file cannot be read.
    """
    return tuple(
        load.model_copy(update={"prompts": _known(load.prompts, datasets[load.prompts.name], model)})
        if isinstance(load.prompts, StagedPrompts)
        else load
        for load in points
    )


def _known(prompts: StagedPrompts, dataset: Dataset, model: Manifest) -> StagedPrompts:
    output_tokens = prompts.output_tokens
    if prompts.recorded:
        if dataset.output_tokens is None:
            raise PlanRefused(
                f"Not every row of {dataset.source.path} has `output_tokens`, which `output_tokens: recorded` needs.",
                do="Add them, or set a number of output tokens in the workload.",
                reason="dataset_refused",
            )
        output_tokens = dataset.output_tokens.most
    lengths = {"input_tokens": token_counts.longest(dataset, Path(model.path)), "output_tokens": output_tokens}
    return prompts.model_copy(update={"sha256": dataset.sha256, "rows": dataset.rows, **lengths})
