"""Datasets of the Hugging Face hub at a commit: found in a cache of huggingface_hub, else downloaded and checked once.

    CACHE/datasets/hf/ORG--NAME/COMMIT/   the files of the splits in use, each with the size and digest that the hub lists

The repository's README.md may list the files of a split (``configs`` with ``data_files``). Otherwise a part of a file's path is the name of
its split. This is the hub's own convention: ``data/train-00000-of-00002.parquet``, ``SUBSET/train/0000.parquet``.
"""

import json
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from servemark.errors import DatasetRefused
from servemark.files import cache_lock
from servemark.files.content import Hashes
from servemark.progress import Progress
from servemark.records import DatasetSource, write_atomically
from servemark.records.inputs import ModelFile
from servemark.weights import hub_cache, hub_source, hub_token
from servemark.weights.hub_refusals import refused as hub_refused
from servemark.weights.hub_source import HubSource, RemoteFile

DEFAULT_SPLIT = "train"
README = "README.md"
STATED = ".servemark-hub.json"
_SUFFIXES = (".parquet", ".jsonl")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?=[.-])")
_SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")


def parse(source: DatasetSource) -> HubSource | None:
    """Return repository and commit; None for another source, or if the commit is not whole."""
    found = hub_source.parse(f"{hub_source.PREFIX}{source.hf}")
    return HubSource(found.repository, found.revision, "dataset") if found and found.commit else None


def fetch(source: DatasetSource, cache: Path, progress: Progress, *, caches: Path | None = None) -> tuple[Path, tuple[ModelFile, ...]]:
    """Return the folder of a dataset's files, and the files with its rows.

    Args:
        caches: a further cache of huggingface_hub.

    Raises:
        WeightsRefused: the hub refuses or cannot be reached.
        DatasetRefused: no file has the split.
        CacheClosed: the cache takes no files.
    """
    repository = parse(source)
    assert repository and repository.commit, "the configuration was checked"
    snapshots = [cache / f"datasets--{repository.folder}" / "snapshots" / repository.commit for cache in hub_cache.folders(caches)]
    for snapshot in snapshots:
        if paths := _complete(source, snapshot):
            return _from_cache(snapshot, paths, progress)
    home = (cache / "datasets" / "hf" / repository.folder / repository.commit).absolute()
    with cache_lock.held(home.with_name(f".{home.name}.lock"), lambda: progress.waiting(f"another run downloads {repository.repository}")):
        if (listed := _stated(home)) is None and hub_token.offline():
            for snapshot in snapshots:
                if paths := _present(source, snapshot):
                    progress.say("HF_HUB_OFFLINE is set, so servemark cannot ask the hub whether the split has more files than the cache")
                    return _from_cache(snapshot, paths, progress)
        listed = listed or _listing(repository, home, progress)
        _get({README} & listed.keys(), listed, repository, home, progress)
        paths = choose(source, listed, _readme(home))
        for snapshot in snapshots:
            if all((snapshot / path).is_file() and (snapshot / path).stat().st_size == listed[path].size for path in paths):
                return _from_cache(snapshot, paths, progress)
        _get(paths, listed, repository, home, progress)
        files = _files(home, paths, cache)
        for file in files:
            if not listed[file.path].matches(home / file.path, file.sha256):
                (home / file.path).unlink()
                raise hub_refused(repository, "hub_digest_differs", file.path, home)
        return home, files


def _listing(repository: HubSource, home: Path, progress: Progress) -> dict[str, RemoteFile]:
    from servemark.weights import hub_client

    _require_online(repository, home)
    progress.say(f"requesting the files of {repository.repository}@{repository.revision} from the hub")
    _, listed = hub_client.listing(repository, repository.revision, progress)
    home.mkdir(parents=True, exist_ok=True)
    write_atomically(home / STATED, json.dumps([asdict(file) for file in listed.values()]) + "\n")
    return listed


def _stated(home: Path) -> dict[str, RemoteFile] | None:
    """Return the files that the hub listed at an earlier download."""
    try:
        return {file["path"]: RemoteFile(**file) for file in json.loads((home / STATED).read_text())}
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _require_online(repository: HubSource, home: Path) -> None:
    if hub_token.offline():
        raise hub_refused(repository, "hub_offline", look=home)


def _get(paths: Collection[str], listed: Mapping[str, RemoteFile], repository: HubSource, home: Path, progress: Progress) -> None:
    """Download the files that are missing."""
    from servemark.weights import hub_client

    missing = [path for path in paths if not ((home / path).is_file() and (home / path).stat().st_size == listed[path].size)]
    if not missing:
        return
    _require_online(repository, home)
    size = sum(listed[path].size for path in missing)
    progress.say(f"downloading {len(missing)} file(s), {size / 2**20:.1f} MiB, to {home}")
    text = f"downloading {repository.repository}"
    hub_client.download(repository, repository.revision, home, missing, progress, lambda: progress.waiting(text))
    shutil.rmtree(home / ".cache", ignore_errors=True)


