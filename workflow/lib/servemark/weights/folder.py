"""The files of a model's folder: listed, hashed, and their links followed."""

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

from servemark.errors import WeightsRefused
from servemark.files import storage
from servemark.files.content import Hashes
from servemark.progress import Progress
from servemark.records import ModelFile
from servemark.weights.files_read import is_weights
from servemark.weights.hub_source import RemoteFile

MAX_FILES = 10_000
"""Limit of files and folders of a model. The largest checkpoints have some 200 shards."""
_LARGE = 2**30
"""Bytes that take a second or more."""
_BLOB = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
_SMALL = 32 * 2**20
"""Bytes of a file that is read again for git's sha1. The hub stores larger files by their sha256."""


def listing(directory: Path, dummy: bool) -> dict[str, int]:
    """Return size by relative path with forward slashes, sorted, without hidden names and, with ``dummy``, without weights."""
    roots, count, sizes = _roots(directory), 0, {}
    try:
        for folder, folders, names in os.walk(directory, onerror=_fail):
            folders[:] = [name for name in folders if not name.startswith(".")]
            entries = [Path(folder, name) for name in (*folders, *names) if not name.startswith(".")]
            count += len(entries)
            if count > MAX_FILES:
                what = f"It holds more than {MAX_FILES:,} files and folders."
                raise refused(directory, "too_many_files", what, "Set the folder of the checkpoint alone.")
            for entry in entries:
                if entry.is_symlink():
                    _check_link(entry, roots)
                if entry.is_file():
                    sizes[entry.relative_to(directory).as_posix()] = entry.stat().st_size
                elif not entry.is_dir():
                    raise refused(entry, "weights_unreadable", "It is neither file nor folder.", "Remove it.")
    except OSError as error:
        raise unreadable(Path(error.filename or directory), error) from None
    return {path: sizes[path] for path in sorted(sizes) if not (dummy and is_weights(path))}


def _roots(directory: Path) -> tuple[Path, ...]:
    """Return the folders into which links may lead: the directory, and for a snapshot in a Hugging Face cache the folder of its blobs.

    The cache has each file once, as ``models--ORG--NAME/blobs/DIGEST``. ``models--ORG--NAME/snapshots/COMMIT/FILE`` is a link to it
    (huggingface_hub/file_download.py).
    """
    root = directory.resolve()
    repository = root.parent.parent
    snapshot = root.parent.name == "snapshots" and repository.name.startswith("models--")
    return (root, (repository / "blobs").resolve()) if snapshot else (root,)


def _fail(error: OSError) -> None:
    raise error


def _check_link(link: Path, roots: tuple[Path, ...]) -> None:
    try:
        link.stat()
    except OSError as error:
        # From Python 3.13 on Path.resolve() does not report a loop.
        if error.errno == errno.ELOOP:
            raise refused(link, "link_loop", "This link leads back to itself.", "Remove it, or fetch the file again.") from None
    target = link.resolve()
    if not any(target.is_relative_to(root) for root in roots):
        what = f"This link points to {target}, outside the model's folder."
        raise refused(link, "link_leaves_directory", what, "Copy the file into the directory (cp -L), so that the manifest covers it.")
    if not target.exists():
        raise refused(link, "weights_missing", f"This link points to {target}, which does not exist.")
    if target.is_dir():
        raise refused(link, "link_to_folder", "This is a link to a folder.", "Replace it by the folder itself.")


def digests(directory: Path, paths: Sequence[str], hashes: Hashes | None, progress: Progress | None = None) -> dict[str, str]:
    """Return the sha256 of each file by its path."""
    hashes = hashes or Hashes(None, "")

    def tell(read: int) -> None:
        if progress and read > _LARGE:
            progress.waiting(f"hashed {storage.size(read)}", every_s=10.0, about="hashing")

    try:
        found = dict(zip(paths, hashes.of([str(directory / path) for path in paths], tell, together=1), strict=True))
    except OSError as error:
        raise unreadable(Path(error.filename or directory), error) from None
    hashes.save()
    if refusing := next((path for path, sha256 in found.items() if sha256 is None), None):
        raise refused(directory / refusing, "weights_unreadable", "it cannot be read.", "Check its permissions.")
    return {path: sha256 for path, sha256 in found.items() if sha256}


def check_blob(path: Path, file: ModelFile) -> None:
    """Compare a file of a Hugging Face cache with its digest, which is the name of its blob.

    That is the sha256 of a file in large-file storage, else the sha1 that git gives it.
    """
    blob = path.resolve() if path.is_symlink() else path
    if blob.parent.name != "blobs" or not _BLOB.fullmatch(blob.name) or (len(blob.name) == 40 and file.size > _SMALL):
        return
    if not RemoteFile(file.path, file.size, blob.name).matches(blob, file.sha256):
        raise WeightsRefused(
            f"The model file {file.path} differs from its digest: the cache stores it as {blob.name[:12]}..., and it has the sha256 "
            f"{file.sha256[:12]}....",
            look=str(blob),
            do="Remove this file and the link to it, or ask the owner of the cache to. Then fetch the model again with `hf download`.",
            reason="blob_differs",
        )


def refused(path: Path, reason: str, what: str, do: str = "Fetch the file again.") -> WeightsRefused:
    """Return the error of one file of a model."""
    return WeightsRefused(f"The model file {path.name} cannot be used: {what}", look=str(path), do=do, reason=reason)


def unreadable(path: Path, error: OSError) -> WeightsRefused:
    """Return the error of a file or folder that cannot be read."""
    return refused(path, "weights_unreadable", f"it cannot be read ({error.strerror}).", "Check its permissions.")
