"""Requirements of a sandbox."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

from . import trees
from .options import Options, SandboxError

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FREEZER = Path("/sys/fs/cgroup/freezer")

# Program -> its Debian and Ubuntu package.
_MACHINE = {
    "ip": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
}
_SLURM = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge"}
_ACCOUNTING = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server-core", "mariadb-install-db": "mariadb-server-core"}


def find(program: str, release: str = "") -> str:
    """Return the full path of a program as the nodes see it; search /usr/sbin too if PATH does not have it."""
    tree = trees.of(release)
    if tree is not None:
        return next((f"{top}/{program}" for top in SYSTEM_PATH.split(":") if os.path.lexists(f"{tree}{top}/{program}")), program)
    found = shutil.which(program, path=SYSTEM_PATH)
    if found is None:
        package = (_MACHINE | _SLURM | _ACCOUNTING).get(program, program)
        raise SandboxError(f"{program} is missing. Install it with: apt-get install {package}")
    return found


def why_unavailable(options: Options | None = None) -> str | None:
    """Return why no sandbox can start here and what to do, in one line; None if one can."""
    options = options or Options()
    if os.geteuid() != 0:
        return "The Slurm sandbox makes namespaces and needs root. Run it as root, or in a virtual machine or container."
    tree = trees.of(options.release)
    if tree is not None and not tree.is_dir():
        return f"There is no tree with Slurm {options.release} at {tree}. Make it with: make slurm-tree SLURM={options.release}"
    slurm = {} if tree else _SLURM | (_ACCOUNTING if options.accounting else {})
    wanted = slurm | _MACHINE
    missing = [program for program in wanted if shutil.which(program, path=SYSTEM_PATH) is None]
    if missing:
        packages = " ".join(sorted({wanted[program] for program in missing}))
        return f"The Slurm sandbox lacks {', '.join(missing)}. Install with: apt-get install {packages}"
    if options.second_user and not _exists(options.second_user):
        return f"This machine has no user {options.second_user!r}. Name an existing one as second_user, or none."
    if options.proctrack == "cgroup" and not (FREEZER / "cgroup.procs").exists():
        return f"proctrack cgroup needs the version 1 freezer at {FREEZER}. Start with --proctrack linuxproc instead."
    return None


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def require(options: Options) -> None:
    """Raise SandboxError if no sandbox with these options can start here."""
    reason = why_unavailable(options)
    if reason:
        raise SandboxError(reason)