def _from_cache(snapshot: Path, paths: list[str], progress: Progress) -> tuple[Path, tuple[ModelFile, ...]]:
    progress.say(f"found in a Hugging Face cache: {snapshot}")
    return snapshot, _files(snapshot, paths, None)


def _present(source: DatasetSource, folder: Path) -> list[str]:
    """Return the paths of a split that are in a folder."""
    listed = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    try:
        return choose(source, listed, _readme(folder))
    except DatasetRefused:
        return []


def _complete(source: DatasetSource, folder: Path) -> list[str]:
    """Return the paths of a split if a folder certainly has all of them: README.md is there, and the files' names count them."""
    paths = _present(source, folder)
    shards = [(path[: found.start()], int(found[2])) for path in paths if (found := _SHARD.search(path))]
    numbered = len(shards) == len(paths) and all(sum(name == other for other, _ in shards) == count for name, count in shards)
    return paths if numbered and (folder / README).is_file() else []


def _files(folder: Path, paths: list[str], cache: Path | None) -> tuple[ModelFile, ...]:
    names = [str(folder / path) for path in paths]
    digests = Hashes(cache, str(folder)).of(names)
    sizes = [(folder / path).stat().st_size for path in paths]
    return tuple(ModelFile(path=path, size=size, sha256=str(sha)) for path, size, sha in zip(paths, sizes, digests, strict=True))


def choose(source: DatasetSource, listed: Collection[str], readme: Mapping[str, Any]) -> list[str]:
    """Return the sorted paths of a split.

    Args:
        listed: paths of the repository.
        readme: the metadata in its README.md.

    Raises:
        DatasetRefused: no file has the split, or several subsets have it.
    """
    split, data = source.split or DEFAULT_SPLIT, sorted(path for path in listed if path.endswith(_SUFFIXES) and _safe(path))
    stated = [one for one in readme.get("configs") or () if isinstance(one, dict) and one.get("data_files")]
    if stated:
        named = {str(one.get("config_name")): one for one in stated}
        marked = [name for name, one in named.items() if one.get("default") is True]
        subset = source.subset or next((name for name in (*marked, "default") if name in named), None)
        subset = next(iter(named)) if subset is None and len(named) == 1 else subset
        if subset not in named:
            what = "it has several subsets" if subset is None else f"it has no subset {subset}"
            raise _refused(source, what, f"Set `subset` to one of {', '.join([*named][:20])}.")
        chosen = named[subset]
        patterns = list(_patterns(chosen["data_files"], split))
        # `*` matches within one folder, as in the hub's own library. Imported here: every stage imports this module, and few need it.
        from fsspec.utils import glob_translate

        try:
            found = [path for path in data if any(re.match(glob_translate(pattern), path) for pattern in patterns)]
        except ValueError as error:
            raise _refused(
                source, f"its {README} has a pattern that cannot be used: {error}", "Take a copy of its files instead."
            ) from None
    else:
        parts = {path: set(re.split(r"[/._-]", path)) for path in data}
        found = [path for path in data if split in parts[path] and (not source.subset or source.subset in path.split("/")[:-1])]
        if len(folders := sorted({path.rpartition("/")[0] for path in found})) > 1:
            names = sorted({part for folder in folders for part in folder.split("/")} - {"", split})
            what = f"{len(folders)} folders have the split {split}"
            raise _refused(source, what, f"Set `subset` to the name of one folder: {', '.join(names[:20])}.")
        if split == DEFAULT_SPLIT and not source.subset and not any(words & set(_SPLITS) for words in parts.values()):
            found = data  # as the hub does
    if not found:
        seen = ", ".join(data[:5]) or "none"
        subset, keys = (f" in the subset {source.subset}", "`split` or `subset`") if source.subset else ("", "`split`")
        what = f"no Parquet or JSON Lines file has the split {split}{subset}"
        raise _refused(source, what, f"Set another {keys}. The dataset has these data files: {seen}.")
    return found


def _patterns(data_files: Any, split: str) -> Iterator[str]:
    """Yield the patterns of a split in ``data_files``: text or a list (of the split train), or a list of `split` and `path`."""
    for one in data_files if isinstance(data_files, list) else [data_files]:
        of, paths = (one.get("split"), one.get("path")) if isinstance(one, dict) else (DEFAULT_SPLIT, one)
        if of == split:
            yield from map(str, paths if isinstance(paths, list) else [paths])


def _readme(folder: Path) -> Mapping[str, Any]:
    """Return the metadata at the beginning of README.md; {} without any."""
    try:
        text = (folder / README).read_text(encoding="utf-8")
        data = yaml.safe_load(text.split("---", 2)[1]) if text.startswith("---") else {}
    except (OSError, ValueError, IndexError, yaml.YAMLError):
        return {}
    return data if isinstance(data, dict) else {}


def _safe(path: str) -> bool:
    return "\\" not in path and not any(part[:1] in ("", ".") for part in path.split("/"))


def _refused(source: DatasetSource, what: str, do: str) -> DatasetRefused:
    return DatasetRefused(f"The dataset {source.hf} cannot be used: {what}.", do=do, reason="dataset_refused")
