"""Check that load points used the datasets whose manifests, and with ``share_prompts`` whose prompts, are in the archive."""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from servemark.records import Dataset, DatasetSource, Plan, StagedPrompts
from servemark.report.gather import RunRecords, locate
from servemark.verification.facts import Finding, Stated, differ, guarded

CONFIG = "config.json"


def check(found: RunRecords) -> Iterator[Finding]:
    """Yield every contradiction between plans, manifests of datasets, their prompts and the configuration.

    ``identity.check`` compares the digest in a plan with the one in the ledger key of each measurement.
    """
    for name, plan in found.plans.items():
        yield from guarded(f"deployments/{name}/plan.json", _points(found, plan))
    shared = set(_shared(found))
    for name, dataset in found.datasets.items():
        yield from guarded(_file(name), _manifest(name, dataset))
        yield from guarded(f"datasets/{name}", _prompts(found.folder, name, dataset, name in shared))


def _file(name: str) -> str:
    return f"datasets/{name}/dataset.json"


def _points(found: RunRecords, plan: Plan) -> Iterator[str]:
    file = f"deployments/{plan.deployment}/plan.json"
    for load in plan.loads:
        prompts, what = load.prompts, f"{plan.deployment} {load.name}"
        if not isinstance(prompts, StagedPrompts):
            continue
        dataset = found.datasets.get(prompts.name)
        if dataset is None:
            yield f"{what}: {file} plans dataset {prompts.name}, but the archive contains no {_file(prompts.name)}."
            continue
        stated: dict[str, Any] = {"sha256": prompts.dataset_sha256}
        own: dict[str, Any] = {"sha256": dataset.sha256}
        if not prompts.counted_from:  # a file with counted lengths lacks the rows whose recorded response is empty
            stated, own = stated | {"rows": prompts.rows}, own | {"rows": dataset.rows}
        yield from differ(f"{what}: dataset", Stated(file, stated), Stated(_file(prompts.name), own))


def _manifest(name: str, dataset: Dataset) -> Iterator[str]:
    file = _file(name)
    yield from differ(f"dataset {name}: name", Stated(file, dataset.name), Stated(f"the source in {file}", dataset.source.name))
    yield from differ(f"dataset {name}: name", Stated(file, dataset.name), Stated("its folder", name))
    for part, lengths in (("prompt_bytes", dataset.prompt_bytes), ("output_tokens", dataset.output_tokens)):
        if lengths is not None:
            counted = Stated(f"{part} in {file}", sum(lengths.counts))
            yield from differ(f"dataset {name}: rows", Stated(file, dataset.rows), counted)


def _prompts(folder: Path, name: str, dataset: Dataset, shared: bool) -> Iterator[str]:
    """Compare the prompts in the archive with the manifest. They are there only with ``share_prompts``."""
    file = f"datasets/{name}/prompts.jsonl"
    path = locate(folder, file)
    if path is None:
        if shared:
            yield f"dataset {name}: {CONFIG} states share_prompts, but the archive contains no {file}."
        return
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    own = {"sha256": digest, "bytes": path.stat().st_size}
    stated = {part: getattr(dataset, part) for part in own}
    yield from differ(f"dataset {name}", Stated(_file(name), stated), Stated(file, own))


def _shared(found: RunRecords) -> Iterator[str]:
    """Yield the names of the datasets whose prompts the configuration shares. It may come from an untrusted archive."""
    workloads = found.config.get("workloads")
    for asked in workloads.values() if isinstance(workloads, dict) else ():
        if isinstance(asked, dict) and asked.get("share_prompts") is True:
            with contextlib.suppress(ValidationError):
                yield DatasetSource.model_validate(asked.get("dataset")).name
