"""stage_weights: find, make or download a model's files.

A model of the hub is used where a cache of huggingface_hub has it (``hub_cache.py``). Otherwise it is downloaded once at an exact commit,
checked, then used offline:

    CACHE/models/hf/ORG--NAME/COMMIT/           the model: appears when every file has the size and digest that the hub lists
    CACHE/models/hf/ORG--NAME/COMMIT-shape/     config and tokenizer only, for models served with random weights
    CACHE/models/hf/ORG--NAME/.COMMIT/          the draft during the download
    CACHE/models/hf/ORG--NAME/.refs/main.json   the commit that a branch or tag named at its first use

The folder ORG--NAME can be copied to a machine that cannot reach the hub. Delete a file in .refs to follow its branch again. After an
interruption the next run keeps complete files and downloads the others from their beginning.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from servemark.errors import WeightsRefused
from servemark.files import cache_lock, storage
from servemark.files.content import Hashes
from servemark.progress import Progress
from servemark.records import Manifest, utc_now, write_atomically
from servemark.weights import builtin, hub_cache, hub_refusals, hub_source, hub_token, manifest
from servemark.weights.files_read import INDEX, is_weights
from servemark.weights.hub_refusals import refused
from servemark.weights.hub_source import HubSource, is_commit

STATED = ".servemark-hub.json"
SHAPE = "-shape"


def stage(name: str, source: str, cache: Path, progress: Progress, *, hub: Path | None = None, dummy: bool = False) -> Manifest:
    """Make a builtin model, find or download a model of the hub, or use a local directory; hash every file.

    Args:
        hub: a further cache of huggingface_hub.
        dummy: the model is served with random weights and needs only config and tokenizer.

    Raises:
        WeightsRefused: the directory is missing or holds files that cannot or may not be served, or the download failed.
        CacheClosed: the cache takes no files.
    """
    if of_hub := hub_source.parse(source):
        return stage_hub(name, of_hub, cache, progress, hub=hub, dummy=dummy)
    if source.startswith("builtin:"):
        directory = _builtin(source.removeprefix("builtin:"), cache, progress)
    else:
        directory = Path(source).expanduser().absolute()
        if not directory.is_dir():
            raise WeightsRefused(
                f"models.{name}.source: there is no directory {directory}.",
                do="Set the folder that holds config.json and the safetensors files, or builtin:tiny-dense.",
                reason="model_missing",
            )
    progress.say(f"hashing {directory}")
    return manifest.build(name, source, directory, Hashes(cache, str(directory)), progress, dummy=dummy)


def _builtin(kind: str, cache: Path, progress: Progress) -> Path:
    # The model's bytes depend on the code of builtin.py alone, so a digest of that code names the folder.
    version = hashlib.sha256(Path(builtin.__file__).read_bytes()).hexdigest()[:8]
    directory = (cache / "models" / f"{kind}-{version}").absolute()
    if directory.exists():
        return directory
    with cache_lock.held(Path(f"{directory}.lock")):
        if not directory.exists():
            progress.say(f"making the model {kind}")
            with storage.naming(directory):
                draft = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{kind}-"))
                try:
                    builtin.make(kind, draft)
                    draft.chmod(0o755)
                    draft.rename(directory)
                finally:
                    shutil.rmtree(draft, ignore_errors=True)
    return directory


def stage_hub(name: str, source: HubSource, cache: Path, progress: Progress, *, hub: Path | None = None, dummy: bool = False) -> Manifest:
    """Find a model of the hub in a cache, else download it, and hash every file; arguments and errors as of :func:`stage`."""
    home = _home(source, cache)

    def look(commit: str | None, failed: str = "") -> Manifest | None:
        """Return the model from a cache of huggingface_hub; None takes the branch's commit from there. ``failed``: the hub's error."""
        if (snapshot := hub_cache.find(source, commit, hub, progress, dummy=dummy)) is None:
            return None
        if failed:
            stored = f"servemark uses commit {snapshot.name}, which the cache {snapshot.parents[2]} has stored for {source.revision}."
            progress.say(f"{failed} {stored} The hub may have a newer commit.")
        progress.say(f"hashing {snapshot}")
        return manifest.build(name, source.stated(snapshot.name), snapshot, Hashes(cache, str(snapshot)), progress, dummy=dummy)

    if (found := _staged(source, home, dummy)) is None:
        if (commit := _commit(source, home)) and (made := look(commit)):
            return made
        if hub_token.offline():
            if commit is None and (made := look(None)):
                return made
            raise hub_cache.in_none(refused(source, "hub_offline", look=home), home.parent, hub)
        # Some parallel file systems have no locks. The digests decide there.
        with cache_lock.held(home / ".lock", lambda: progress.waiting(f"another run downloads {source.repository}")):
            if (found := _staged(source, home, dummy)) is None:
                return _download(name, source, home, progress, look, hub, dummy)
    progress.say(f"hashing {found}")
    made = manifest.build(name, source.stated(found.name.removesuffix(SHAPE)), found, Hashes(cache, str(found)), progress, dummy=dummy)
    stated = [one for one in _read(found / STATED).get("files", ()) if not (dummy and is_weights(one["path"]))]
    if [file.model_dump() for file in made.files] != stated:
        raise WeightsRefused(
            f"The files of {source.repository} in the cache differ from the downloaded ones.",
            look=str(found),
            do="Remove this folder and rerun: servemark downloads the model again. If you copied it, copy its hidden files too (cp -r).",
            reason="weights_changed",
        )
    return made


def cached(source: HubSource, cache: Path, hub: Path | None, *, dummy: bool = False) -> Iterator[tuple[Path, str]]:
    """Yield each folder of this machine with a model of the hub, and why servemark does not use it ("" if it does); no requests."""
    home = _home(source, cache)
    if found := _staged(source, home, dummy):
        yield found, ""
    yield from hub_cache.examined(source, _commit(source, home), hub, dummy=dummy)


def places(source: HubSource, cache: Path, hub: Path | None) -> Iterator[Path]:
    """Yield the folders of this machine that may contain files of a hub's model, also unfinished downloads; no requests."""
    home, commit = _home(source, cache), _commit(source, _home(source, cache))
    if commit:
        yield from (home / f"{dot}{commit}{end}" for dot in ("", ".") for end in ("", SHAPE))
    yield from hub_cache.snapshots(source, hub_cache.folders(hub), commit)


