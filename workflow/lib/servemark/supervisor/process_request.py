"""Command line and environment of a daemon or tool, on this machine or through a launcher on a node.

Compilers do not quote folder names: torch's Inductor, and ninja for FlashInfer, join command lines without quotes (torch 2.13,
_inductor/cpp_builder.py). A space in the name of an environment or compile cache would end the server. So the process gets a link with a
plain name to such a folder, in the user's private folder on the node. Its name is the same at every start, because vLLM and Python find
compiled code by the path of its sources.
"""

import contextlib
import hashlib
import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from servemark.containers import entering
from servemark.errors import ServemarkError
from servemark.files import home
from servemark.files.private import private
from servemark.machine import visible_gpus
from servemark.processes import children
from servemark.records import Container, Strict, write_atomically
from servemark.variables import passed_on
from servemark.variables.table import COMPILE_CACHES

_STEP_VARIABLES = ("SLURM_", "SRUN_", "SBATCH_", "PMI")
_KEPT = ("SLURM_CONF", "SLURM_JOB_ID")
VISIBLE = visible_gpus.VARIABLE
# The folder of temporary files; Snakemake sets all four.
TEMPORARY = ("TMPDIR", "TEMPDIR", "TMP", "TEMP")
# Time between heartbeats, and time without one after which a remote agent treats supervisor or network as lost. Slurm itself waits 300 s
# for a silent node (SlurmdTimeout).
BEAT_S, SILENCE_S = 5.0, 60.0
# Modules may lie on a slow disk.
SHELL_S = 120.0
# Folder of the links with plain names, in the private folder on a node.
NAMES = "names"


class DaemonRequest(Strict):
    """One process to start.

    Attributes:
        secret_env: variable -> the 0600 file with its value.
        devices: positions in the node's list of devices; None for all.
        modules: environment modules to load first, in a login shell.
        launcher: the command that starts it on its node; empty: started here.
        silence_s: time without a heartbeat after which the remote agent stops it; None: never.
        keep: files to keep if it ends by itself behind a launcher: globs relative to ``scratch``, most important first.
        optional: its end does not end the deployment.
        container: the image in which it runs, with the paths of ``argv``; None: on the host.
        copies: path -> file of the cache to copy there before the start if the path is missing. The process also runs without it.
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
    optional: bool = False
    container: Container | None = None
    copies: dict[str, str] = {}


def through_launcher(request: DaemonRequest, path: Path) -> tuple[list[str], dict[str, str]]:
    """Return command line and environment of the launcher. The node reads the request from the file ``path``."""
    argv = [*request.launcher, sys.executable, "-m", "servemark.supervisor.remote", str(path.absolute())]
    return argv, launcher_environment() | children.python_path()


def launcher_environment() -> dict[str, str]:
    """Return this process's environment without the variables of its Slurm step."""
    return {name: value for name, value in without_step(passed_on.clean_environment()).items() if name != VISIBLE}


