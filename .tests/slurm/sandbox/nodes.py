"""How to make and enter a node: namespaces, mounts, network. Only texts and argument lists."""

from __future__ import annotations

import pwd
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from . import trees
from .configuration import ADDRESSES, FABRIC, LAN, LAN_ADDRESSES
from .options import LOGIN, Options, SandboxError
from .requirements import FREEZER, find

_PRIVATE = ("/tmp", "/run")  # every node has its own
_INIT = str(Path(__file__).with_name("init.py"))


def init_argv(node: str | None, release: str = "") -> list[str]:
    """Return the command that makes a node's namespaces (None: those of the whole sandbox) with an init in them.

    The first init's root is the tree of ``release``, and the nodes' inits have its root.
    """
    argv = [find("unshare"), "--pid", "--mount", "--fork"]
    init = [sys.executable, "-I", "-S", _INIT]
    if node is not None:
        # The sandbox's init reaps it when its parent has ended.
        return [find("setsid"), "--fork", *argv, "--net", "--uts", *init]
    tree = trees.of(release)
    return [*argv, *(init if tree is None else [find("sh"), "-c", trees.enter_script(tree, init)])]


def enter_argv(init: int, argv: Sequence[str], user: str | None, cwd: str) -> list[str]:
    """Return the command that runs ``argv`` on the node with this init, except for the process namespace (see spawn).

    Each program in the chain replaces itself with the next one, so ``argv`` has the process id and gets the signals.
    """
    chain = [find("nsenter"), f"--target={init}", "--mount", "--net", "--uts", "--"]
    if user is not None:
        chain += [find("setpriv"), f"--reuid={user}", f"--regid={_group(user)}", "--init-groups"]
    return [*chain, "/usr/bin/env", f"--chdir={cwd}", *argv]


def _group(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_gid
    except KeyError:
        raise SandboxError(f"This machine has no user {user!r}; name an existing one.") from None


def cgroup(sandbox: str, node: str | None = None) -> Path:
    """Return the freezer control group of a sandbox or of one of its nodes."""
    top = FREEZER / f"servemark-sandbox-{sandbox}"
    return top / node if node else top


def shared(folder: Path, paths: Sequence[str]) -> list[str]:
    """Return the shared ones of the private folders, without duplicates and nested folders."""
    wanted = sorted({str(Path(path).absolute()) for path in (str(folder), *paths)})
    wanted = [path for path in wanted if any(Path(path).is_relative_to(top) for top in _PRIVATE)]
    for path in wanted:
        if path in _PRIVATE:
            raise SandboxError(f"{path} cannot be shared: every node has its own. Share a folder inside it.")
    return [p for p in wanted if not any(Path(p).is_relative_to(other) for other in wanted if other != p)]


def mount_script(folder: Path, node: str, freezer: Path | None, shared_paths: Sequence[str]) -> str:
    """Return a shell script that turns the copied mounts of a new node into its own."""
    q = shlex.quote
    lines = [
        "set -e",
        "mount -t proc proc /proc",
        # Descriptors keep access to folders that mounts will cover.
        "exec 3</tmp 4</run",
        f"mount --bind {q(f'{folder}/nodes/{node}/tmp')} /tmp",
        "mount -t tmpfs -o mode=755 tmpfs /run",
    ]
    for path in shared_paths:
        top = next(top for top in _PRIVATE if Path(path).is_relative_to(top))
        descriptor = 3 + _PRIVATE.index(top)
        lines.append(f"mkdir -p {q(path)}")
        lines.append(f"mount -c --rbind /proc/self/fd/{descriptor}/{q(str(Path(path).relative_to(top)))} {q(path)}")
    lines += [
        "mkdir -p /run/lock /run/keep /run/munge /run/mysqld /run/slurm/spool /run/slurm/etc",
        "chmod 1777 /run/lock",
        # The folder of the database's socket in Debian's unstable release.
        "ln -s mysqld /run/mariadbd",
        f"mount --bind {q(f'{folder}/munge/socket')} /run/munge",
        f"mount --bind {q(f'{folder}/etc/hosts')} /etc/hosts",
        # A folder that every user may read.
        f"mount --bind {q(f'{folder}/etc')} /run/slurm/etc",
        # Slurm's default place, for programs without SLURM_CONF.
        f"if [ -d /etc/slurm ]; then mount --bind {q(f'{folder}/etc')} /etc/slurm; fi",
        # A new sysfs shows this node's network interfaces; the control groups are mounted below it again.
        "mount --rbind /sys/fs/cgroup /run/keep",
        "mount -t sysfs sysfs /sys",
        "mount --rbind /run/keep /sys/fs/cgroup",
        "umount -l /run/keep",
    ]
    if freezer is not None:
        # Slurm names its groups after the node; a group for each sandbox avoids clashes.
        lines.append(f"mount --bind {q(str(freezer))} {FREEZER}")
    lines.append(f"hostname {q(node)}")
    return "\n".join(lines) + "\n"


def login_network() -> str:
    """Return input for ``ip -batch -`` in the login node's network: the bridge that connects all nodes."""
    return f"""\
link set lo up
link add {FABRIC} type bridge
link set {FABRIC} up
address add {ADDRESSES[LOGIN]}/24 dev {FABRIC}
"""


def cables(node: str, init: int) -> str:
    """Return input for ``ip -batch -`` in the login node's network that connects a node; ``init`` is its init's process id.

    The other end of the second interface stays in the login node's network without a bridge or an address.
    """
    return f"""\
link add to-{node} type veth peer name {FABRIC} netns {init}
link set to-{node} master {FABRIC} up
link add lan-{node} type veth peer name {LAN} netns {init}
link set lan-{node} up
"""


def node_network(node: str, options: Options) -> str:
    """Return input for ``ip -batch -`` in a compute node's network."""
    route = f"route add default via {LAN_ADDRESSES['node1'].rpartition('.')[0]}.1 dev {LAN}\n"
    return f"""\
link set lo up
link set {FABRIC} up
address add {ADDRESSES[node]}/24 dev {FABRIC}
link set {LAN} up
address add {LAN_ADDRESSES[node]}/24 dev {LAN}
{route if options.default_route else ""}"""


def cut_rules(node: str, other: str) -> str:
    """Return input for ``nft -f -`` in the login node's network that drops all packets between two nodes."""
    return f"""\
add table bridge cut
add chain bridge cut forward {{ type filter hook forward priority 0; }}
add rule bridge cut forward iifname "to-{node}" oifname "to-{other}" drop
add rule bridge cut forward iifname "to-{other}" oifname "to-{node}" drop
"""
