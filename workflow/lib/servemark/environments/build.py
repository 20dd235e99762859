"""Environments that run vLLM: built from a lock file into a content-addressed prefix, or an existing prefix.

A prefix is built in place, because its scripts contain its path. A prefix without its marker file is unfinished and built again.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from servemark.environments.lockfiles import Lock
from servemark.errors import EnvironmentRefused, ServemarkError
from servemark.files import cache_lock, storage
from servemark.processes.children import OwnerWatch, run_tool
from servemark.progress import Progress
from servemark.records import Environment
from servemark.variables import passed_on

MARKER = "servemark-environment.json"
IN_MODEL_ENV = Path(__file__).parents[1] / "in_model_env"
RESPONSE_S = 300
"""Long enough for the first read of an environment on a shared disk."""

_PACKAGES = """
import importlib.metadata as m, json, platform
packages = sorted({f"{d.metadata['Name']}=={d.version}" for d in m.distributions()})
print(json.dumps({"python": platform.python_version(), "packages": packages}))
"""


def build(name: str, lock: Lock, cache: Path, *, log: Path, timeout_s: float, progress: Progress, watch: OwnerWatch) -> Environment:
    """Build the locked environment for this interpreter and machine, or return the existing one.

    Args:
        lock: the result of :func:`servemark.environments.lockfiles.choose`.

    Raises:
        EnvironmentRefused: the disk has too little space, or pip failed. The message quotes pip.
        CacheClosed: the cache takes no files.
    """
    digest = lock.digest(sys.version_info[:2], platform.machine())
    prefix = prefix_of(lock, cache)
    if (prefix / MARKER).exists():
        return _existing(name, lock, prefix, digest, progress)
    with cache_lock.held(Path(f"{prefix}.lock"), partial(progress.waiting, "waiting: another run builds this environment")):
        if (prefix / MARKER).exists():
            return _existing(name, lock, prefix, digest, progress)
        begin = time.monotonic()
        if prefix.exists():
            progress.say("removing a half-built environment")
            shutil.rmtree(prefix)
        if shutil.disk_usage(prefix.parent).free < lock.gib * 2**30:
            raise EnvironmentRefused(
                f"Building the environment {lock.name} takes about {lock.gib} GiB in {prefix.parent}; {storage.free_words(prefix.parent)}.",
                do="Free space there, or set `cache` (in the experiment or the cluster file) to a larger disk.",
                reason="no_room",
            )
        _install(lock, prefix, log=log, timeout_s=timeout_s, progress=progress, watch=watch)
        python = prefix / "bin" / "python"
        packages = list_packages(python)["packages"]
        size = sum(f.stat().st_size for f in prefix.rglob("*") if f.is_file() and not f.is_symlink()) / 2**20
        record = Environment(
            name=name,
            origin="lock",
            digest=digest,
            prefix=str(prefix),
            python=str(python),
            lock=lock.name,
            packages=len(packages),
            installed=_digest(packages),
            seconds=round(time.monotonic() - begin, 2),
            size_mib=round(size, 1),
        )
        record.write(prefix / MARKER)
        return record


def prefix_of(lock: Lock, cache: Path) -> Path:
    """Return the folder of this lock file's environment for this interpreter and machine. A finished one contains :data:`MARKER`."""
    return (cache / "environments" / f"{lock.name}-{lock.digest(sys.version_info[:2], platform.machine())[:12]}").absolute()


def _existing(name: str, lock: Lock, prefix: Path, digest: str, progress: Progress) -> Environment:
    # The marker has the path at build time, and the checkout may have been moved.
    place = {"name": name, "prefix": str(prefix), "python": str(prefix / "bin" / "python"), "seconds": 0.0}
    found = _with_added_packages(Environment.read(prefix / MARKER).model_copy(update=place))
    progress.say(f"environment {lock.name} exists already ({found.packages} packages, {found.size_mib:.0f} MiB)")
    if found.digest != digest:
        progress.say("the environment holds packages beyond its lock file, so its results get a separate ledger key")
    return found


def _with_added_packages(built: Environment) -> Environment:
    """Return the record of a built environment, with another digest if packages such as vLLM's kernels were added."""
    if built.installed is None:  # from a version of servemark that did not record it
        return built
    packages = list_packages(Path(built.python))["packages"]
    if built.installed == (installed := _digest(packages)):
        return built
    digest = _digest([built.digest, installed])
    return built.model_copy(update={"digest": digest, "packages": len(packages), "installed": installed})


