"""Variables of the shell that starts snakemake which reach the servers and decide speed or answers.

Sites set some of them in modules on purpose (fabric plugins), so they are handed on; what reaches a server unseen would be measured under
the key of a server without it. So they stand in the plan, in the ledger's key and on the page.

Taken is the environment of the main process, which local stages and jobs of a scheduler inherit (``submit.exported`` of the Slurm
executor). Not seen from there is what is added on a node: by a prolog of the scheduler, by a login shell's profile before ``modules`` are
loaded, and by files that libraries read for themselves (``~/.nccl.conf``).
"""

from __future__ import annotations

from collections.abc import Mapping

from servemark.records import Topology
from servemark.variables.passed_on import handed_on
from servemark.variables.table import in_key_if_inherited


def deciding(env: Mapping[str, str], topology: Topology, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that a server inherits and that decide, by name.

    An empty value is none: the libraries take it for unset. Secrets are left out by their names, as everywhere.

    Args:
        given: the cluster's variables and the deployment's own, which win and are in the key already.
    """
    return {
        name: value
        for name, value in sorted(handed_on(env).items())
        if value and name not in given and in_key_if_inherited(name) and _reaches(name, topology)
    }


def _reaches(name: str, topology: Topology) -> bool:
    """Return whether a server gets the shell's value and uses it: ``launch.server_environment`` sets some names itself.

    Every server gets its own interface for NCCL; where the executor copies variables, the shell's reaches the ranks. ``LD_LIBRARY_PATH``
    is where NCCL finds the network's plugin, which within a node it has no use for; what vLLM itself loads lies in its environment, and
    so the many paths that modules leave there make no other key of a server on one node.
    """
    if name == "NCCL_SOCKET_IFNAME":
        return topology.traits.copies_variables
    return topology.nodes > 1 if name == "LD_LIBRARY_PATH" else name != "GLOO_SOCKET_IFNAME"
