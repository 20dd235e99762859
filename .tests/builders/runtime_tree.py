"""Apptainer and SingularityCE on Debian 12, which has no package of them.

Each is in a folder with another release, Debian unstable and Ubuntu 24.04, entered with a mount namespace of its own. They need
``pivot_root``; with ``chroot`` Apptainer ends with "Failed to set mount propagation". They start images as an ordinary user. The folders
lie next to the image of :mod:`builders.container_image`, and are made once; delete them for newer packages.
"""

from __future__ import annotations

import fcntl
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from builders import container_image
from slurm.sandbox.trees import mirror

# Libraries of this machine's Python, which runs servemark in the tree.
PACKAGES = (
    *("squashfs-tools", "git", "procps", "libssl3t64", "libffi8", "libsqlite3-0", "libreadline8t64", "libbz2-1.0", "liblzma5"),
    *("libncursesw6", "libexpat1", "libuuid1", "zlib1g"),
)
_SCRIPTS = "/usr/share/debootstrap/scripts"
USER = "nobody"
UID = 65534


# For debootstrap: release, packages, options, address and script. This machine has no keys of Ubuntu. With an empty address debootstrap
# takes Ubuntu's own.
# SingularityCE starts no image if the host has no /etc/localtime (tzdata).
_RELEASES = {
    "apptainer": ("sid", ("apptainer",), (), ()),
    "singularity": (
        "noble",
        ("singularity-container", "tzdata"),
        ("--no-check-gpg", "--components=main,universe"),
        ("", f"{_SCRIPTS}/gutsy"),
    ),
}


def built(runtime: str) -> Path:
    """Return the folder of the tree with a runtime, ``apptainer`` or ``singularity``; make it unless it exists."""
    release, packages, options, source = _RELEASES[runtime]
    tree = container_image.folder() / release
    container_image.folder().mkdir(parents=True, exist_ok=True)
    with (container_image.folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (tree / "usr/bin" / runtime).exists():
            shutil.rmtree(tree, ignore_errors=True)
            container_image.run(["debootstrap", "--variant=minbase", *options, release, str(tree), *(source or (mirror(),))])
            # No service starts in a chroot, and no question is asked.
            install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages, *PACKAGES]
            container_image.run(install, within=tree, DEBIAN_FRONTEND="noninteractive", RUNLEVEL="1")
            # This machine's Python may lie below /root.
            (tree / "root").chmod(0o755)
    return tree


def entering(tree: Path, folders: Sequence[Path], here: Path) -> list[str]:
    """Return the beginning of a command line that runs a program in the tree as an ordinary user, with folders of this machine.

    Args:
        folders: each at its own path; with the interpreter of this process, which the tree gets too.
        here: the working folder.
    """
    q = shlex.quote
    lines = ["set -e", "mount --make-rprivate /", f"mount --bind {q(str(tree))} {q(str(tree))}"]
    for folder in dict.fromkeys(map(str, (*folders, Path(sys.prefix), Path(sys.base_prefix), Path("/proc"), Path("/sys"), Path("/dev")))):
        lines += [f"mkdir -p {q(f'{tree}{folder}')}", f"mount --rbind {q(folder)} {q(f'{tree}{folder}')}"]
    lines += [
        f"touch {q(str(tree))}/etc/hosts {q(str(tree))}/etc/resolv.conf",
        f"cd {q(str(tree))}",
        "mkdir -p old",
        "pivot_root . old",
        # Its programs are those of the tree from here on.
        "umount -l /old",
        f'exec chroot / setpriv --reuid={UID} --regid={UID} --clear-groups env --chdir={q(str(here))} "$@"',
    ]
    return ["unshare", "--mount", "sh", "-c", "\n".join(lines), "enter"]


def run(tree: Path, folders: Sequence[Path], here: Path, argv: Sequence[str]) -> None:
    """Run a program in the tree to its end; raise RuntimeError with its output if it fails."""
    env = {"PATH": container_image.PATH, "HOME": str(here)}
    done = subprocess.run([*entering(tree, folders, here), *argv], env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(argv)}` ended with exit code {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
