"""The configuration of a reproduction: the archive's resolved one, without what belongs to the machine where it was measured."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servemark.environments import lockfiles
from servemark.records import DatasetSource
from servemark.reproduction.archived import Archived

CONFIG, CLUSTER = "config.yaml", "cluster.yaml"
_COMMIT = re.compile(r"(hf:[^@\s]+)@\S+ \(commit ([0-9a-f]{40})\)")
# `cache` and `hub_cache` are folders of the archive's machine. A shared ledger would copy finished measurements in place of new ones, and
# `publish` is a command of the archive's author.
_DROPPED = {
    "cache": "",
    "hub_cache": "The archive's `hub_cache` is left out: it is a folder of the archive's machine. Add your own if you have one.",
    "share_ledger": "",
    "publish": "The archive's `publish` command is left out: servemark runs no command from an archive. Add your own if you want one.",
}


@dataclass
class Made:
    """A configuration in plain types, its cluster file (None: this machine), and a note for each change that a reader must know."""

    config: dict[str, Any]
    cluster: dict[str, Any] | None
    notes: list[str] = field(default_factory=list)


def make(archived: Archived, folder: Path, run: str, cluster: str | None) -> Made:
    """Return the configuration that measures an archive's run again.

    Args:
        folder: where the files of the archive will be.
        run: name of the new run.
        cluster: the user's cluster file, in place of the archive's.
    """
    config = {name: value for name, value in archived.records.config.items() if name not in _DROPPED}
    site = config.pop("cluster", None)
    made = Made({**config, "run": run, "cluster": cluster}, None)
    made.notes += [text for name, text in _DROPPED.items() if text and archived.records.config.get(name)]
    if site and not cluster:
        made.cluster = dict(_filled(site))
        # Of the archive's machine, like the configuration's own `cache`.
        made.cluster.pop("cache", None)
        made.config["cluster"] = str(folder / CLUSTER)
        made.notes.append(
            f"Slurm: {CLUSTER} has the archive's settings (account {site.get('account') or 'not set'}, partition "
            f"{site.get('partition') or 'not set'}). Edit it, or pass your own with --cluster."
        )
    elif cluster and not site:
        made.notes.append("Slurm: the archive's run used no scheduler.")
    made.config["models"] = {name: {**entry, **_model(made, archived, name)} for name, entry in _entries(config, "models")}
    environments = _entries(config, "environments")
    made.config["environments"] = {name: _environment(made, archived, folder, name, entry) for name, entry in environments}
    made.config["workloads"] = {name: _workload(made, archived, folder, entry) for name, entry in _entries(config, "workloads")}
    made.notes += _tasks(archived)
    return made


def _workload(made: Made, archived: Archived, folder: Path, entry: dict[str, Any]) -> dict[str, Any]:
    """Return a workload that takes its prompts from the archive if they are there, with a note about its dataset."""
    given = entry.get("dataset")
    if not isinstance(given, dict) or "prefix" in given:
        return entry
    source = DatasetSource.model_validate(given)
    dataset = archived.records.datasets.get(source.name)
    if dataset is None:
        return entry
    shared = f"datasets/{source.name}/prompts.jsonl"
    fits = hashlib.sha256(archived.files.get(shared, b"")).hexdigest() == dataset.sha256
    # Of a row without `output_tokens`, `recorded` counts the tokens of the recorded response, which no archive has.
    counted = entry.get("output_tokens") == "recorded" and dataset.output_tokens is None
    rows = f"{dataset.rows:,} rows (digest {dataset.sha256[:12]})"
    if fits and not counted:
        _note(made, f"dataset {source.path}: the run takes the {rows} that the archive has, {folder / shared}.")
        return {**entry, "dataset": {"file": str(folder / shared), **({"arrivals": source.arrivals} if source.arrivals else {})}}
    if not source.hf:  # of the hub: fetched again, at its commit
        _note(
            made,
            f"dataset {source.path}: the same file must be there. It had {rows}. The archive has prompts only with `share_prompts`, and "
            "never recorded responses. Other rows give other ledger keys, and `compare` then finds no pair.",
        )
    return entry


def _note(made: Made, text: str) -> None:
    """Add a note once: several workloads may have the same dataset."""
    made.notes += [text] if text not in made.notes else []


def _tasks(archived: Archived) -> Iterator[str]:
    """Yield a note for each task of an accuracy check: the archive has its digest alone."""
    for name, plan in archived.records.plans.items():
        for check in plan.checks:
            what = f"deployment {name}: accuracy check {check.name}"
            if check.task and check.data:
                yield f"{what}: the folder of {check.task} must be there with the same files (digest {check.data[:12]})."
            else:
                yield f"{what}: lm-eval fetches the task's data from the hub, unless a cache has it."


def _entries(config: Mapping[str, Any], room: str) -> Iterator[tuple[str, dict[str, Any]]]:
    entries = config.get(room)
    yield from ((name, entry) for name, entry in (entries if isinstance(entries, dict) else {}).items() if isinstance(entry, dict))


def _filled(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values that are set. A cluster file has no null."""
    for name, value in values.items():
        if value is not None:
            yield name, dict(_filled(value)) if isinstance(value, dict) else value


