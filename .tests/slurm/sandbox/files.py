"""The files of a sandbox, all below its own folder."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from pathlib import Path

from . import configuration
from .options import Options, SandboxError


def prepare(folder: Path, options: Options) -> None:
    """Make the sandbox's folders; remove files of an earlier sandbox.

    Raises:
        SandboxError: the folder holds files that do not belong to a sandbox.
    """
    marker = folder / "this-is-a-slurm-sandbox"
    if folder.exists() and not marker.exists() and any(folder.iterdir()):
        raise SandboxError(f"{folder} is not empty and no sandbox made it. Name an empty or a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # the second user reads it too
    marker.touch()
    for name in ("etc", "munge", "log", "nodes", "state", "database", "devices", "sockets"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    (folder / "munge/socket").mkdir()
    (folder / "sockets").chmod(0o1777)
    for node in options.all_nodes:
        (folder / "nodes" / node / "tmp").mkdir(parents=True)
        (folder / "nodes" / node / "tmp").chmod(0o1777)


def write(folder: Path, options: Options) -> None:
    """Write configuration files, key and device files into the sandbox's folders."""
    folder.joinpath("cluster.yaml").write_text(configuration.cluster_file(options, folder))
    etc = folder / "etc"
    etc.joinpath("hosts").write_text(configuration.hosts(options))
    etc.joinpath("slurm.conf").write_text(configuration.slurm_conf(options, folder))
    etc.joinpath("gres.conf").write_text(configuration.gres_conf(options, folder))
    etc.joinpath("cgroup.conf").write_text(configuration.cgroup_conf())
    etc.joinpath("slurmdbd.conf").write_text(configuration.slurmdbd_conf(folder))
    etc.joinpath("slurmdbd.conf").chmod(0o600)  # slurmdbd refuses other modes
    key = folder / "munge/munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    for number in range(options.gpus):
        os.mknod(folder / f"devices/nvidia{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # as /dev/null
