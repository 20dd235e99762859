"""The folder of compiled modules for an environment that does not keep them next to its sources.

pip --no-compile, uv and most container images install without bytecode. Python adds it when it first imports a module, unless it may not
write there or PYTHONDONTWRITEBYTECODE is set. Then every process compiles every module again (seconds: docs/explanation/start-up.md).
PYTHONPYCACHEPREFIX names a folder of ours instead. Python checks each file there against size and time of its source.
"""

from __future__ import annotations

import os
from pathlib import Path

from servemark.environments.build import ask
from servemark.errors import EnvironmentRefused
from servemark.files import storage
from servemark.progress import Progress
from servemark.records import Environment

FOLDER = "bytecode"
# The largest packages that a start imports. find_spec imports nothing for a top-level name.
_KEPT = """
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


def placed(environment: Environment, cache: Path, progress: Progress) -> Environment:
    """Return the record with the folder of its bytecode. Users have separate folders, because Python runs bytecode unread.

    Raises:
        EnvironmentRefused: the interpreter does not respond, or the folder cannot be made or belongs to another user.
    """
    if ask(Path(environment.python), _KEPT):
        return environment
    folder = (cache / f"{FOLDER}-{os.getuid()}" / environment.digest[:16]).absolute()
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
            do="Make the cache writable for you, name another (`cache`), or set PYTHONPYCACHEPREFIX to a folder of your own.",
            reason="bytecode_folder",
        ) from None
    progress.say(f"Python cannot keep compiled modules next to the packages of {environment.prefix}: they go to {folder}")
    return environment.model_copy(update={"bytecode": str(folder)})


def variables(environment: Environment) -> dict[str, str]:
    """Return the variables with which a process of the environment finds and keeps bytecode. Python ignores an empty one."""
    return {"PYTHONPYCACHEPREFIX": environment.bytecode, "PYTHONDONTWRITEBYTECODE": ""} if environment.bytecode else {}
