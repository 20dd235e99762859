"""Fixtures: a stand-in environment and prepared checkouts, made once for all workers; a copy for each test."""

from __future__ import annotations

import compileall
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from integration import harness
from integration.harness import Checkout
from standin import make_prefix


@pytest.fixture(scope="session")
def bare_checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Return a checkout without any run. Tests copy it and do not run in it."""
    base = tmp_path_factory.getbasetemp()
    # The folder of a worker of pytest-xdist lies in that of the session. All workers use the same checkouts, stand-in and cache.
    base = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    base.mkdir(exist_ok=True)

    def make(path: Path) -> None:
        prefix = make_prefix(base / "standin")
        path.mkdir()
        harness.copy_parts(path)
        # Each script is a separate interpreter; without this, each would compile the library again. It keeps what the repository compiled.
        compileall.compile_dir(path / "workflow" / "lib", quiet=1)
        compileall.compile_dir(prefix / "lib", quiet=1)

    path = _made_once(base / "bare", make)
    return Checkout(path, base / "r0", harness.basic_config(base / "standin", base / "cache"))


@pytest.fixture(scope="session")
def planned_checkout(bare_checkout: Checkout) -> Checkout:
    """Return a checkout with hardware, environment and model recorded. Tests copy it and do not run in it."""
    return _after_run("planned", bare_checkout, "--until", "check_environment", "stage_weights")


@pytest.fixture(scope="session")
def measured_checkout(planned_checkout: Checkout) -> Checkout:
    """Return a checkout with a finished run. Tests copy it and do not run in it."""
    return _after_run("measured", planned_checkout)


def _after_run(name: str, source: Checkout, *arguments: str) -> Checkout:
    """Return a copy of a checkout after a run in it."""

    def make(path: Path) -> None:
        shutil.copytree(source.path, path)
        done = Checkout(path, source.runtime, source.config).run(*arguments)
        assert done.rc == 0, done.text

    return Checkout(_made_once(source.path.with_name(name), make), source.runtime, source.config)


def _made_once(path: Path, make: Callable[[Path], None]) -> Path:
    """Make a folder in the first worker that needs it; the others wait. If that fails, the next one tries again."""
    complete = path.with_name(f"{path.name}.complete")
    with FileLock(path.with_name(f"{path.name}.lock")):
        if not complete.exists():
            shutil.rmtree(path, ignore_errors=True)
            make(path)
            complete.touch()
    return path


def _copies(source: Checkout, tmp_path: Path) -> Iterator[Callable[[], Checkout]]:
    made: list[Checkout] = []
    # A short name: Ray's socket paths below it may have at most 107 bytes.
    runtime = Path(tempfile.mkdtemp(prefix="smt-", dir="/tmp"))

    def make() -> Checkout:
        path = tmp_path / f"checkout{len(made)}"
        shutil.copytree(source.path, path)
        made.append(Checkout(path, runtime, source.config))
        return made[-1]

    yield make
    for checkout in made:
        for process in checkout.processes():
            process.kill()
    shutil.rmtree(runtime, ignore_errors=True)


@pytest.fixture
def fresh(bare_checkout: Checkout, tmp_path: Path) -> Iterator[Checkout]:
    """Return a copy of the checkout without any run."""
    for make in _copies(bare_checkout, tmp_path):
        yield make()


@pytest.fixture
def real(fresh: Checkout) -> Checkout:
    """Return the fresh checkout with the environment of the cpu lock file, which is built once in the repository's cache."""
    if sys.version_info[:2] != (3, 11) or platform.machine() != "x86_64":
        reason = "the cpu lock is for CPython 3.11 on x86_64"
        if os.environ.get("SERVEMARK_REQUIRE_REAL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    fresh.config |= {"environments": {"cpu": {"lock": "cpu"}}, "cache": str(harness.ROOT / "results" / "cache")}
    return fresh


@pytest.fixture
def checkouts(planned_checkout: Checkout, tmp_path: Path) -> Iterator[Callable[[], Checkout]]:
    """Return a function that makes checkouts ready for planning; all share one machine lock."""
    yield from _copies(planned_checkout, tmp_path)


@pytest.fixture
def checkout(checkouts: Callable[[], Checkout]) -> Checkout:
    """Return a checkout that is ready for planning."""
    return checkouts()


@pytest.fixture
def measured(measured_checkout: Checkout, tmp_path: Path) -> Iterator[Checkout]:
    """Return a copy of the checkout with a finished run."""
    for make in _copies(measured_checkout, tmp_path):
        yield make()
