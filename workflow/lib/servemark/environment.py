"""Environments that run vLLM: built from a hash-locked list into a content-addressed prefix, or one that exists.

A prefix is built in place (its scripts hold its path) under a file lock that the kernel releases if we die, and is finished when
its marker is there; a prefix without marker is a half-built one and is built anew.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from servemark import processes
from servemark.children import LifelineWatch, run_tool
from servemark.errors import EnvironmentRefused
from servemark.progress import Progress
from servemark.records import Environment, EnvironmentCheck

MARKER = "servemark-environment.json"
INSIDE = Path(__file__).parent / "inside"
_PACKAGES = """
import importlib.metadata as m, json, platform
packages = sorted({f"{d.metadata['Name']}=={d.version}" for d in m.distributions()})
print(json.dumps({"python": platform.python_version(), "packages": packages}))
"""


@dataclass(frozen=True)
class Lock:
    """One hash-locked list: where it is, and for which interpreter and machine it was made."""

    name: str
    requirements: Path
    shim: Path | None
    python: tuple[int, int]
    machine: str

    @classmethod
    def find(cls, name: str, envs: Path) -> Lock:
        """The lock of this name in ``envs/``; the config has checked that the name is one we have."""
        return cls(name, envs / f"{name}.lock", envs / "cpu-shim", (3, 11), "x86_64")

    def digest(self) -> str:
        """sha256 over everything that decides what is installed."""
        sha = hashlib.sha256(f"{self.python} {self.machine}\n".encode())
        for file in (self.requirements, *sorted((self.shim or Path("/nonexistent")).glob("*"))):
            if file.is_file():
                sha.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
        return sha.hexdigest()

    def check_host(self, version: tuple[int, int], machine: str) -> None:
        """Refuse an interpreter or machine the lock was not made for.

        Raises:
            EnvironmentRefused: names what was found, what is needed and the way out.
        """
        if (version, machine) != (self.python, self.machine):
            raise EnvironmentRefused(
                f"The environment list {self.requirements} is for CPython {self.python[0]}.{self.python[1]} on {self.machine}; "
                f"this is CPython {version[0]}.{version[1]} on {machine}.",
                look=str(self.requirements.parent / "README.md"),
                do="Set the workflow up with that Python (rm -r .venv; make setup PYTHON=python3.11), or give environments.NAME.prefix, "
                "the path of an environment that already has vLLM.",
                reason="no_lock_fits",
            )


def build(
    name: str, lock: Lock, cache: Path, *, log: Path, timeout_s: float, progress: Progress, watch: LifelineWatch
) -> Environment:
    """Build the locked environment, or find the one that was built before.

    Raises:
        EnvironmentRefused: wrong interpreter, or pip failed; its own words are quoted.
    """
    lock.check_host(sys.version_info[:2], platform.machine())
    digest = lock.digest()
    prefix = (cache / "environments" / f"{lock.name}-{digest[:12]}").absolute()
    prefix.parent.mkdir(parents=True, exist_ok=True)
    guard = FileLock(f"{prefix}.lock")
    while True:
        try:
            guard.acquire(timeout=1)
            break
        except Timeout:
            progress.waiting("waiting: another run builds this environment")
    try:
        marker = prefix / MARKER
        if marker.exists():
            found = Environment.read(marker)
            progress.say(
                f"environment {lock.name} exists already ({found.packages} packages, {found.size_mib:.0f} MiB)"
            )
            # The checkout may have been moved: the marker's path is the old one.
            place = {"prefix": str(prefix), "python": str(prefix / "bin" / "python")}
            return found.model_copy(update={"name": name, "seconds": 0.0, **place})
        begin = time.monotonic()
        if prefix.exists():
            progress.say("removing a half-built environment")
            shutil.rmtree(prefix)
        _install(lock, prefix, log=log, timeout_s=timeout_s, progress=progress, watch=watch)
        packages = list_packages(prefix / "bin" / "python")
        size = sum(f.stat().st_size for f in prefix.rglob("*") if f.is_file() and not f.is_symlink()) / 2**20
        record = Environment(
            name=name,
            origin="lock",
            digest=digest,
            prefix=str(prefix),
            python=str(prefix / "bin" / "python"),
            lock=lock.name,
            packages=len(packages["packages"]),
            seconds=round(time.monotonic() - begin, 2),
            size_mib=round(size, 1),
        )
        record.write(marker)
        return record
    finally:
        guard.release()


def _install(
    lock: Lock, prefix: Path, *, log: Path, timeout_s: float, progress: Progress, watch: LifelineWatch
) -> None:
    wanted = len(re.findall(r"^[A-Za-z0-9].*==", lock.requirements.read_text(), re.MULTILINE))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(prefix / "bin" / "python"),
        "install",
        "--no-deps",
        "--no-input",
        "--no-compile",
    ]
    steps = [
        ("making the environment", [sys.executable, "-m", "venv", "--without-pip", str(prefix)]),
        (
            f"installing {wanted} locked packages",
            [*pip, "--require-hashes", "--only-binary", ":all:", "-r", str(lock.requirements)],
        ),
    ]
    if lock.shim:
        # pip builds in the source folder: build a copy, so that the checkout stays clean and two builds never meet. The
        # lock has setuptools, so that no build isolation, and thus no network, is needed.
        copy = prefix / "shim"
        steps.append(("repairing the CPU build", [*pip, "--no-build-isolation", "--no-index", str(copy)]))
    env = processes.clean_environment({"PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    for words, argv in steps:
        if words.startswith("repairing"):
            assert lock.shim is not None
            shutil.copytree(
                lock.shim, prefix / "shim", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
            )
        progress.say(words)

        def tell(words: str = words) -> None:
            progress.waiting(words)

        result = run_tool(argv, log=log, env=env, timeout_s=timeout_s, watch=watch, check=tell)
        if result.exit_code != 0 or result.stopped:
            raise _pip_refusal(words, log, result.stopped)


def _pip_refusal(words: str, log: Path, stopped: str | None) -> EnvironmentRefused:
    lines = log.read_text(errors="replace").splitlines()
    quoted = [line for line in lines if re.match(r"\s*ERROR:|error:", line)][:3] or lines[-3:]
    do = "Read the log; run again when the cause is mended: what was downloaded is kept by pip."
    if any("+cpu" in line for line in quoted):
        do = "Your pip does not know PyTorch's CPU index: envs/README.md says how to tell it."
    elif any("hash" in line.lower() for line in quoted):
        do = "A package is not the one that was locked: your index serves other files. Do not use them; ask its keeper."
    cause = stopped or "; ".join(line.strip() for line in quoted)
    return EnvironmentRefused(
        f"The environment could not be built: {words} failed: {cause}", look=str(log), do=do, reason="build_failed"
    )


def use_prefix(name: str, prefix: Path) -> Environment:
    """Describe an existing environment; its digest is over the packages it has.

    Raises:
        EnvironmentRefused: no interpreter there, or it does not run.
    """
    python = prefix.absolute() / "bin" / "python"
    if not python.exists():
        raise EnvironmentRefused(
            f"environments.{name}.prefix: there is no interpreter {python}.",
            do="Give the folder of a Python environment, the one that holds bin/python.",
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
    """See that an existing environment still has the packages that it was described with; one built here never changes.

    Raises:
        EnvironmentRefused: it has others: figures would go by the wrong name.
    """
    if environment.origin == "prefix" and _digest(list_packages(Path(environment.python))) != environment.digest:
        raise EnvironmentRefused(
            f"The packages of {environment.prefix} have changed since this run described it.",
            do=f"Delete results/RUN/environments/{environment.name}/environment.json and run again: it is described anew, and what it "
            "serves is measured anew.",
            reason="environment_changed",
        )


def _digest(packages: dict) -> str:
    return hashlib.sha256(json.dumps(packages, sort_keys=True).encode()).hexdigest()


def list_packages(python: Path) -> dict:
    """The interpreter's version and its installed distributions as ``name==version``."""
    done = subprocess.run(
        [str(python), "-c", _PACKAGES], capture_output=True, text=True, env=processes.clean_environment()
    )
    if done.returncode != 0:
        raise EnvironmentRefused(f"{python} does not run: {done.stderr.strip()[-300:]}", reason="prefix_broken")
    return json.loads(done.stdout)


