"""Other releases of Slurm: a tree of another Debian release that the nodes of a sandbox have as their root.

``python -m sandbox tree RELEASE`` makes one, with debootstrap, from the mirror of this machine's own apt sources. A tree lies outside the
checkout and serves all sandboxes: each one puts an overlay on it, so that no sandbox changes it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from .options import SandboxError

# Release of Slurm -> the Debian release that packages it. "" is the machine's own Slurm and needs no tree.
SUITES = {"22.05": "bookworm", "24.11": "trixie", "newest": "sid"}
FOLDER = Path(os.environ.get("SERVEMARK_SLURM_TREES", "/var/tmp/servemark-slurm-trees"))
# python3 is here for the libraries that the checkout's own Python needs.
_PACKAGES = "slurmctld slurmd slurm-client slurmdbd munge mariadb-server iproute2 git openssh-client procps curl python3"
# These come from the tree. All other folders of the machine are visible at their own paths.
_OF_THE_TREE = frozenset(["bin", "boot", "etc", "lib", "lib32", "lib64", "libx32", "sbin", "usr", "var", "old_root"])
_ROOT = FOLDER / "root"
_LIST = "servemark-packages"
"""File of a tree with the packages that it was made with."""


def of(release: str) -> Path | None:
    """Return the tree of a release of Slurm; None for the machine's own Slurm."""
    if not release:
        return None
    if release not in SUITES:
        raise SandboxError(f"slurm is {release!r}; it must be empty (this machine's own Slurm), {', '.join(SUITES)}.")
    return FOLDER / release


def make(release: str) -> Path:
    """Make the tree of a release, unless it exists with these packages, and return it (two minutes, 1 GB).

    Raises:
        SandboxError: this is not root, debootstrap is missing, or it failed.
    """
    tree = of(release)
    if tree is None:
        raise SandboxError(f"Name a release of Slurm: {', '.join(SUITES)}.")
    if tree.exists() and (tree / _LIST).is_file() and (tree / _LIST).read_text() == _PACKAGES:
        return tree
    debootstrap = shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if os.geteuid() != 0 or debootstrap is None:
        raise SandboxError("A tree needs root and debootstrap. Install it with: apt-get install debootstrap")
    part = tree.with_name(f"{release}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    # A frozen mirror's index of unstable expires after a week. apt still checks its signature.
    update = "apt-get update -qq -o Acquire::Check-Valid-Until=false"
    install = f"{update} && apt-get install -y -qq --no-install-recommends {_PACKAGES} && apt-get clean"
    # The packages' own daemons must not start, and what they start by mistake ends with the process namespace.
    inside = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "RUNLEVEL=1", "DEBIAN_FRONTEND=noninteractive", "sh", "-c", install]
    _run([debootstrap, "--variant=minbase", SUITES[release], str(part), mirror()])
    (part / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
    (part / "usr/sbin/policy-rc.d").chmod(0o755)
    shutil.copy("/etc/resolv.conf", part / "etc/resolv.conf")
    _run(["unshare", "--mount", "--pid", "--fork", f"--mount-proc={part}/proc", "chroot", str(part), *inside])
    (part / _LIST).write_text(_PACKAGES)
    shutil.rmtree(tree, ignore_errors=True)
    part.rename(tree)
    return tree


def mirror() -> str:
    """Return the Debian mirror that this machine's own apt sources name."""
    argv = ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(COMPONENT)|$(REPO_URI)", "Created-By: Packages"]
    for line in subprocess.run(argv, capture_output=True, text=True).stdout.splitlines():
        origin, component, address = line.split("|", 2)
        if (origin, component) == ("Debian", "main"):
            return address
    raise SandboxError("The apt sources of this machine name no Debian mirror. Run `apt-get update` and see `apt-get indextargets`.")


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise SandboxError(f"`{shlex.join(argv[:4])} ...` ended with {done.returncode}:\n{done.stdout[-2000:]}")


def enter_script(tree: Path, argv: list[str]) -> str:
    """Return a shell script that makes the tree the root of a new mount namespace and becomes ``argv`` there.

    The mounts end with the namespace. /dev, /proc, /sys, /tmp, /run and all that Debian does not own are the machine's.
    """
    q, new = shlex.quote, f"{_ROOT}/new"
    lines = [
        "set -e",
        f"mkdir -p {q(str(_ROOT))}",
        f"mount -t tmpfs tmpfs {q(str(_ROOT))}",
        f"mkdir {q(new)} {q(f'{_ROOT}/upper')} {q(f'{_ROOT}/work')}",
        f"mount -t overlay -o lowerdir={q(str(tree))},upperdir={q(f'{_ROOT}/upper')},workdir={q(f'{_ROOT}/work')} overlay {q(new)}",
    ]
    for name in sorted(entry.name for entry in Path("/").iterdir() if entry.is_dir() and not entry.is_symlink()):
        if name not in _OF_THE_TREE:
            lines.append(f"mkdir -p {q(f'{new}/{name}')} && mount --rbind {q(f'/{name}')} {q(f'{new}/{name}')}")
    lines += [
        # Not --rbind: this folder holds the overlay.
        f"mount --bind /var/tmp {q(f'{new}/var/tmp')}",
        f"mkdir -p {q(f'{new}/usr/local')} && mount --bind /usr/local {q(f'{new}/usr/local')}",
        *(f"touch {q(f'{new}{file}')} && mount --bind {file} {q(f'{new}{file}')}" for file in ("/etc/passwd", "/etc/group")),
        f"touch {q(f'{new}/etc/hosts')}; mkdir -p {q(f'{new}/old')}",
        f"cd {q(new)}",
        "pivot_root . old",
        f"exec chroot . /bin/sh -c {q('umount -l /old; exec ' + shlex.join(argv))}",
    ]
    return "\n".join(lines) + "\n"
