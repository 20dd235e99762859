"""Fixtures of several unit tests: waiting, recorded progress, the stand-ins, and deployments that run stage by stage."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.deployed import Deployment, Told
from builders.families import family, sleeper  # noqa: F401 - fixtures
from builders.parsed_rules import Rule, parsed_rules
from builders.standin_slurm import StandinSlurm
from servemark.environments import build
from servemark.files import private
from servemark.processes import identity
from servemark.processes.children import OwnerWatch
from servemark.progress import Progress
from servemark.records import Environment
from servemark.supervisor import ownership, process_request
from snakemake_executor_plugin_slurm_guarded.errors import TERMS
from standin import make_prefix


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "deploy" in getattr(item, "fixturenames", ()):
            item.add_marker("live")


@pytest.fixture(autouse=True)
def _own_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the executor's terms after each test: servemark replaces them, and the executor's own tests expect the original ones."""
    for name, term in TERMS.items():
        monkeypatch.setitem(TERMS, name, term)


@pytest.fixture
def told(tmp_path) -> Told:
    return Told(tmp_path / "progress.jsonl")


@pytest.fixture
def killed_at_the_end() -> Iterator[Callable[[Any], Any]]:
    """Return a function that returns its argument and kills the argument's ``process`` after the test."""
    made: list[Any] = []
    yield lambda thing: made.append(thing) or thing
    for thing in made:
        thing.process.kill()
        thing.process.wait()


@pytest.fixture
def wait_for() -> Callable[..., None]:
    """Wait until a condition holds, and fail when it does not in time."""

    def wait(condition: Callable[[], object], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            time.sleep(0.02)

    return wait


@pytest.fixture(scope="session")
def rules(tmp_path_factory) -> dict[str, Rule]:
    """The rules as Snakemake parses them."""
    return parsed_rules(tmp_path_factory.mktemp("parsed"))


@pytest.fixture(scope="session")
def built_run(tmp_path_factory):
    """A run from per-request results to its sealed archive; tests change copies of it."""
    # Here, because pandas takes a second to load and most tests do without.
    from builders.archived_run import ArchivedRun

    run = ArchivedRun(tmp_path_factory.mktemp("built"))
    run.seal()
    return run


@pytest.fixture
def run(built_run, tmp_path, monkeypatch):
    """A copy of ``built_run``; see ``archived_run.copy_of``."""
    from builders.archived_run import copy_of

    with copy_of(built_run, tmp_path, monkeypatch) as run:
        yield run


@pytest.fixture(scope="session")
def watch() -> OwnerWatch:
    """A watch on this process as the owner process: it never ends a tool."""
    return OwnerWatch(identity.myself())


@pytest.fixture(scope="session")
def standin(tmp_path_factory) -> Environment:
    """The stand-in of a vLLM environment."""
    prefix = make_prefix(tmp_path_factory.mktemp("standin") / "prefix")
    return build.use_prefix("standin", prefix, None, Progress(None, "build_environment"))


@pytest.fixture
def nowhere(monkeypatch) -> None:
    """Put this process outside of any job, without CUDA_VISIBLE_DEVICES."""
    for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURMD_NODENAME", ownership.VARIABLE, process_request.VISIBLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def slurm(tmp_path, monkeypatch, nowhere) -> StandinSlurm:
    """Make this process the batch step of a job on node1 and node2, which are this machine."""
    return StandinSlurm.install(tmp_path / "slurm", monkeypatch)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A private folder with a short path: the name of a socket has at most 107 bytes, and tmp_path is long."""
    path = Path(tempfile.mkdtemp(prefix="servemark-test-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def deploy(tmp_path, short_path, standin, told, watch, monkeypatch, nowhere):
    """Make deployments with their own machine lock and scratch folders; end all of their processes after the test."""
    root = short_path / "machine"
    root.mkdir(mode=0o700)
    monkeypatch.setenv(private.RUNTIME_VARIABLE, str(root))
    monkeypatch.setenv(identity.OWNER_PROCESS_VARIABLE, str(identity.myself()))
    made: list[Deployment] = []

    def make(**given: Any) -> Deployment:
        made.append(Deployment(**({"root": tmp_path, "environment": standin, "told": told, "watch": watch} | given)))
        return made[-1]

    yield make
    for deployment in made:
        deployment.end()


@pytest.fixture
def standin_copy(tmp_path, standin) -> Environment:
    """A copy of the stand-in, which the test may change."""
    prefix = tmp_path / "prefix"
    shutil.copytree(standin.prefix, prefix, symlinks=True)
    return standin.model_copy(update={"prefix": str(prefix), "python": str(prefix / "bin" / "python")})