def check(
    environment: Environment, *, needs_ray: bool, log: Path, progress: Progress, watch: LifelineWatch
) -> EnvironmentCheck:
    """Ask the environment's own interpreter what it can do: imports, versions, a tensor, the server's options.

    Raises:
        EnvironmentRefused: an import fails, or Ray is asked for and missing.
    """
    facts_file = log.with_suffix(".facts.json")
    facts_file.unlink(missing_ok=True)
    env = processes.clean_environment({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"})
    steps = {
        "importing torch, vLLM and Ray": [environment.python, str(INSIDE / "check_environment.py"), str(facts_file)],
        "asking vLLM for its options": [environment.python, "-m", "vllm.entrypoints.cli.main", "serve", "--help=all"],
    }
    for words, argv in steps.items():
        progress.say(words)
        target = log if "importing" in words else log.with_suffix(".help.txt")
        target.unlink(missing_ok=True)
        result = run_tool(argv, log=target, env=env, timeout_s=600, watch=watch)
        if result.exit_code != 0 or result.stopped:
            last = target.read_text(errors="replace").strip().splitlines()[-1:] or ["(no output)"]
            raise EnvironmentRefused(
                f"The environment {environment.name} ({environment.prefix}) does not work: {words} failed: {last[0]}",
                look=str(target),
                do="Mend it (the log has its words), or give another environments.NAME.prefix."
                if environment.origin == "prefix"
                else f"Delete {environment.prefix} and results/RUN/environments/{environment.name}/environment.json and run "
                "again: it is built anew.",
                reason="environment_broken",
            )
    facts = json.loads(facts_file.read_text())
    facts_file.unlink()
    if needs_ray and not facts["ray"]:
        raise EnvironmentRefused(
            f"The environment {environment.name} has no Ray, and a deployment asks for executor: ray.",
            do="Install ray there (vLLM no longer brings it along), or use executor: mp.",
            reason="ray_missing",
        )
    options = tuple(
        sorted(set(re.findall(r"--([a-z][a-z0-9-]+)", log.with_suffix(".help.txt").read_text(errors="replace"))))
    )
    return EnvironmentCheck(name=environment.name, digest=environment.digest, serve_options=options, **facts)
