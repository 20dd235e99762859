"""What a daemon or a tool is started with, on this machine or through a launcher on a node of the allocation."""

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
# What programs read for the place of temporary files; Snakemake sets all four to the machine's own.
TEMPORARY = ("TMPDIR", "TEMPDIR", "TMP", "TEMP")
# A keeper says on each leash, this often, that it lives; a far end that has heard nothing for SILENCE_S takes it, or the way to it, for
# lost. Slurm itself gives a silent node up after 300 s (SlurmdTimeout).
BEAT_S, SILENCE_S = 5.0, 60.0


class DaemonRequest(Strict):
    """One process to start.

    ``secret_env`` maps a variable to the 0600 file that holds its value. ``devices`` are places in the node's list of devices; None
    for all of them. ``modules`` are loaded first, in a login shell. ``launcher`` is the command that brings it to its node (empty:
    started here). ``silence_s``: what is behind a launcher ends when nothing was heard on its leash for so long; None: it waits for ever.
    ``keep``: files to be kept when what is behind a launcher ends by itself, globs relative to ``scratch``, the most telling first
    (servemark.supervisor.salvage).
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
    """Return command line and environment that start a request on its node; ``path`` is the request's file, which the node reads."""
    argv = [*request.launcher, sys.executable, "-m", "servemark.supervisor.remote", str(path.absolute())]
    return argv, launcher_environment() | children.python_path()


def launcher_environment() -> dict[str, str]:
    """Return our environment without the variables of the step that we run in."""
    return {name: value for name, value in without_step(passed_on.clean_environment()).items() if name != VISIBLE}


def without_step(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what a launcher, or an MPI library, would take for its own options."""
    return {name: value for name, value in env.items() if name in _KEPT or not name.startswith(_STEP_VARIABLES)}


def environment(request: DaemonRequest) -> dict[str, str]:
    """Return the process's environment, made where it is started.

    The tools of its interpreter's environment (ninja) come first in PATH. Temporary files go to ``scratch``, which is removed with the
    attempt.

    Raises:
        OSError: a secret's file cannot be read.
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
    """Return the value of CUDA_VISIBLE_DEVICES that leaves these of the devices that we were given; None where it is to stay as it is.

    A scheduler may name devices by UUID, so they are picked by place and not renumbered. Where a user has said that no GPU is to be used,
    none is uncovered.

    Args:
        devices: places below the number of devices that the survey counted here.
    """
    value = env.get(VISIBLE)
    if value is None:
        return ",".join(map(str, devices)) if Path("/dev/nvidiactl").exists() else None
    if visible_gpus.names_nothing(value):
        return None
    given = [word.strip() for word in value.split(",") if word.strip()]
    return ",".join(given[index] for index in devices)


def command(request: DaemonRequest) -> list[str]:
    """Return the process's command line, behind the modules that it needs."""
    program, *arguments = request.argv
    if request.scratch:
        program = plain_names.interpreter(program, Path(request.scratch).parent)
    return with_modules([program, *arguments], request.modules)


def with_modules(argv: Sequence[str], modules: Sequence[str]) -> list[str]:
    """Return ``argv``, run by a login shell that has loaded the modules; only a login shell knows `module` everywhere.

    A login shell may replace PATH, so the script puts the tools of argv's own environment first again.
    """
    if not modules:
        return list(argv)
    script = (
        'n=$1; shift; while [ "$n" -gt 0 ]; do module load "$1" || { echo "servemark: module load $1 failed" >&2; exit 97; }; '
        'shift; n=$((n-1)); done; case $1 in /*) PATH=${1%/*}:$PATH;; esac; exec "$@"'
    )
    return ["bash", "-lc", script, "bash", str(len(modules)), *modules, *argv]
