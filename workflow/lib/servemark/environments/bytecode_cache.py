"""A folder of compiled modules for an environment whose own folders Python cannot write.

pip --no-compile, uv and most container images install no bytecode. If Python cannot write it either, or PYTHONDONTWRITEBYTECODE is set,
every process compiles every module again (seconds: docs/explanation/start-up.md). servemark then sets PYTHONPYCACHEPREFIX to a folder in
the cache. Python compares each file there with size and time of its source.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from servemark.environments.interpreter import run_code
from servemark.errors import EnvironmentRefused
from servemark.files import storage
from servemark.progress import Progress
from servemark.records import Environment

FOLDER = "bytecode"
# Checks the largest packages that a server imports. find_spec does not import a top-level package.
_KEEPS_BYTECODE = """
import importlib.util, json, os, sys
def kept(name):
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.cached or os.path.exists(spec.cached):
        return True
    folder = os.path.dirname(spec.cached)
    folder = folder if os.path.isdir(folder) else os.path.dirname(folder)
    return not sys.dont_write_bytecode and os.access(folder, os.W_OK)
print(json.dumps(sys.pycache_prefix is not None or all(map(kept, ("torch", "vllm", "transformers", "numpy")))))
"""


def placed(environment: Environment, cache: Path, progress: Progress, modules: Sequence[str] = ()) -> Environment:
    """Return the record with its bytecode folder, if it needs one. Each user has a folder, because Python runs bytecode unchecked.

    Raises:
        EnvironmentRefused: the interpreter does not respond, or the folder cannot be made or belongs to another user.
    """
    if run_code(Path(environment.python), _KEEPS_BYTECODE, environment.container, modules):
        return environment
    # By its place, not its digest: an edited file needs one new compiled module, not all.
    place = hashlib.sha256(environment.prefix.encode()).hexdigest()[:16]
    folder = (cache / f"{FOLDER}-{os.getuid()}" / place).absolute()
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.parent.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder.parent} belongs to another user")
        folder.parent.chmod(0o700)
        folder.mkdir(exist_ok=True)
    except OSError as error:
        why = storage.refusal(error, folder)
        raise EnvironmentRefused(
            f"The folder for Python's compiled modules, {folder}, cannot be used: {why.what if why else error}",
            do="Make the cache writable for you, set `cache` to another folder, or set PYTHONPYCACHEPREFIX to a folder of your own.",
            reason="bytecode_folder",
        ) from None
    progress.say(f"Python cannot write compiled modules next to the packages of {environment.prefix} and keeps them in {folder}")
    return environment.model_copy(update={"bytecode": str(folder)})


def variables(environment: Environment) -> dict[str, str]:
    """Return the variables by which a process of the environment finds its bytecode folder. Python ignores an empty variable."""
    return {"PYTHONPYCACHEPREFIX": environment.bytecode, "PYTHONDONTWRITEBYTECODE": ""} if environment.bytecode else {}
