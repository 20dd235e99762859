"""stage_weights: find, make or download a model's files, whatever its source."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from servemark.errors import WeightsRefused
from servemark.files import cache_lock, storage
from servemark.progress import Progress
from servemark.records import Manifest
from servemark.weights import builtin, hub, hub_source, manifest


def stage(name: str, source: str, cache: Path, progress: Progress, *, dummy: bool = False) -> Manifest:
    """Make the builtin model in the cache, download the hub's one into it, or take the local directory; hash every file.

    Args:
        dummy: the model is served with random weights and needs only config and tokenizer.

    Raises:
        WeightsRefused: the directory is missing or holds something that cannot or may not be served, or the download failed.
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


def _builtin(kind: str, cache: Path, progress: Progress) -> Path:
    # Its bytes depend on our code alone, so a digest of that code names the folder: an edited model is another folder.
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
