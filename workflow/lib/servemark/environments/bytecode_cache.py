"""Where Python keeps the compiled modules of an environment that does not keep them beside its sources.

An environment that was installed without bytecode (pip --no-compile, uv, most container images) gets it as Python first imports each
module, unless its folders cannot be written or PYTHONDONTWRITEBYTECODE is set, as images often do. Then every process compiles
everything again. PYTHONPYCACHEPREFIX (``sys.pycache_prefix``) names a folder of ours instead. Python itself sees by each source's size
and time whether what it finds there still holds.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from servemark.errors import EnvironmentRefused
from servemark.files import storage
from servemark.progress import Progress
from servemark.records import Environment
from servemark.variables import passed_on

FOLDER = "bytecode"
_PATIENCE_S = 60
# The largest that a start imports. Nothing is imported here: find_spec looks for a top-level name alone.
_PROBE = """
import importlib.util, os, sys
def kept(name):
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.cached or os.path.exists(spec.cached):
        return True
    folder = os.path.dirname(spec.cached)
    folder = folder if os.path.isdir(folder) else os.path.dirname(folder)
    return not sys.dont_write_bytecode and os.access(folder, os.W_OK)
lacks = sys.pycache_prefix is None and not all(map(kept, ("torch", "vllm", "transformers", "numpy")))
print("lacks" if lacks else "has")
"""


def place(python: Path, digest: str, cache: Path) -> Path | None:
    """Return the folder for an environment's bytecode; None to keep it beside the sources or where the user's variable says.

    Users have folders of their own, because bytecode is run as it is found.

    Raises:
        EnvironmentRefused: the interpreter does not answer, or the folder cannot be made or is somebody else's.
    """
    asked = [str(python), "-c", _PROBE]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, env=passed_on.clean_environment(), timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise EnvironmentRefused(
            f"{python} did not say within {_PATIENCE_S} s where it keeps compiled modules.",
            do="Start it by hand; a file system that hangs is the usual cause.",
            reason="prefix_broken",
        ) from None
    except OSError as error:
        raise EnvironmentRefused(
            f"{python} cannot be started: {error.strerror}.",
            do="Start it by hand and check its permissions.",
            reason="prefix_broken",
        ) from None
    # The last line: what a .pth file of the environment prints comes before it.
    said = done.stdout.split()[-1:]
    if done.returncode != 0 or said not in (["lacks"], ["has"]):
        raise EnvironmentRefused(
            f"{python} does not run: {(done.stderr or done.stdout).strip()[-300:]}",
            do="Start it by hand and mend the environment.",
            reason="prefix_broken",
        )
    if said == ["has"]:
        return None
    folder = (cache / f"{FOLDER}-{os.getuid()}" / digest[:16]).absolute()
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.parent.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder.parent} is somebody else's")
        folder.parent.chmod(0o700)
        folder.mkdir(exist_ok=True)
    except OSError as error:
        why = storage.refusal(error, folder)
        raise EnvironmentRefused(
            f"The folder for Python's compiled modules, {folder}, cannot be used: {why.what if why else error}",
            do="Make the cache writable for you, name another (`cache`), or set PYTHONPYCACHEPREFIX to a folder of your own.",
            reason="bytecode_folder",
        ) from None
    return folder


def placed(environment: Environment, cache: Path, progress: Progress) -> Environment:
    """Return the environment's record with the folder of its bytecode, which is said where there is one."""
    folder = place(Path(environment.python), environment.digest, cache)
    if folder is None:
        return environment
    progress.say(f"Python cannot keep compiled modules beside the packages of {environment.prefix}: they go to {folder}")
    return environment.model_copy(update={"bytecode": str(folder)})


def variables(environment: Environment) -> dict[str, str]:
    """Return what a process of the environment is given, so that it finds and keeps bytecode. Python does not heed an empty variable."""
    if environment.bytecode is None:
        return {}
    return {"PYTHONPYCACHEPREFIX": environment.bytecode, "PYTHONDONTWRITEBYTECODE": ""}
