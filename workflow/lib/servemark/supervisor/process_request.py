"""Command line and environment of a daemon or tool, on this machine or through a launcher on a node."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from servemark.files import home
from servemark.machine import visible_gpus
from servemark.processes import children
from servemark.records import Strict
from servemark.supervisor import plain_names
from servemark.variables import passed_on

_STEP_VARIABLES = ("SLURM_", "SRUN_", "SBATCH_", "PMI")
_KEPT = ("SLURM_CONF", "SLURM_JOB_ID")
VISIBLE = visible_gpus.VARIABLE
# The folder of temporary files; Snakemake sets all four.
TEMPORARY = ("TMPDIR", "TEMPDIR", "TMP", "TEMP")
# Time between heartbeats, and the silence after which a far end takes the supervisor, or the network, for lost. Slurm itself waits
# 300 s for a silent node (SlurmdTimeout).
BEAT_S, SILENCE_S = 5.0, 60.0


class DaemonRequest(Strict):
    """One process to start.

    Attributes:
        secret_env: variable -> the 0600 file with its value.
        devices: positions in the node's list of devices; None for all.
        modules: loaded first, in a login shell.
        launcher: the command that brings it to its node; empty: started here.
        silence_s: without a heartbeat for so long it is ended; None: never.
        keep: files to keep if it ends by itself behind a launcher, globs relative to ``scratch``, the most telling first.
    """

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    secret_env: dict[str, str] = {}
    log: str
    node: str | None = None
    devices: tuple[int, ...] | None = None
    modules: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    scratch: str | None = None
    grace_s: float = 10.0
    silence_s: float | None = None
    keep: tuple[str, ...] = ()


def through_launcher(request: DaemonRequest, path: Path) -> tuple[list[str], dict[str, str]]:
    """Return command line and environment that start a request on its node, which reads the request's file ``path``."""
    argv = [*request.launcher, sys.executable, "-m", "servemark.supervisor.remote", str(path.absolute())]
    return argv, launcher_environment() | children.python_path()


def launcher_environment() -> dict[str, str]:
    """Return our environment without the variables of the step that we run in."""
    return {name: value for name, value in without_step(passed_on.clean_environment()).items() if name != VISIBLE}


def without_step(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the options of launchers and MPI libraries."""
    return {name: value for name, value in env.items() if name in _KEPT or not name.startswith(_STEP_VARIABLES)}


def environment(request: DaemonRequest) -> dict[str, str]:
    """Return the process's environment; call it on the node of the process. An unreadable secret is an OSError.

    The tools of its interpreter's environment (ninja) come first in PATH. Temporary files go to ``scratch``.
    """
    asked = dict(request.env)
    if request.scratch:
        root = Path(request.scratch).parent
        asked = dict.fromkeys(TEMPORARY, request.scratch) | asked | plain_names.folders(asked, root)
    env = passed_on.with_tools_of(request.argv[0], without_step(passed_on.clean_environment(asked)))
    if scratch := request.scratch:
        env = home.replaced(env, lambda: Path(scratch))
    env |= {name: Path(file).read_text().strip() for name, file in request.secret_env.items()}
    if request.devices is not None and (chosen := visible(os.environ, request.devices)):
        env[VISIBLE] = chosen
    return env


def visible(env: Mapping[str, str], devices: Sequence[int]) -> str | None:
    """Return the value of CUDA_VISIBLE_DEVICES that selects ``devices``, positions in the given ones; None to leave it as it is.

    A scheduler may name devices by UUID, so they are selected and not renumbered. If the user wants no GPU, none is selected.
    """
    value = env.get(VISIBLE)
    if value is None:
        return ",".join(map(str, devices)) if Path("/dev/nvidiactl").exists() else None
    if visible_gpus.names_nothing(value):
        return None
    given = [word.strip() for word in value.split(",") if word.strip()]
    return ",".join(given[index] for index in devices)


def command(request: DaemonRequest) -> list[str]:
    """Return the process's command line, after its modules."""
    program, *arguments = request.argv
    if request.scratch:
        program = plain_names.interpreter(program, Path(request.scratch).parent)
    return with_modules([program, *arguments], request.modules)


def with_modules(argv: Sequence[str], modules: Sequence[str]) -> list[str]:
    """Return ``argv`` after loading modules in a login shell: no other has `module` everywhere. argv's folder stays first in PATH."""
    if not modules:
        return list(argv)
    script = (
        'n=$1; shift; while [ "$n" -gt 0 ]; do module load "$1" || { echo "servemark: module load $1 failed" >&2; exit 97; }; '
        'shift; n=$((n-1)); done; case $1 in /*) PATH=${1%/*}:$PATH;; esac; exec "$@"'
    )
    return ["bash", "-lc", script, "bash", str(len(modules)), *modules, *argv]
