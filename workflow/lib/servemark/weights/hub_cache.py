"""Models in the caches of huggingface_hub on this machine, where ``hf download``, transformers and vLLM put them. Nothing is fetched."""

from collections.abc import Iterator
from pathlib import Path

from servemark.errors import WeightsRefused
from servemark.progress import Progress
from servemark.weights import hub_source, manifest
from servemark.weights.files_read import INDEX, counted
from servemark.weights.hub_source import HubSource


def places(configured: Path | None) -> list[Path]:
    """Return the folders of caches, also missing ones: the configured one, then ``HF_HUB_CACHE``, ``HF_HOME`` and the home folder."""
    from huggingface_hub import constants

    usual = (constants.HF_HUB_CACHE, f"{constants.HF_HOME}/hub", "~/.cache/huggingface/hub")
    named = [*([configured] if configured else []), *map(Path, usual)]
    return list(dict.fromkeys(one.expanduser().absolute() for one in named))


def folders(configured: Path | None) -> list[Path]:
    """Return the existing caches, in the order of :func:`places`."""
    return [path for path in places(configured) if path.is_dir()]


def listed(own: Path, configured: Path | None) -> str:
    """Return the paths of servemark's folder of hub models and of the caches, for a message. It marks missing folders."""
    every = dict.fromkeys((own.absolute(), *places(configured)))
    return ", ".join(f"{path}{'' if path.is_dir() else ' (no such folder)'}" for path in every)


def in_none(refusal: WeightsRefused, own: Path, configured: Path | None) -> WeightsRefused:
    """Add the searched folders to the error if the hub did not respond or is switched off. Return other errors unchanged."""
    if refusal.reason not in ("hub_unreachable", "hub_offline"):
        return refusal
    what = f"{refusal.what} None of these folders has the whole model: {listed(own, configured)}."
    do = f"Check the spelling of ORG/NAME and of the revision. {refusal.do or ''}"
    return WeightsRefused(what, look=refusal.look, do=do, reason=refusal.reason)


def find(source: HubSource, commit: str | None, configured: Path | None, progress: Progress, *, dummy: bool = False) -> Path | None:
    """Return the folder of a complete snapshot; say where it is, or why a snapshot is not used.

    Args:
        commit: None takes the commit that the source's branch or tag had when it was last fetched into the cache.
        configured: as of :func:`folders`.
        dummy: config and tokenizer are enough.
    """
    for snapshot, fault in examined(source, commit, configured, dummy=dummy):
        if not fault:
            progress.say(f"found in a Hugging Face cache: {snapshot}")
            return snapshot
        progress.say(f"not used: {snapshot}: {fault}")
    return None


def examined(source: HubSource, commit: str | None, configured: Path | None, *, dummy: bool = False) -> Iterator[tuple[Path, str]]:
    """Yield the folder of each snapshot, and why servemark does not use it ("" for a complete one); arguments as of :func:`find`."""
    for snapshot in snapshots(source, folders(configured), commit):
        try:
            _require_complete(source, snapshot, dummy)
        except (WeightsRefused, OSError) as error:
            what = error.what if isinstance(error, WeightsRefused) else f"it cannot be read ({error.strerror})."
            yield snapshot, f"{what} To complete it, run `hf download {source.repository} --revision {snapshot.name}`."
        else:
            yield snapshot, ""


def snapshots(source: HubSource, caches: list[Path], commit: str | None = None) -> Iterator[Path]:
    """Yield the folder of each snapshot with a config.json, complete or not; arguments as of :func:`find`."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    for cache in caches:
        try:
            # One file alone: a whole snapshot has more than a server needs.
            found = snapshot_download(
                source.repository, revision=commit or source.revision, cache_dir=cache, local_files_only=True, allow_patterns="config.json"
            )
        except (LocalEntryNotFoundError, OSError, ValueError):
            continue
        yield Path(found)


def _require_complete(source: HubSource, snapshot: Path, dummy: bool) -> None:
    """Raise WeightsRefused for a snapshot without a file that a server needs, as far as files or the cache's list of them tell."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    present = manifest.examine(snapshot, dummy=dummy).sizes
    try:
        tree = get_cached_repo_tree(source.repository, revision=snapshot.name, cache_dir=snapshot.parents[2])
    except CachedRepoTreeNotFoundError:
        return
    shards = manifest.shards(snapshot) if INDEX in present else None
    needed = counted(hub_source.choose(source, [file.path for file in tree], shards, dummy=dummy))
    if missing := sorted(needed - present.keys()):
        raise WeightsRefused(f"{len(missing)} file(s) are missing: {', '.join(missing[:3])}.", reason="weights_missing")