def _install(lock: Lock, prefix: Path, *, log: Path, timeout_s: float, progress: Progress, watch: OwnerWatch) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(prefix / "bin" / "python"), "install", "--no-deps", "--no-input", "--no-compile"]
    hashed = ["--require-hashes", "--only-binary", ":all:", "-r", str(lock.requirements)]
    steps = {
        "making the environment": [sys.executable, "-m", "venv", "--without-pip", str(prefix)],
        f"installing {len(lock.packages())} locked packages ({lock.wheels_gib} GiB to download)": [*pip, *hashed],
    }
    # pip keeps all downloaded wheels in its temporary folder until the end. /tmp is often too small for these GiB.
    scratch = prefix / "tmp"
    scratch.mkdir(parents=True)
    if lock.shim:
        # pip builds in the source folder, so a copy keeps the checkout clean and two builds apart. The lock file has setuptools, so
        # the build needs no isolation and no network.
        shutil.copytree(lock.shim, prefix / "shim", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
        steps["repairing the CPU build"] = [*pip, "--no-build-isolation", "--no-index", str(prefix / "shim")]
    env = passed_on.clean_environment({"PIP_DISABLE_PIP_VERSION_CHECK": "1", "TMPDIR": str(scratch)})
    for words, argv in steps.items():
        progress.say(words)
        result = run_tool(argv, log=log, env=env, timeout_s=timeout_s, watch=watch, check=partial(progress.waiting, words))
        if result.exit_code != 0 or result.stopped:
            raise _pip_refusal(words, log, result.stopped, lock, prefix)
    shutil.rmtree(scratch)


def _pip_refusal(words: str, log: Path, stopped: str | None, lock: Lock, prefix: Path) -> ServemarkError:
    lines = log.read_text(errors="replace").splitlines()
    if refused := storage.refusal(storage.stated("\n".join(lines)), prefix, needed=lock.gib * 2**30):
        return refused
    quoted = [line.strip() for line in lines if re.match(r"\s*ERROR:|error:", line)][:3] or lines[-3:]
    do = "Read the log, fix the cause and rerun: pip keeps what it downloaded."
    if any("+cpu" in line for line in quoted):
        do = "Add PyTorch's CPU index to pip's configuration: docs/reference/environments.md shows how."
    elif any("hash" in line.lower() for line in quoted):
        do = "A package differs from the locked one: your package index serves other files. Do not use them; ask its administrators."
    cause = stopped or "; ".join(quoted)
    return EnvironmentRefused(f"The environment could not be built: {words} failed: {cause}", look=str(log), do=do, reason="build_failed")


def use_prefix(name: str, prefix: Path) -> Environment:
    """Describe an existing environment. The digest covers its Python version and packages.

    Raises:
        EnvironmentRefused: there is no interpreter, or it does not run.
    """
    python = prefix.absolute() / "bin" / "python"
    if not os.path.lexists(python):
        raise EnvironmentRefused(
            f"environments.{name}.prefix: there is no interpreter {python}.",
            do="Set the folder of a Python environment, the one that holds bin/python.",
            reason="prefix_missing",
        )
    found = list_packages(python)
    return Environment(
        name=name,
        origin="prefix",
        digest=_digest(found),
        prefix=str(prefix.absolute()),
        python=str(python),
        packages=len(found["packages"]),
        seconds=0,
        size_mib=0,
    )


def verify(environment: Environment) -> None:
    """Check that an environment has the packages of its record.

    Raises:
        EnvironmentRefused: the packages differ, so results would get a wrong ledger key.
    """
    now = use_prefix(environment.name, Path(environment.prefix)) if environment.origin == "prefix" else _with_added_packages(environment)
    if now.digest != environment.digest:
        raise EnvironmentRefused(
            f"The packages of {environment.prefix} have changed since this run described it.",
            do=f"Delete results/RUN/environments/{environment.name}/environment.json and rerun: servemark describes the environment again "
            "and repeats its measurements.",
            reason="environment_changed",
        )


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def list_packages(python: Path) -> dict[str, Any]:
    """Return the interpreter's version (``python``) and its installed distributions (``packages``) as ``name==version``."""
    listed: dict[str, Any] = run_code(python, _PACKAGES)
    return listed


def run_code(python: Path, code: str) -> Any:
    """Run code in an environment's interpreter and return the JSON of its last line. A .pth file may print lines before it.

    Raises:
        EnvironmentRefused: the interpreter does not run or respond, or its last line is not JSON.
    """
    clean = passed_on.clean_environment()
    try:
        done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, env=clean, timeout=RESPONSE_S)
        if done.returncode == 0:
            return json.loads((done.stdout.strip().splitlines() or [""])[-1])
        what = f"does not run: {done.stderr.strip()[-300:]}"
    except subprocess.TimeoutExpired:
        what = f"does not respond within {RESPONSE_S} s"
    except OSError as error:
        what = f"cannot be started: {error.strerror}"
    except ValueError:
        what = f"prints something unexpected: {done.stdout.strip()[-300:]}"
    do = "Run it by hand there and repair the environment, or use another one."
    raise EnvironmentRefused(f"{python} {what}", do=do, reason="prefix_broken")
