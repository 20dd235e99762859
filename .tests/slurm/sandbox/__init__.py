"""A small Slurm cluster on one machine, for tests and by hand: a login node and two or three compute nodes.

Every node is a set of Linux namespaces (processes, mounts, host name, network) with real Slurm daemons in it, so what
is learnt here about jobs, accounting, signals, preemption, lost nodes and networks is Slurm's own behaviour. Pretended
are the GPUs (device files without a device behind them) and the number of cores and bytes.

All nodes see the machine's files, but each has its own /tmp, /run and /etc/hosts; /dev/shm is one for all.

Needs root and Debian's or Ubuntu's Slurm packages; changes no file of the machine. By hand, from ``.tests/slurm``::

    python -m sandbox start /tmp/cluster
    python -m sandbox shell /tmp/cluster
    python -m sandbox stop /tmp/cluster
"""

from .options import Options, SandboxError
from .requirements import why_unavailable
from .sandbox import Sandbox

__all__ = ["Options", "Sandbox", "SandboxError", "why_unavailable"]
