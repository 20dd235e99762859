"""``make setup`` and a model environment in an odd folder, without a network, from the folder that ``servemark bundle`` fills.

Root runs the offline part in a network namespace without interfaces. Other users get a package index that does not respond.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from builders import odd_folder
from integration import harness
from servemark.environments import lockfiles
from servemark.records import Environment

OFF = ["unshare", "--net"] if os.geteuid() == 0 else []
# The build of cpu-shim needs setuptools. numpy has a wheel for each machine.
SMALL = ("numpy", "setuptools", "typing-extensions")
DEAD = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "LC_ALL": "C"}


def small_lock(checkout: Path) -> None:
    """Reduce the checkout's ``cpu.lock`` to a few packages with their hashes."""
    path = checkout / "envs" / "cpu.lock"
    entries = re.split(r"^(?=\S)", path.read_text(), flags=re.MULTILINE)
    kept = [entry for entry in entries if entry.partition("==")[0] in SMALL]
    assert len(kept) == len(SMALL)
    path.write_text("".join(kept))


def test_make_setup_needs_only_the_files_in_the_lock(tmp_path: Path) -> None:
    connected, bundle = tmp_path / "connected", tmp_path / "bundle"
    connected.mkdir()
    harness.copy_parts(connected)
    small_lock(connected)
    # The connected machine.
    servemark = str(Path(sys.executable).with_name("servemark"))
    subprocess.run([servemark, "bundle", "cpu", str(bundle)], cwd=connected, check=True, timeout=300)
    locks = [lockfiles.of_setup(connected / "envs")["workflow"], lockfiles.table(connected / "envs")["cpu"]]
    assert len(list(bundle.glob("*.whl"))) == len({package for lock in locks for package in lock.packages()})

    # The cluster.
    checkout = tmp_path / odd_folder.NAME / "checkout"
    checkout.mkdir(parents=True)
    harness.copy_parts(checkout)
    shutil.copy(harness.ROOT / "Makefile", checkout)
    small_lock(checkout)
    # Without the variables of the `make` that may have started these tests: it warns of jobs that are not its own.
    outside = ("PIP_", "PYTHON", "LC_", "LANG", "MAKE", "MFLAGS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(outside)}
    # The system's Python if its version fits: its old pip warns about things that newer ones refuse.
    plain = "/usr/bin/python3.11"
    python = plain if Path(plain).exists() else sys.executable
    argv = [*OFF, "make", "setup", f"PYTHON={python}"]
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(bundle)}
    done = subprocess.run(argv, cwd=checkout, env=kept | DEAD | offline, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1
    for argv in ([".venv/bin/servemark", "check"], [".venv/bin/snakemake", "--version"]):
        said = subprocess.run(argv, cwd=checkout, env=kept | {"LC_ALL": "C"}, capture_output=True, timeout=60)
        assert said.returncode == 0, said.stderr

    config = yaml.safe_load((checkout / "config" / "config.yaml").read_text())
    # Not in the odd folder: setuptools, which builds cpu-shim, expands a `$` in its own path.
    config |= {"run": "offline", "cache": str(tmp_path / "cache")}
    config["environments"] = {name: {"lock": "cpu", "wheels": str(bundle)} for name in config["environments"]}
    until = ["--until", "stage_weights", "build_environment"]
    argv = [*OFF, ".venv/bin/snakemake", "--profile", "profiles/local", "--configfile", "my.yaml", *until]

    def build() -> Path:
        (checkout / "my.yaml").write_text(yaml.safe_dump(config))
        built = subprocess.run(argv, cwd=checkout, env=kept | DEAD, capture_output=True, text=True, timeout=300)
        assert built.returncode == 0, built.stdout + built.stderr
        (path,) = (checkout / "results" / "offline" / "environments").glob("*/environment.json")
        return path

    record = Environment.read(build())
    assert (record.lock, record.packages) == ("cpu", len(SMALL) + 1), "and cpu-shim"
    written = build().stat().st_mtime_ns
    # Where the wheels were is no property of the environment: nothing runs again.
    shutil.rmtree(bundle)
    config["environments"] = {name: {"lock": "cpu"} for name in config["environments"]}
    assert build().stat().st_mtime_ns == written
