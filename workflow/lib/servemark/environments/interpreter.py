"""Ask the interpreter of an environment, on the host or in a container image."""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from servemark.containers import entering
from servemark.environments.installed import Interpreter
from servemark.errors import EnvironmentRefused
from servemark.records import Container
from servemark.supervisor import process_request
from servemark.variables import passed_on

RESPONSE_S = 300
"""Long enough for the first read of an environment on a shared disk."""

# Without the standard library; a folder with two names (lib64) once.
_INTERPRETER = """
import importlib.metadata as m, json, os, platform, sys, sysconfig
packages = sorted({f"{d.metadata['Name']}=={d.version}" for d in m.distributions()})
own = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
found = [os.path.realpath(entry) for entry in sys.path if entry and os.path.basename(entry) != "lib-dynload" and os.path.exists(entry)]
path = [entry for entry in dict.fromkeys(found) if entry not in own]
print(json.dumps({"python": platform.python_version(), "packages": packages, "path": path}))
"""


def ask(python: Path, image: Container | None = None, modules: Sequence[str] = ()) -> Interpreter:
    """Return what an environment's interpreter reports about itself. ``image``, ``modules``: see :func:`run`."""
    found: dict[str, Any] = run_code(python, _INTERPRETER, image, modules)
    return Interpreter(python=found["python"], packages=tuple(found["packages"]), path=tuple(found["path"]))


def run_code(python: Path, code: str, image: Container | None = None, modules: Sequence[str] = ()) -> Any:
    """Run code in an environment's interpreter and return the JSON of its last line. A .pth file may print lines before it.

    Raises:
        EnvironmentRefused: the interpreter does not run or respond, or its last line is not JSON.
    """
    output = run([str(python), "-c", code], image, modules).strip()
    try:
        return json.loads((output.splitlines() or [""])[-1])
    except ValueError:
        raise _broken(str(python), image, f"prints something unexpected: {output[-300:]}") from None


def run(argv: Sequence[str], image: Container | None, modules: Sequence[str] = ()) -> str:
    """Run a program of an environment and return its output.

    Args:
        image: the image that holds the program; None: the host.
        modules: environment modules that bring the runtime of the image.

    Raises:
        EnvironmentRefused: it does not run or respond.
    """
    env, program = passed_on.clean_environment(), argv[0]
    try:
        with tempfile.TemporaryDirectory() as home:
            if image:
                argv, env = entering.enter(image, argv, env | {"TMPDIR": home})
                argv = process_request.with_modules(argv, modules)
            done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=RESPONSE_S)
        if done.returncode == 0:
            return done.stdout
        what = f"does not run: {done.stderr.strip()[-300:]}"
    except subprocess.TimeoutExpired:
        what = f"does not respond within {RESPONSE_S} s"
    except OSError as error:
        what = f"cannot be started: {error.strerror}"
    raise _broken(program, image, what)


def _broken(program: str, image: Container | None, what: str) -> EnvironmentRefused:
    where = f" in {image.place} ({image.runtime})" if image else ""
    do = "Run it by hand there and repair the environment, or use another one."
    return EnvironmentRefused(f"{program}{where} {what}", do=do, reason="prefix_broken")
