"""A model of the hub in the cache: fetched once to an exact commit, never asked about again.

    CACHE/models/hf/ORG--NAME/COMMIT/           the model: appears whole, when every file is what the hub states
    CACHE/models/hf/ORG--NAME/COMMIT-shape/     its config and tokenizer alone, where it is served with random weights
    CACHE/models/hf/ORG--NAME/.COMMIT/          the same while it is fetched; files that are whole, and parts of others
    CACHE/models/hf/ORG--NAME/.refs/main.json   the commit that a branch or tag was when it was asked for first

The folder ORG--NAME can be copied to a machine that reaches no hub. To have a branch looked up anew, delete its file in .refs.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from filelock import FileLock, Timeout

from servemark.errors import WeightsRefused
from servemark.files import storage
from servemark.files.storage import CacheClosed
from servemark.progress import Progress
from servemark.records import Manifest, utc_now, write_atomically
from servemark.weights import hub_files, hub_refusals, manifest
from servemark.weights.hub_files import Listing, RemoteFile
from servemark.weights.hub_source import HubSource, is_commit
from servemark.weights.parallel import in_parallel

if TYPE_CHECKING:
    from servemark.weights.hub_client import Hub, Patience

AT_ONCE = 4
"""Files fetched at the same time."""
STATED = ".servemark-hub.json"
SHAPE = "-shape"
LOCK_POLL_S = 5.0


def stage(
    name: str,
    source: HubSource,
    cache: Path,
    progress: Progress,
    patience: Patience | None = None,
    *,
    dummy: bool = False,
) -> Manifest:
    """Fetch the model unless the cache has it, and hash every file.

    Args:
        dummy: only config and tokenizer are needed.
        patience: with a hub that does not answer; the usual one when left out.

    Raises:
        WeightsRefused: the hub refuses, cannot be reached or may not be asked, the disk is full, the repository is no model that can
            be served, or a file is not what the hub states.
    """
    home = (cache / "models" / "hf" / source.folder).absolute()
    if (found := _staged(source, home, dummy)) is None:
        if _offline():
            raise hub_refusals.offline(source, home)
        with _locked(home, source, progress):
            # Another run may have fetched it meanwhile.
            if (found := _staged(source, home, dummy)) is None:
                return _fetched(name, source, home, progress, patience, dummy)
    progress.say(f"hashing {found}")
    made = manifest.build(name, source.stated(found.name.removesuffix(SHAPE)), found, dummy=dummy)
    stated = [
        file for file in _read(found / STATED).get("files", ()) if not (dummy and manifest.is_weights(file["path"]))
    ]
    if [file.model_dump() for file in made.files] != stated:
        raise WeightsRefused(
            f"The files of {source.repository} in the cache are not those that were fetched from the hub.",
            look=str(found),
            do="Remove this folder and run again: it is fetched anew. A copy from elsewhere is whole with its hidden files (cp -r).",
            reason="weights_changed",
        )
    return made


def _staged(source: HubSource, home: Path, dummy: bool) -> Path | None:
    """The model's folder, when it is in the cache under its commit or under the commit that its branch was."""
    commit = source.commit or _remembered(source, home)
    folders = [home / commit, *([home / (commit + SHAPE)] if dummy else [])] if commit else []
    return next((folder for folder in folders if folder.is_dir()), None)


def _reference(source: HubSource, home: Path) -> Path:
    return home / ".refs" / f"{quote(source.revision, safe='')}.json"


def _remembered(source: HubSource, home: Path) -> str | None:
    commit = _read(_reference(source, home)).get("commit")
    return commit if isinstance(commit, str) and is_commit(commit) else None


