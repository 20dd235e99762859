"""Fixtures: a stand-in environment and a prepared checkout, made once; a copy of it for each test."""

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

from integration import harness
from integration.harness import Checkout
from standin import make_prefix


@pytest.fixture(scope="session")
def bare_checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Return a checkout without any run. Tests copy it and do not run in it."""
    base = tmp_path_factory.mktemp("shared")
    prefix = make_prefix(base / "standin")
    path = base / "bare"
    path.mkdir()
    harness.copy_parts(path)
    # Each script is a separate interpreter; without this, each would compile the library again. What the repository has compiled is kept.
    compileall.compile_dir(path / "workflow" / "lib", quiet=1)
    compileall.compile_dir(prefix / "lib", quiet=1)
    return Checkout(path, base / "r0", harness.basic_config(prefix, base / "cache"))


@pytest.fixture(scope="session")
def planned_checkout(bare_checkout: Checkout) -> Checkout:
    """Return a checkout with hardware, environment and model recorded. Tests copy it and do not run in it."""
    path = bare_checkout.path.with_name("planned")
    shutil.copytree(bare_checkout.path, path)
    checkout = Checkout(path, bare_checkout.runtime, bare_checkout.config)
    done = checkout.run("--until", "check_environment", "stage_weights")
    assert done.rc == 0, done.text
    return checkout


@pytest.fixture(scope="session")
def measured_checkout(planned_checkout: Checkout) -> Checkout:
    """Return a checkout with a finished run. Tests copy it and do not run in it."""
    path = planned_checkout.path.with_name("measured")
    shutil.copytree(planned_checkout.path, path)
    checkout = Checkout(path, planned_checkout.runtime, planned_checkout.config)
    done = checkout.run()
    assert done.rc == 0, done.text
    return checkout


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
