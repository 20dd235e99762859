"""Sandboxes for the whole session, and runs of small workflows in them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from executor_run import Run
from sandbox import Options, Sandbox, why_unavailable


def _started(folder: Path, options: Options) -> Iterator[Sandbox]:
    if reason := why_unavailable(options):
        if os.environ.get("SERVEMARK_REQUIRE_SLURM") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    with Sandbox(folder, options) as sandbox:
        yield sandbox
    assert sandbox.leftovers() == []


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Start two nodes without accounting: only the controller has the states of jobs."""
    yield from _started(tmp_path_factory.mktemp("plain"), Options(accounting=False, kill_wait=3))


@pytest.fixture(scope="session")
def accounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Start two nodes with accounting, enforced accounts, and preemption."""
    yield from _started(tmp_path_factory.mktemp("accounted"), Options(preemption=True, kill_wait=3, requeue_wait=5))


@pytest.fixture
def new_run(request: pytest.FixtureRequest) -> Iterator[Callable[[Sandbox], Run]]:
    """Return a function that makes runs of ``executor.smk``, each in a new folder; the end of the test ends what is left."""
    runs: list[Run] = []

    def make(cluster: Sandbox) -> Run:
        folder = cluster.folder / "work" / f"{request.node.name.replace('[', '-').rstrip(']')}-{len(runs)}"
        folder.mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("executor.smk"), folder / "Snakefile")
        runs.append(Run(cluster, folder))
        return runs[-1]

    yield make
    for run in runs:
        run.close()