def _model(made: Made, archived: Archived, name: str) -> dict[str, Any]:
    """Return the changed keys of a model: a branch or tag of the hub becomes the commit that was measured."""
    manifest = archived.records.manifests.get(name)
    if manifest is None:
        return {}
    if manifest.source.startswith("builtin:"):
        return {}
    digest = f"The archive has the digests of its files ({manifest.digest[:12]}), not the files."
    if found := _COMMIT.fullmatch(manifest.source):
        made.notes.append(f"model {name}: servemark fetches {found[1]} at commit {found[2]}, unless a cache has it. {digest}")
        return {"source": f"{found[1]}@{found[2]}"}
    where = "servemark fetches it, unless a cache has it." if manifest.source.startswith("hf:") else "The same files must be there."
    made.notes.append(f"model {name}: {manifest.source}. {where} {digest}")
    return {}


def _environment(made: Made, archived: Archived, folder: Path, name: str, entry: dict[str, Any]) -> dict[str, Any]:
    entry = dict(entry)
    record = archived.records.environments.get(name)
    if record is None:
        return entry
    wheels = entry.pop("wheels", None)
    if wheels and Path(str(wheels)).is_dir():
        entry["wheels"] = wheels
    elif wheels:
        made.notes.append(f"environment {name}: there is no folder {wheels} with wheels here. The packages come from pip's index.")
    check = archived.records.checks.get(name)
    versions = f" (vLLM {check.vllm}, Python {check.python_version})" if check else ""
    if record.origin == "lock":
        entry["lock"] = _lock(made, archived, folder, name, str(entry.get("lock")), versions)
    elif record.origin == "prefix":
        made.notes.append(
            f"environment {name}: it was installed by hand in {record.prefix}{versions}. The archive has its digest, not its packages."
        )
    elif record.container:
        made.notes.append(
            f"environment {name}: image {record.container.image} with digest {record.container.digest[:19]}{versions}. The archive does "
            "not contain the image. If its tag names another image now, the digests differ."
        )
    return entry


def _lock(made: Made, archived: Archived, folder: Path, name: str, asked: str, versions: str) -> str:
    """Return the lock file of an environment: this checkout's if it has the same content, else the archive's copy."""
    used = str(archived.records.environments[name].lock)
    stored = next((one for one in (f"envs/own-{name}.lock", f"envs/{used}.lock") if one in archived.files), None)
    if stored is None:
        made.notes.append(f"environment {name}: the archive does not contain its lock file {used}{versions}.")
        return asked
    here = lockfiles.table(lockfiles.ENVS).get(used)
    if here and here.requirements.is_file() and here.requirements.read_bytes() == archived.files[stored]:
        if asked == lockfiles.AUTO:
            made.notes.append(f"environment {name}: `lock: auto` took {used} there. It may take another lock file for this machine.")
        return asked
    made.notes.append(
        f"environment {name}: the lock file {used}{versions} is not the one of this checkout. servemark installs the packages of the "
        f"archive's copy, {folder / stored}. Read it if you do not trust the sender."
    )
    return str(folder / stored)
