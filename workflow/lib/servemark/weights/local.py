"""A copy of a model on a node's own disk, compared with the manifest while it is written.

It has the files that servers may read: those of the digest that names it.

    FOLDER/DIGEST/      the model: appears when every file has the size and sha256 of the manifest
    FOLDER/.DIGEST/     the draft during the copy

FOLDER belongs to this user alone, so later uses check only the sizes and headers of a finished copy.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from filelock import FileLock

from servemark.errors import WeightsRefused
from servemark.files import storage
from servemark.records import Manifest, ModelFile
from servemark.weights.files_read import counted
from servemark.weights.manifest import verify

AT_ONCE = 4
"""Files copied at the same time. One stream of a parallel file system is slower than the node's disk."""
_BLOCK = 16 * 2**20
# With the file system's own blocks.
_SPARE = 1.01


def place(folder: Path, digest: str) -> Path:
    """Return the folder below ``folder`` for the model with this digest."""
    return folder / digest[:16]


def copy(model: Manifest, folder: Path, private: Callable[[Path], Path]) -> float:
    """Copy the model below ``folder`` unless a copy exists; return the duration in seconds, 0 if one exists.

    Args:
        private: make the folder private, or refuse it.

    Raises:
        WeightsRefused: no space is left, or a file differs from the manifest.
    """
    begin = time.monotonic()
    read = counted([file.path for file in model.files])
    files = tuple(file for file in model.files if file.path in read)
    model = model.model_copy(update={"files": files, "bytes": sum(file.size for file in files)})
    target = place(private(folder), model.digest)
    draft = target.with_name(f".{target.name}")
    with FileLock(f"{draft}.lock"):
        if target.is_dir():
            with suppress(WeightsRefused):
                verify(model.model_copy(update={"path": str(target)}), quick=True)
                return 0.0
            # A cleanup of the disk removed files, or a removal was interrupted.
            shutil.rmtree(target)
        shutil.rmtree(draft, ignore_errors=True)
        needed, free = int(model.bytes * _SPARE), shutil.disk_usage(folder).free
        if needed > free:
            raise WeightsRefused(
                f"A copy of the model {model.name} needs {needed / 2**30:.2f} GiB in {folder}; {free / 2**30:.2f} GiB are free.",
                look=str(folder),
                do="Remove copies of other models there, set `local_models` in the cluster file to another folder, or remove that key: "
                "servers then read the model from its source.",
                reason="no_space",
            )
        try:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(partial(_copy, model, draft), model.files))
            draft.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return time.monotonic() - begin


def _copy(model: Manifest, draft: Path, file: ModelFile) -> None:
    source, target = Path(model.path, file.path), draft / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    sha256, size = hashlib.sha256(), 0
    try:
        with source.open("rb") as reading, target.open("wb") as writing:
            while block := reading.read(_BLOCK):
                sha256.update(block)
                size += len(block)
                writing.write(block)
            writing.flush()
            os.fsync(writing.fileno())
    except OSError as error:
        why = storage.refusal(error, target)
        what = f"{source} cannot be copied to {target}: {why.what if why else error.strerror}"
        raise WeightsRefused(
            what,
            look=str(source),
            do=why.do if why else f"Check the disk of {target.parent}, then rerun the same command.",
            reason=why.reason if why else "copy_failed",
        ) from None
    if (size, sha256.hexdigest()) != (file.size, file.sha256):
        raise WeightsRefused(
            f"{file.path} of model {model.name} has {size} bytes with sha256 {sha256.hexdigest()[:12]}...; its manifest has {file.size} "
            f"bytes with {file.sha256[:12]}....",
            look=str(source),
            do="Restore the file. To accept it as another model, delete its manifest.json in results/RUN/models and rerun.",
            reason="weights_changed",
        )
