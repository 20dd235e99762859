"""The process that imports vLLM's client once for a deployment (in_model_env/client_server.py), on the client's node."""

import os
from pathlib import Path

from servemark import supervisor
from servemark.deployment.launcher import Launcher
from servemark.environments.build import IN_MODEL_ENV
from servemark.records import DaemonState
from servemark.supervisor.process_request import DaemonRequest

NAME = "client-server"
GONE = os.EX_TEMPFAIL
"""Exit code of run_clients.py if the client server has ended and no client process was started."""
_SCRIPT = IN_MODEL_ENV / "client_server.py"


def running(launcher: Launcher, node: str, asked: DaemonRequest) -> DaemonState:
    """Return the attempt's client server. Start one at the first load point, or if the last one has ended.

    It does not start together with the vLLM servers, because its imports would delay theirs on a machine with few cores.

    Args:
        asked: the client's environment, modules and container, and its interpreter as the only word of ``argv``.

    Raises:
        StageFailed: the supervisor has ended, or the program cannot be started.
    """
    found = [daemon for daemon in supervisor.read_daemons(launcher.attempt) if daemon.name.startswith(NAME)]
    if found and found[-1].ended_at is None:
        return found[-1]
    name = f"{NAME}-{len(found) + 1}" if found else NAME
    argv = (*asked.argv, str(_SCRIPT), str(launcher.scratch / f"{name}.sock"))
    what = {"name": name, "argv": argv, "log": str((launcher.attempt / f"{name}.log").absolute())}
    # Its end does not end the deployment.
    launcher.start(node, asked.model_copy(update=what | {"optional": True, "grace_s": 2.0}))
    return next(daemon for daemon in supervisor.read_daemons(launcher.attempt) if daemon.name == name)


def arguments(attempt: Path, server: DaemonState) -> tuple[str, str]:
    """Return the arguments by which run_clients.py finds a client server: the paths of its socket and of the supervisor's record."""
    return server.argv[-1], str((attempt / "daemons" / f"{server.name}.json").absolute())