def without_step(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the options of launchers and MPI libraries."""
    return {name: value for name, value in env.items() if name in _KEPT or not name.startswith(_STEP_VARIABLES)}


def prepared(request: DaemonRequest, marks: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Make the process's copies; return its command line and environment, outside or in its image. Call this on the process's node.

    Args:
        marks: variables by which servemark finds the process.

    Raises:
        OSError: a secret's file cannot be read, or a folder in the image cannot be made.
    """
    env = {**environment(request), **marks}
    for path, source in request.copies.items():
        with contextlib.suppress(OSError):
            if not os.path.exists(path):
                write_atomically(path, Path(source).read_bytes())
    if request.container is None:
        return command(request), env
    given = {*request.env, *request.secret_env, *TEMPORARY, *marks}
    folders = [Path(request.log).parent, *([Path(request.scratch).parent] if request.scratch else [])]
    argv, env = entering.enter(request.container, request.argv, env, given=given, folders=folders)
    return with_modules(argv, request.modules), env


def environment(request: DaemonRequest) -> dict[str, str]:
    """Return the process's environment; call this on the process's node.

    The tools of its interpreter's environment (ninja) come first in PATH. Temporary files go to ``scratch``. In an image, the image's PATH
    takes the place of this one.

    Raises:
        OSError: a secret's file cannot be read.
    """
    asked = dict(request.env)
    if request.scratch:
        root = Path(request.scratch).parent
        asked = dict.fromkeys(TEMPORARY, request.scratch) | asked | plain_caches(asked, root)
    env = without_step(passed_on.clean_environment(asked))
    if request.container is None:
        env = passed_on.with_tools_of(request.argv[0], env)
    if scratch := request.scratch:
        env = home.replaced(env, lambda: Path(scratch))
    env |= {name: Path(file).read_text().strip() for name, file in request.secret_env.items()}
    if request.devices is not None and (chosen := visible(os.environ, request.devices)):
        env[VISIBLE] = chosen
    return env


def visible(env: Mapping[str, str], devices: Sequence[int]) -> str | None:
    """Return the value of CUDA_VISIBLE_DEVICES that selects ``devices``, positions in its present list; None to leave it unchanged.

    Slurm may name devices by UUID, so entries of the list are selected and not renumbered. A value that hides all GPUs stays.
    """
    value = env.get(VISIBLE)
    if value is None:
        return ",".join(map(str, devices)) if Path("/dev/nvidiactl").exists() else None
    if visible_gpus.names_nothing(value):
        return None
    given = [word.strip() for word in value.split(",") if word.strip()]
    return ",".join(given[index] for index in devices)


def command(request: DaemonRequest) -> list[str]:
    """Return the process's command line, with its modules."""
    program, *arguments = request.argv
    if request.scratch:
        program = plain_interpreter(program, Path(request.scratch).parent)
    return with_modules([program, *arguments], request.modules)


def with_modules(argv: Sequence[str], modules: Sequence[str]) -> list[str]:
    """Return a command line that loads modules and then runs ``argv``, whose folder stays first in PATH.

    It uses a login shell, because sites define `module` only there.
    """
    if not modules:
        return list(argv)
    script = (
        'n=$1; shift; while [ "$n" -gt 0 ]; do module load "$1" || { echo "servemark: module load $1 failed" >&2; exit 97; }; '
        'shift; n=$((n-1)); done; case $1 in /*) PATH=${1%/*}:$PATH;; esac; exec "$@"'
    )
    return ["bash", "-lc", script, "bash", str(len(modules)), *modules, *argv]


def which(program: str, modules: Sequence[str]) -> str | None:
    """Return the path of a program in the PATH after its modules are loaded; None if it is not there.

    Raises:
        OSError: no shell can be started.
        subprocess.SubprocessError: the shell does not respond.
    """
    argv = with_modules(["/bin/sh", "-c", 'command -v "$1"', "sh", program], modules)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SHELL_S, env=passed_on.clean_environment())
    return done.stdout.strip() or None


def is_plain(path: str | Path) -> bool:
    """Return whether a shell needs no quotes around the path."""
    return shlex.quote(str(path)) == str(path)


def plain(folder: Path, root: Path) -> Path:
    """Return ``folder``, or a link to it below the private folder ``root`` if its name has special characters.

    Raises:
        OSError: the link cannot be made, or other users can write to ``root``.
    """
    if is_plain(folder):
        return folder
    try:
        private(root)
    except ServemarkError as error:
        raise PermissionError(str(error)) from error
    link = root / NAMES / hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    if not (link.is_symlink() and os.readlink(link) == str(folder)):
        link.parent.mkdir(mode=0o700, exist_ok=True)
        # Several processes may do this at the same time.
        new = link.with_name(f"{link.name}.{secrets.token_hex(4)}")
        new.symlink_to(folder)
        new.replace(link)
    return link


def plain_interpreter(python: str, root: Path) -> str:
    """Return the interpreter's path, through a link if the path has special characters."""
    path = Path(python)
    return str(plain(path.parents[1], root) / path.relative_to(path.parents[1])) if len(path.parents) > 2 else python


def plain_caches(env: dict[str, str], root: Path) -> dict[str, str]:
    """Return the variables of ``env`` that name compile caches with special characters, now with plain names."""
    found = {}
    for name in COMPILE_CACHES:
        if name in env and not is_plain(env[name]):
            folder = Path(env[name])
            # Programs cannot create a folder through a dangling link.
            linked = folder.parent if is_plain(folder.name) else folder
            linked.mkdir(parents=True, exist_ok=True)
            found[name] = str(plain(linked, root) / folder.relative_to(linked))
    return found
