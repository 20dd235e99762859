"""The process that imports vLLM's client once for a deployment (in_model_env/client_server.py), on the client's node."""

from servemark import supervisor
from servemark.deployment.launcher import Launcher
from servemark.environments.build import IN_MODEL_ENV
from servemark.supervisor.process_request import DaemonRequest

NAME = "client-server"
_SCRIPT = IN_MODEL_ENV / "client_server.py"


def running(launcher: Launcher, node: str, asked: DaemonRequest) -> tuple[str, str]:
    """Return the paths of socket and state of the attempt's client server. Start one at the first load point, or if the last has ended.

    It does not start together with the vLLM servers, because its imports would delay theirs on a machine with few cores.

    Args:
        asked: the client's environment, modules and container, and its interpreter as the only word of ``argv``.

    Raises:
        StageFailed: the supervisor has ended, or the program cannot be started.
    """
    found = [daemon for daemon in supervisor.read_daemons(launcher.attempt) if daemon.name.startswith(NAME)]
    if found and found[-1].ended_at is None:
        return found[-1].argv[-1], _state(launcher, found[-1].name)
    name = f"{NAME}-{len(found) + 1}" if found else NAME
    path = str(launcher.scratch / f"{name}.sock")
    what = {"name": name, "argv": (*asked.argv, str(_SCRIPT), path), "log": str((launcher.attempt / f"{name}.log").absolute())}
    # Its end does not end the deployment.
    launcher.start(node, asked.model_copy(update=what | {"optional": True, "grace_s": 2.0}))
    return path, _state(launcher, name)


def _state(launcher: Launcher, name: str) -> str:
    """Return the path of the record that states whether a client server has ended."""
    return str((launcher.attempt / "daemons" / f"{name}.json").absolute())