def pinned(source: HubSource, cache: Path) -> str | None:
    """Return the commit that a run uses without a request to the hub: the configured one, or the one remembered for the branch."""
    return _commit(source, _home(source, cache))


def folders(source: HubSource, cache: Path, hub: Path | None) -> str:
    """Return the folders in which servemark looks for a model of the hub, for a message."""
    return hub_cache.listed(_home(source, cache).parent, hub)


def _home(source: HubSource, cache: Path) -> Path:
    return (cache / "models" / "hf" / source.folder).absolute()


def _staged(source: HubSource, home: Path, dummy: bool) -> Path | None:
    """Return the model's folder if the cache has it under its commit, or under the remembered commit of its branch."""
    if (commit := _commit(source, home)) is None:
        return None
    names = [commit, commit + SHAPE] if dummy else [commit]
    return next((home / name for name in names if (home / name).is_dir()), None)


def _commit(source: HubSource, home: Path) -> str | None:
    remembered = str(_read(_reference(source, home)).get("commit"))
    return source.commit or (remembered if is_commit(remembered) else None)


def _reference(source: HubSource, home: Path) -> Path:
    return home / ".refs" / f"{quote(source.revision, safe='')}.json"


def _remember(source: HubSource, home: Path, commit: str) -> None:
    if source.commit is None:
        resolved = {"revision": source.revision, "commit": commit, "resolved_at": utc_now()}
        write_atomically(_reference(source, home), json.dumps(resolved, indent=2) + "\n")


