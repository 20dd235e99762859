"""A small Slurm cluster on one machine, for tests and by hand: a login node and two or three compute nodes.

Every node is a set of Linux namespaces (processes, mounts, host name, network) with real Slurm daemons. So jobs, accounting, signals,
preemption, lost nodes and networks behave as in a real Slurm. GPUs (device files without a device), cores and memory sizes are fake.

All nodes see the machine's files, but each has its own /tmp, /run and /etc/hosts; they share /dev/shm.

It needs root and Debian's or Ubuntu's Slurm packages, and changes no file of the machine. By hand, from ``.tests/slurm``::

    python -m sandbox start /tmp/cluster
    python -m sandbox shell /tmp/cluster
    python -m sandbox stop /tmp/cluster
"""

from .options import Options, SandboxError
from .requirements import why_unavailable
from .sandbox import Sandbox

__all__ = ["Options", "Sandbox", "SandboxError", "why_unavailable"]
