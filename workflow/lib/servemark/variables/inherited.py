"""Inherited environment variables that reach the servers and decide speed or output.

Sites set some of them in modules on purpose (fabric plugins), so servers get them; so that they are not measured under the key of a
server without them, they are in the plan, the ledger key and the report.

Read from the environment of the main process, which local stages and jobs of a scheduler inherit (``submit.exported`` of the Slurm
executor). Variables that a node adds are not seen: by a scheduler's prolog, by a login shell's profile before ``modules`` are loaded, and
in files that libraries read (``~/.nccl.conf``).
"""

from __future__ import annotations

from collections.abc import Mapping

from servemark.records import Topology
from servemark.variables.passed_on import handed_on
from servemark.variables.table import in_key_if_inherited


def deciding(env: Mapping[str, str], topology: Topology, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that a server inherits and that decide. Empty ones count as unset; secrets are left out.

    Args:
        given: the cluster's variables and the deployment's own, which win and are in the key already.
    """
    return {
        name: value
        for name, value in sorted(handed_on(env).items())
        if value and name not in given and in_key_if_inherited(name) and _reaches(name, topology)
    }


def _reaches(name: str, topology: Topology) -> bool:
    """Return whether a server uses the inherited value: ``launch.server_environment`` sets some names itself.

    Every server gets its own interface for NCCL; where the executor copies variables, the inherited one reaches the ranks. With
    ``LD_LIBRARY_PATH`` NCCL finds the network's plugin, which it needs between nodes only.
    """
    if name == "NCCL_SOCKET_IFNAME":
        return topology.traits.copies_variables
    return topology.nodes > 1 if name == "LD_LIBRARY_PATH" else name != "GLOO_SOCKET_IFNAME"