def _read(path: Path) -> dict[str, Any]:
    """Read a JSON object; return an empty one if the file is missing or broken."""
    with suppress(OSError, ValueError):
        if isinstance(data := json.loads(path.read_text()), dict):
            return data
    return {}


def _download(
    name: str, source: HubSource, home: Path, progress: Progress, look: Callable[..., Manifest | None], hub: Path | None, dummy: bool
) -> Manifest:
    from servemark.weights import hub_client

    progress.say(f"requesting the files of {source.repository}@{source.revision} from the hub")
    known = _commit(source, home)
    # A cached commit of the branch is used at once, so only a model without one is worth further tries.
    stored = known is None and any(not fault for _, fault in hub_cache.examined(source, None, hub, dummy=dummy))
    try:
        commit, listed = hub_client.listing(source, known or source.revision, progress, patient=not stored)
    except WeightsRefused as refusal:
        if refusal.reason not in hub_refusals.TEMPORARY:
            raise
        if known is None and (made := look(None, refusal.what)):
            return made
        raise hub_cache.in_none(refusal, home.parent, hub) from None
    if known is None and (made := look(commit)):
        _remember(source, home, commit)
        return made
    draft, finished = home / f".{commit}{SHAPE * dummy}", home / f"{commit}{SHAPE * dummy}"
    _tidy(draft, {path: file.size for path, file in listed.items()})
    shards = None
    if INDEX in listed and not dummy:
        hub_client.download(source, commit, draft, [INDEX], progress, lambda: None)
        shards = manifest.shards(draft)
    paths = hub_source.choose(source, listed.keys(), shards, dummy=dummy)
    sizes = {path: listed[path].size for path in paths}
    total, free = sum(sizes.values()), shutil.disk_usage(home).free
    needed = total - _tidy(draft, sizes)
    if large := [path for path in paths if sizes[path] > hub_client.LARGEST]:
        raise refused(HubSource(source.repository, commit), "hub_file_too_large", large[0])
    if needed > free:
        raise refused(source, "disk_full", f"{storage.size(needed)} needed, {storage.size(free)} free", home)
    _remember(source, home, commit)
    progress.say(f"commit {commit}: {len(paths)} files, {storage.size(total)}, {storage.size(needed)} to download")

    def wait() -> None:
        # huggingface_hub renames a file when it is complete, so a path may vanish here.
        with suppress(FileNotFoundError):
            got = sum(path.stat().st_size for path in draft.rglob("*") if path.is_file())
            text = f"downloaded {storage.size(min(got, total))} of {storage.size(total)}"
            progress.waiting(text, every_s=10.0, about="downloading")

    hub_client.download(source, commit, draft, paths, progress, wait)
    progress.say(f"hashing {draft}")
    made = manifest.build(name, source.stated(commit), draft, dummy=dummy)
    for file in made.files:
        if file.size != sizes[file.path] or not listed[file.path].matches(draft / file.path, file.sha256):
            # The next run downloads it again.
            (draft / file.path).unlink()
            raise refused(source, "hub_digest_differs", file.path, draft)
    shutil.rmtree(draft / ".cache")
    stated = {"repository": source.repository, "commit": commit, "files": [file.model_dump() for file in made.files]}
    write_atomically(draft / STATED, json.dumps(stated, indent=2) + "\n")
    draft.rename(finished)
    return made.model_copy(update={"path": str(finished)})


def _tidy(draft: Path, sizes: dict[str, int]) -> int:
    """Remove files of another choice or of a killed process; return the bytes of the chosen files that are present."""
    draft.mkdir(parents=True, exist_ok=True)
    present = 0
    for path in [path for path in draft.rglob("*") if path.is_file()]:
        relative = path.relative_to(draft)
        if path.stat().st_size == sizes.get(relative.as_posix()):
            present += path.stat().st_size
        elif relative.parts[0] != ".cache" or path.suffix == ".incomplete":
            path.unlink()
    return present
