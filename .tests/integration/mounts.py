"""File systems for one test: small, full, read-only. Root makes them in a mount namespace that ends with the test."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

CLONE_NEWNS = 0x20000
FILLING = "filling"
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def own_namespace() -> Iterator[None]:
    """Enter a mount namespace of this thread and its children. The mounts end with them."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    outside, folder = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY), Path.cwd()
    try:
        if _libc.unshare(CLONE_NEWNS) != 0:
            pytest.skip(f"no mount namespace: {os.strerror(ctypes.get_errno())}")
        try:
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
            yield
        finally:
            assert _libc.setns(outside, CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
            # setns moves the process to the namespace's root folder.
            os.chdir(folder)
    finally:
        os.close(outside)


def mount(place: Path, mib: int = 64) -> None:
    """Mount a tmpfs of this size at ``place``, with the files of that folder."""
    _over(place, ["-t", "tmpfs", "-o", f"size={mib}m,mode=0755", "tmpfs"])


def mount_disk(place: Path, mib: int = 64) -> None:
    """Mount an ext4 file system, which :func:`fail` can make read-only while files are open."""
    if not shutil.which("mkfs.ext4") or not Path("/dev/loop-control").exists():
        pytest.skip("needs mkfs.ext4 and loop devices")
    with open(_image(place), "wb") as stream:
        stream.truncate(mib * 2**20)
    subprocess.run(["mkfs.ext4", "-q", _image(place)], check=True)
    _over(place, ["-o", "loop", _image(place)])


def fail(place: Path) -> None:
    """Make a :func:`mount_disk` read-only at once, as the kernel does after a disk error."""
    subprocess.run(["mount", "-o", "remount,abort", str(place)], check=True)


def repair(place: Path) -> None:
    """Mount a failed disk again. Nothing may use it."""
    subprocess.run(["umount", str(place)], check=True)
    subprocess.run(["e2fsck", "-p", "-f", _image(place)], check=False, capture_output=True)
    subprocess.run(["mount", "-o", "loop", _image(place), str(place)], check=True)


def _image(place: Path) -> Path:
    return place.with_name(f".{place.name}.image")


def _over(place: Path, what: Sequence[str | Path]) -> None:
    before = place.with_name(f".{place.name}.before")
    place.mkdir(parents=True, exist_ok=True)
    place.rename(before)
    place.mkdir()
    subprocess.run(["mount", *what, str(place)], check=True)
    subprocess.run(["cp", "-a", f"{before}/.", str(place)], check=True)
    # The test's files must survive the failed disk, like servemark's flushed files.
    subprocess.run(["sync", "-f", str(place)], check=True)


def fill(place: Path) -> None:
    """Fill the file system with one file."""
    with open(place / FILLING, "ab", buffering=0) as stream:
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while True:
                    stream.write(bytes(size))


def free(place: Path) -> None:
    """Remove the file that filled it."""
    (place / FILLING).unlink()
