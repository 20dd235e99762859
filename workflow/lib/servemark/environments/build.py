"""Environments that run vLLM: built from a lock file into a content-addressed prefix, or an existing prefix.

A prefix is built in place, because its scripts contain its path. A prefix without its marker file is unfinished and built again.

The lock file decides the name of the prefix. The installed files decide its identity in the ledger (``environments/installed.py``).
"""

import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from servemark.environments import images, installed
from servemark.environments.interpreter import ask
from servemark.environments.lockfiles import Lock
from servemark.errors import EnvironmentRefused, ServemarkError
from servemark.files import cache_lock, storage
from servemark.files.content import Hashes
from servemark.processes.children import OwnerWatch, run_tool
from servemark.progress import Progress
from servemark.records import Environment
from servemark.variables import passed_on

MARKER = "servemark-environment.json"
OWN_LOCK = "servemark-own.lock"
"""Copy of the user's lock file from which a prefix was built, for the archive."""
IN_MODEL_ENV = Path(__file__).parents[1] / "in_model_env"


def build(
    name: str,
    lock: Lock,
    cache: Path,
    *,
    log: Path,
    timeout_s: float,
    progress: Progress,
    watch: OwnerWatch,
    bundle: Path | None = None,
) -> Environment:
    """Build the locked environment for this interpreter and machine, or return the existing one.

    Args:
        lock: the result of :func:`servemark.environments.lockfiles.choose`.
        bundle: a folder with all wheels (``servemark bundle``): pip uses no index.

    Raises:
        EnvironmentRefused: the disk has too little space, a wheel is missing in the bundle, or pip failed. The message quotes pip.
        CacheClosed: the cache takes no files.
    """
    prefix = prefix_of(lock, cache)
    if (prefix / MARKER).exists():
        return _existing(name, lock, prefix, cache, progress)
    if bundle:
        from servemark.environments import wheels  # only here: every stage of a deployment imports this module

        progress.say(f"hashing the wheels in {bundle}")
        wheels.require(lock, bundle)
    with cache_lock.held(Path(f"{prefix}.lock"), partial(progress.waiting, "waiting: another run builds this environment")):
        if (prefix / MARKER).exists():
            return _existing(name, lock, prefix, cache, progress)
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
        _install(lock, prefix, bundle, log=log, timeout_s=timeout_s, progress=progress, watch=watch)
        built = _describe(name, prefix, cache, progress)
        size = sum(f.stat().st_size for f in prefix.rglob("*") if f.is_file() and not f.is_symlink()) / 2**20
        of_build = {"origin": "lock", "lock": lock.name, "installed": built.digest}
        record = built.model_copy(update={**of_build, "seconds": round(time.monotonic() - begin, 2), "size_mib": round(size, 1)})
        record.write(prefix / MARKER)
        return record


def prefix_of(lock: Lock, cache: Path) -> Path:
    """Return the folder of this lock file's environment for this interpreter and machine. A finished one contains :data:`MARKER`."""
    name = "own" if lock.own else lock.name
    return (cache / "environments" / f"{name}-{lock.digest(sys.version_info[:2], platform.machine())[:12]}").absolute()


def _existing(name: str, lock: Lock, prefix: Path, cache: Path, progress: Progress) -> Environment:
    marker, now = Environment.read(prefix / MARKER), _describe(name, prefix, cache, progress)
    found = now.model_copy(update={"origin": "lock", "lock": lock.name, "installed": marker.digest, "size_mib": marker.size_mib})
    progress.say(f"environment {lock.name} exists already ({found.packages} packages, {found.size_mib:.0f} MiB)")
    if marker.files is None:
        # An earlier servemark built it and did not hash its files.
        return found.model_copy(update={"installed": None})
    if found.digest != marker.digest:
        progress.say("installed files were changed or added after the build, so its results get a separate ledger key")
    return found


def _describe(name: str, prefix: Path, cache: Path | None, progress: Progress) -> Environment:
    """Return the record of an environment as it is now."""
    # The marker has the path at build time, and the checkout may have been moved.
    prefix = prefix.absolute()
    python = prefix / "bin" / "python"
    interpreter = ask(python)
    try:
        digest, files = installed.digest(interpreter, prefix, Hashes(cache, str(prefix)), progress)
    except OSError as error:
        raise EnvironmentRefused(
            f"The installed file {error.filename} of environment {name} cannot be read: {error.strerror}.",
            do="Check the disk of the environment, then rerun the same command.",
            reason="prefix_broken",
        ) from None
    return Environment(
        name=name,
        origin="prefix",
        digest=digest,
        prefix=str(prefix),
        python=str(python),
        packages=len(interpreter.packages),
        files=files,
        seconds=0,
        size_mib=0,
    )


