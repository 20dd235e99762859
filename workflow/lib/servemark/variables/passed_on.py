"""Environment variables that another interpreter gets from this process, and the ones among them that decide a server's speed or output.

Sites set some of these in modules on purpose (fabric plugins), so servers get them. Plan, ledger key and report contain them, so that a
server with them and one without have different ledger keys. They are read from the environment of the main process, which local stages
and jobs inherit (``submit.exported`` of the Slurm executor). servemark does not detect variables that a node adds: by a scheduler's prolog,
by a login shell's profile before ``modules`` are loaded, and in files that libraries read (``~/.nccl.conf``).
"""

import os
from collections.abc import Iterable, Mapping

from servemark.records import Topology
from servemark.variables import table

# Of the user and the terminal: libraries ask for the user's name, and text needs an encoding.
_PERSONAL = frozenset({"USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SLURM_JOB_ID", "SERVEMARK_ATTEMPT", "SERVEMARK_NODE"})


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment without misleading variables and credentials (``table.TABLE``), plus ``extra``."""
    return {**handed_on(os.environ), **(extra or {})}


def with_tools_of(program: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` with the folder of ``program`` first in PATH, as in an activated environment; unchanged for a bare name."""
    folder = os.path.dirname(program)
    return {**env, "PATH": f"{folder}:{env.get('PATH', os.defpath)}"} if os.path.isabs(program) else dict(env)


def handed_on(env: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that :func:`clean_environment` passes on."""
    return {name: value for name, value in env.items() if table.row(name).server}


def into_image(env: Mapping[str, str], given: Iterable[str]) -> dict[str, str]:
    """Return the variables that a process in a container image gets: those with a name in ``given``, and inherited ones of libraries.

    Paths of the host's software stay outside: PATH, LD_*, PYTHON*, CUDA_HOME.
    """
    names = set(given)
    return {name: value for name, value in env.items() if name in names or name in _PERSONAL or table.of_library(name)}


def deciding(env: Mapping[str, str], topology: Topology, given: Mapping[str, str]) -> dict[str, str]:
    """Return the inherited variables that decide a server's speed or output, without empty ones and secrets.

    Args:
        given: variables of the cluster and the deployment. They take precedence and are in the ledger key already.
    """
    return {
        name: value
        for name, value in sorted(handed_on(env).items())
        if value and name not in given and table.in_key_if_inherited(name) and _reaches(name, topology)
    }


def _reaches(name: str, topology: Topology) -> bool:
    """Return whether a server uses the inherited value: ``launch.server_environment`` sets some names itself.

    It sets NCCL's interface for each server, but an executor that copies variables gives the ranks the inherited one. LD_LIBRARY_PATH leads
    NCCL to the network's plugin, which only ranks on several nodes use.
    """
    if name == "NCCL_SOCKET_IFNAME":
        return topology.traits.copies_variables
    return topology.nodes > 1 if name == "LD_LIBRARY_PATH" else name != "GLOO_SOCKET_IFNAME"
