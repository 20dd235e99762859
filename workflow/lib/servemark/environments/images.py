"""Container images: what a digest covers, and where fetched images are."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from servemark.containers.runtimes import RUNTIMES, kind_of
from servemark.errors import EnvironmentRefused
from servemark.files import content, storage
from servemark.files.content import CACHES, Hashes
from servemark.progress import Progress
from servemark.records import Container
from servemark.supervisor import process_request

FOLDER = "images"
# Folders of a running system. An unpacked image may hold files of a build there, and servemark makes the places of binds.
_NOT_SOFTWARE = frozenset({"proc", "sys", "dev", "tmp", "run"})
TOOL_S = 120.0


def exists(image: Container, modules: Sequence[str] = ()) -> bool:
    """Return whether the runtime can start the image without fetching it. ``modules``: environment modules that bring the runtime."""
    if image.runtime in ("podman", "podman-hpc"):
        argv = process_request.with_modules([RUNTIMES[image.runtime].program, "image", "exists", image.place], modules)
        try:
            return subprocess.run(argv, capture_output=True, timeout=TOOL_S).returncode == 0
        except (OSError, subprocess.SubprocessError):
            return False
    return os.path.exists(image.place)


def is_gone(image: Container) -> bool:
    """Return whether an image that servemark fetched into the cache is missing. A runtime's own store is on the nodes."""
    return kind_of(image.image) == "registry" and os.path.isabs(image.place) and not os.path.exists(image.place)


def digest_now(image: Container, cache: Path | None, progress: Progress, modules: Sequence[str] = ()) -> str:
    """Return the digest of an image, ``sha256:HEX``. A fetched one has that of the registry while it exists.

    Args:
        modules: as of :func:`exists`.

    Raises:
        EnvironmentRefused: the image does not exist, or a file cannot be read.
    """
    if not exists(image, modules):
        raise EnvironmentRefused(
            f"The container image {image.place} does not exist.",
            do="Rerun the same command: servemark fetches an image again. Create a file or folder of your own again.",
            reason="image_missing",
        )
    if kind_of(image.image) == "registry":
        return image.digest
    hashes = Hashes(cache, image.place)
    tell = partial(_tell, progress, image.place)
    try:
        found = hashes.of([image.place], tell)[0] if os.path.isfile(image.place) else _of_folder(image.place, hashes, tell)
    except OSError as error:
        raise EnvironmentRefused(
            f"The file {error.filename} of the container image {image.place} cannot be read: {error.strerror}.",
            do="Check its disk and its permissions, then rerun the same command.",
            reason="image_missing",
        ) from None
    hashes.save()
    if found is None:
        raise EnvironmentRefused(
            f"You may not read the container image {image.place}.", do="Ask its owner for read permission.", reason="image_missing"
        )
    return f"sha256:{found}"


def _tell(progress: Progress, place: str, read: int) -> None:
    if read:
        progress.waiting(f"hashing the container image {place}: read {storage.size(read)}", about="hashing")


def _of_folder(folder: str, hashes: Hashes, tell: content.Tell) -> str:
    names: list[str] = []
    links: list[str] = []
    for name in _walk(folder):
        (links if os.path.islink(os.path.join(folder, name)) else names).append(name)
    entries = list(zip(names, hashes.of([os.path.join(folder, name) for name in names], tell), strict=True))
    entries += [(name, f"-> {os.readlink(os.path.join(folder, name))}") for name in links]
    return content.combined(entries)


def _walk(folder: str) -> Iterator[str]:
    """Yield the files and links of an image, relative to it, without bytecode. Links are not followed: they lead to paths of the image."""
    for place, folders, names in os.walk(folder):
        relative = os.path.relpath(place, folder)
        top = relative == "."
        folders[:] = sorted(name for name in folders if name not in CACHES and not (top and name in _NOT_SOFTWARE))
        linked = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in (*sorted(names), *linked):
            if not content.unread(name):
                yield name if top else f"{relative}/{name}"