def _install(lock: Lock, prefix: Path, bundle: Path | None, *, log: Path, timeout_s: float, progress: Progress, watch: OwnerWatch) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(prefix / "bin" / "python"), "install", "--no-deps", "--no-input", "--no-compile"]
    hashed = ["--require-hashes", "--only-binary", ":all:", "-r", str(lock.requirements)]
    source = f" (from {bundle})" if bundle else "" if lock.own else f" ({lock.wheels_gib} GiB to download)"
    if bundle:
        hashed += ["--no-index", "--find-links", str(bundle.absolute())]
    steps = {
        "making the environment": [sys.executable, "-m", "venv", "--without-pip", str(prefix)],
        f"installing {len(lock.packages())} locked packages{source}": [*pip, *hashed],
    }
    # pip keeps all downloaded wheels in its temporary folder until the end. /tmp is often too small for these GiB.
    scratch = prefix / "tmp"
    scratch.mkdir(parents=True)
    if lock.own:
        shutil.copy(lock.requirements, prefix / OWN_LOCK)
    if lock.shim:
        # pip builds in the source folder, so a copy keeps the checkout clean and two builds apart. The lock file has setuptools, so
        # the build needs no isolation and no network.
        shutil.copytree(lock.shim, prefix / "shim", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
        # A URL, because pip takes what follows a semicolon in a path as a marker.
        steps["repairing the CPU build"] = [*pip, "--no-build-isolation", "--no-index", (prefix / "shim").absolute().as_uri()]
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
    elif lock.own and (found := re.search(r"No matching distribution found for (\S+)", "\n".join(lines))):
        here = f"CPython {'.'.join(map(str, sys.version_info[:2]))} on {platform.machine()}"
        quoted = [f"your package index has no wheel of {found[1]} for {here}"]
        do = f"servemark installs wheels only. Name a version with a wheel in {lock.requirements}, or add the index that has it to pip's "
        do += "configuration."
    cause = stopped or "; ".join(quoted)
    return EnvironmentRefused(f"The environment could not be built: {words} failed: {cause}", look=str(log), do=do, reason="build_failed")


def use_prefix(name: str, prefix: Path, cache: Path | None, progress: Progress) -> Environment:
    """Describe an existing environment.

    Args:
        cache: the folder that remembers the digests of its files; None: read all of them.

    Raises:
        EnvironmentRefused: there is no interpreter, it does not run, or an installed file cannot be read.
    """
    python = prefix.absolute() / "bin" / "python"
    if not os.path.lexists(python):
        raise EnvironmentRefused(
            f"environments.{name}.prefix: there is no interpreter {python}.",
            do="Set the folder of a Python environment, the one that holds bin/python.",
            reason="prefix_missing",
        )
    return _describe(name, prefix, cache, progress)


def is_changed(environment: Environment, cache: Path, progress: Progress, modules: Sequence[str] = ()) -> bool:
    """Return whether the installed files differ from those of the record.

    Args:
        modules: environment modules that bring the runtime of an image.

    Raises:
        EnvironmentRefused: the interpreter does not run, or an installed file or an image cannot be read.
    """
    if image := environment.container:
        return images.digest_now(image, cache, progress, modules).removeprefix("sha256:") != environment.digest
    return _describe(environment.name, Path(environment.prefix), cache, progress).digest != environment.digest


def verify(environment: Environment, cache: Path, progress: Progress, modules: Sequence[str] = ()) -> None:
    """Check that an environment has the installed files of its record. ``modules``: as of :func:`is_changed`.

    Raises:
        EnvironmentRefused: they differ, so results would get a wrong ledger key.
    """
    if is_changed(environment, cache, progress, modules):
        raise EnvironmentRefused(
            f"Installed files of {environment.prefix} have changed since this run described it.",
            do="Rerun the same command: servemark describes the environment again and repeats its measurements. If its interpreter "
            f"does not run where you start snakemake, delete results/RUN/environments/{environment.name}/environment.json first.",
            reason="environment_changed",
        )