def _read(path: Path) -> dict[str, Any]:
    """A JSON file of ours; empty when it is missing or broken."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _offline() -> bool:
    # As the client reads them.
    given = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return given.upper() in ("1", "ON", "YES", "TRUE")


def _fetched(
    name: str, source: HubSource, home: Path, progress: Progress, patience: Patience | None, dummy: bool
) -> Manifest:
    # Half a second to load, and a run whose models are staged never asks.
    from servemark.weights import hub_client

    hub = hub_client.Hub(source, patience or hub_client.Patience(), progress.say)
    progress.say(f"asking {hub_refusals.shown(hub.endpoint)} for {source.repository}@{source.revision}")
    listing = hub.listing(source.commit or _remembered(source, home) or source.revision)
    folder = listing.commit + (SHAPE if dummy else "")
    draft, finished = home / f".{folder}", home / folder
    shards = None if dummy else _shards(hub, listing, draft)
    chosen = hub_files.choose(source.repository, listing.files, shards, dummy=dummy)
    if large := [file for file in chosen if file.size > hub_client.LARGEST]:
        raise hub_refusals.too_large(source, listing.commit, large[0].path, large[0].size, hub_client.LARGEST)
    lacking = [file for file in chosen if _there(draft / file.path) != file.size]
    _check_space(source, draft, lacking)
    if source.commit is None:
        told = {"revision": source.revision, "commit": listing.commit, "resolved_at": utc_now()}
        write_atomically(_reference(source, home), json.dumps(told, indent=2) + "\n")
    _tidy(draft, {file.path for file in chosen})
    total = sum(file.size for file in chosen)
    progress.say(
        f"{source.revision} is commit {listing.commit}: {len(chosen)} files, {storage.size(total)}, "
        f"{storage.size(_remaining(draft, lacking))} to fetch"
    )

    def wait() -> None:
        got = total - _remaining(draft, lacking)
        text = f"fetched {storage.size(got)} of {storage.size(total)}"
        progress.waiting(text, every_s=10.0, about="fetching")

    in_parallel(lambda file: hub.fetch(listing.commit, file, draft / file.path), lacking, AT_ONCE, wait)
    progress.say(f"hashing {draft}")
    made = manifest.build(name, source.stated(listing.commit), draft, dummy=dummy)
    _compare(source, made, chosen, draft)
    stated = {
        "repository": source.repository,
        "commit": listing.commit,
        "files": [file.model_dump() for file in made.files],
    }
    for part in draft.rglob(".*.part"):
        part.unlink()
    write_atomically(draft / STATED, json.dumps(stated, indent=2) + "\n")
    draft.rename(finished)
    return made.model_copy(update={"path": str(finished)})


def _shards(hub: Hub, listing: Listing, draft: Path) -> list[str] | None:
    """The weights that the repository's index names; None without an index. The index itself is fetched for it."""
    index = next((file for file in listing.files if file.path == manifest.INDEX), None)
    if index is None:
        return None
    if _there(draft / index.path) != index.size:
        hub.fetch(listing.commit, index, draft / index.path)
    return manifest.shards(draft)


def _there(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _remaining(draft: Path, files: list[RemoteFile]) -> int:
    """Bytes of ``files`` that are not on the disk yet."""
    got = 0
    for file in files:
        path = draft / file.path
        for there in (path, path.with_name(f".{path.name}.part")):
            # It may be renamed between two looks.
            got += min(_size(there), file.size)
    return max(0, sum(file.size for file in files) - got)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _check_space(source: HubSource, draft: Path, lacking: list[RemoteFile]) -> None:
    draft.mkdir(parents=True, exist_ok=True)
    needed, free = _remaining(draft, lacking), shutil.disk_usage(draft).free
    if needed > free:
        raise hub_refusals.no_space(source, draft.parent, needed, free)


def _tidy(draft: Path, chosen: set[str]) -> None:
    """Remove what an earlier run has fetched and this one would not: another choice must not change the model."""
    for path in [path for path in draft.rglob("*") if path.is_file() and not path.name.startswith(".")]:
        if path.relative_to(draft).as_posix() not in chosen:
            path.unlink()


def _compare(source: HubSource, made: Manifest, chosen: tuple[RemoteFile, ...], draft: Path) -> None:
    """The whole draft against the hub's digests once more: files of an earlier run may have been lost by the disk."""
    found = {file.path: file for file in made.files}
    for file in chosen:
        if file.path not in found or (file.sha256 and found[file.path].sha256 != file.sha256):
            what = (
                f"its sha256 is {found[file.path].sha256}, the hub states {file.sha256}"
                if file.path in found
                else "it is gone"
            )
            (draft / file.path).unlink(missing_ok=True)
            raise hub_refusals.wrong_content(source, file.path, draft, what)


class _locked:
    """One fetches, and who waits for it says so. Where locks do not hold, as on some parallel file systems, digests still decide."""

    def __init__(self, home: Path, source: HubSource, progress: Progress):
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CacheClosed(home, error) from None
        self._home, self._lock, self._source, self._progress = home, FileLock(home / ".lock"), source, progress

    def __enter__(self) -> None:
        while True:
            try:
                self._lock.acquire(timeout=LOCK_POLL_S)
                return
            except Timeout:
                self._progress.waiting(f"another run fetches {self._source.repository}")
            except OSError as error:
                raise CacheClosed(self._home, error) from None

    def __exit__(self, *_: object) -> None:
        self._lock.release()
