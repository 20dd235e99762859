"""Fixtures: a cluster with everything switched on, a checkout that was planned on it once, and a copy of it for each test."""

from __future__ import annotations

import compileall
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from sandbox import Options, Sandbox, why_unavailable
from scheduled_checkout import ScheduledCheckout

from integration import harness
from standin import make_prefix


@pytest.fixture(scope="session")
def disk() -> Iterator[Path]:
    """A folder that every node of every sandbox sees, as they do not see each other's /tmp."""
    with tempfile.TemporaryDirectory(prefix="sm-wf-", dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def site(disk: Path) -> Iterator[Sandbox]:
    """Two nodes with pretended GPUs and one without; accounts enforced; preemption; a lost node is missed soon."""
    import os

    options = Options(client_node=True, preemption=True, kill_wait=5, slurmd_timeout=4, requeue_wait=5, qos=("urgent",), accounts=("research", "teaching"))
    if reason := why_unavailable(options):
        if os.environ.get("SERVEMARK_REQUIRE_SLURM") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    with Sandbox(disk / "site", options) as sandbox:
        yield sandbox
    assert sandbox.leftovers() == []


@pytest.fixture(scope="session")
def planned(site: Sandbox, disk: Path) -> ScheduledCheckout:
    """A checkout in which the nodes' hardware, the environment and the model were looked at. Not to be run in; it is copied."""
    prefix = make_prefix(disk / "standin")
    path = disk / "planned"
    path.mkdir()
    harness.copy_parts(path)
    compileall.compile_dir(path / "workflow" / "lib", quiet=1)
    compileall.compile_dir(prefix / "lib", quiet=1)
    checkout = ScheduledCheckout(site, path, harness.basic_config(prefix, disk / "cache"))
    done = checkout.run("--until", "check_environment", "stage_weights")
    assert done.rc == 0, done.text
    checkout.assert_nothing_left()
    return checkout


@pytest.fixture
def checkouts(planned: ScheduledCheckout, disk: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., ScheduledCheckout]]:
    """Makes checkouts of one's own, up to the point where deployments are planned."""
    made: list[ScheduledCheckout] = []

    def make(cluster: Sandbox | None = None) -> ScheduledCheckout:
        path = Path(tempfile.mkdtemp(prefix="c", dir=disk)) / "checkout"
        shutil.copytree(planned.path, path)
        shutil.rmtree(path / "results" / harness.RUN / "slurm")  # what was submitted there is the other one's
        made.append(ScheduledCheckout(cluster or planned.cluster, path, planned.config))
        return made[-1]

    yield make
    for checkout in made:
        with contextlib.suppress(RuntimeError):
            checkout.close()


@pytest.fixture
def checkout(checkouts: Callable[..., ScheduledCheckout]) -> ScheduledCheckout:
    """A checkout of one's own, up to the point where deployments are planned."""
    return checkouts()
