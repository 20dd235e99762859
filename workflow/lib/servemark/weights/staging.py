"""stage_weights: where a model's files are, whatever its source."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from filelock import FileLock

from servemark.errors import WeightsRefused
from servemark.files import storage
from servemark.files.storage import CacheClosed
from servemark.progress import Progress
from servemark.records import Manifest
from servemark.weights import builtin, hub, hub_source, manifest


def stage(name: str, source: str, cache: Path, progress: Progress, *, dummy: bool = False) -> Manifest:
    """Make the builtin model in the cache, fetch the hub's one into it, or look at the local directory, and hash every file.

    Args:
        dummy: the model is served with random weights; config and tokenizer are all that is needed of it.

    Raises:
        WeightsRefused: the directory is missing or holds something that cannot or may not be served, or the model cannot be fetched.
    """
    if of_hub := hub_source.parse(source):
        return hub.stage(name, of_hub, cache, progress, dummy=dummy)
    if source.startswith("builtin:"):
        directory = _builtin(source.removeprefix("builtin:"), cache, progress)
    else:
        directory = Path(source).expanduser().absolute()
        if not directory.is_dir():
            raise WeightsRefused(
                f"models.{name}.source: there is no directory {directory}.",
                do="Give the folder that holds config.json and the safetensors files, or builtin:tiny-dense.",
                reason="model_missing",
            )
    progress.say(f"hashing {directory}")
    return manifest.build(name, source, directory, dummy=dummy)


def _version() -> str:
    return hashlib.sha256(Path(builtin.__file__).read_bytes()).hexdigest()[:8]


def _builtin(kind: str, cache: Path, progress: Progress) -> Path:
    # Its bytes depend on our code alone, so the folder is named by a digest of that code: an edited model is another folder.
    directory = (cache / "models" / f"{kind}-{_version()}").absolute()
    # Before the lock, which whoever shares another user's cache may not write.
    if directory.exists():
        return directory
    lock = FileLock(f"{directory}.lock")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise CacheClosed(directory.parent, error) from None
    try:
        if not directory.exists():
            progress.say(f"making the model {kind}")
            with storage.naming(directory):
                _make(kind, directory)
    finally:
        lock.release()
    return directory


def _make(kind: str, directory: Path) -> None:
    draft = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{kind}-"))
    try:
        builtin.make(kind, draft)
        draft.chmod(0o755)
        draft.rename(directory)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
