"""Fixtures: a cluster with everything switched on, a checkout that was planned on it once, a copy of it for each test, the fault table."""

from __future__ import annotations

import compileall
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

for folder in (Path(__file__).parent, Path(__file__).parents[1]):
    sys.path.insert(0, str(folder))
from fault_table import FaultTable, Injury
from sandbox import Options, Sandbox, why_unavailable
from scheduled_checkout import ScheduledCheckout

from integration import harness
from standin import make_prefix

SITE = Options(
    client_node=True, preemption=True, kill_wait=5, slurmd_timeout=4, requeue_wait=5, accounts=("research", "teaching")
)  # fmt: skip
# Processes are tracked by their tree, as on clusters without control groups: one that has left it outlives its job.
LOOSE = Options(accounting=False, proctrack="linuxproc", kill_wait=3)


@pytest.fixture(scope="session")
def disk() -> Iterator[Path]:
    """A folder that every node of every sandbox sees, as they do not see each other's /tmp."""
    with tempfile.TemporaryDirectory(prefix="sm-wf-", dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _started(folder: Path, options: Options) -> Iterator[Sandbox]:
    if reason := why_unavailable(options):
        if os.environ.get("SERVEMARK_REQUIRE_SLURM") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    with Sandbox(folder, options) as sandbox:
        yield sandbox
        scratch = [str(path) for path in folder.glob("nodes/*/tmp/servemark-*/*") if path.name not in ("machine.lock", "names")]
    assert sandbox.leftovers() == []
    assert scratch == [], "scratch folders that no run has removed"


@pytest.fixture(scope="session")
def site(disk: Path) -> Iterator[Sandbox]:
    """Two nodes with pretended GPUs and one without; accounts enforced; preemption; a lost node is missed soon."""
    yield from _started(disk / "site", SITE)


@pytest.fixture(scope="session")
def loose(disk: Path) -> Iterator[Sandbox]:
    """Two nodes without control groups and without accounting."""
    yield from _started(disk / "loose", LOOSE)


@pytest.fixture(scope="session")
def bare(site: Sandbox, disk: Path) -> ScheduledCheckout:
    """A checkout as a user gets it: nothing was run in it. Not to be run in; it is copied."""
    prefix = make_prefix(disk / "standin")
    path = disk / "bare"
    path.mkdir()
    harness.copy_parts(path)
    # Each script is an interpreter of its own: without this, each would compile the library again.
    compileall.compile_dir(path / "workflow" / "lib", quiet=1)
    compileall.compile_dir(prefix / "lib", quiet=1)
    config = harness.basic_config(prefix, disk / "cache")
    config["timeouts"] |= {"cluster": 40.0, "start": 90.0}
    return ScheduledCheckout(site, path, config)


@pytest.fixture(scope="session")
def planned(bare: ScheduledCheckout) -> ScheduledCheckout:
    """A checkout in which the nodes' hardware, the environment and the model were looked at. Not to be run in; it is copied."""
    path = bare.path.with_name("planned")
    shutil.copytree(bare.path, path)
    checkout = ScheduledCheckout(bare.cluster, path, bare.config)
    done = checkout.run("--until", "check_environment", "stage_weights")
    assert done.rc == 0, done.text
    checkout.assert_nothing_left()
    return checkout


MakeCheckout = Callable[..., ScheduledCheckout]


@contextlib.contextmanager
def _copies(source: ScheduledCheckout) -> Iterator[MakeCheckout]:
    made: list[ScheduledCheckout] = []

    def make(cluster: Sandbox = source.cluster) -> ScheduledCheckout:
        path = Path(tempfile.mkdtemp(prefix="c", dir=source.path.parent)) / "checkout"
        shutil.copytree(source.path, path)
        # What was submitted there is the other one's.
        shutil.rmtree(path / "results" / harness.RUN / "slurm", ignore_errors=True)
        made.append(ScheduledCheckout(cluster, path, source.config))
        return made[-1]

    try:
        yield make
    finally:
        for checkout in made:
            checkout.close()


@pytest.fixture(scope="module")
def module_checkouts(planned: ScheduledCheckout) -> Iterator[MakeCheckout]:
    """Makes checkouts, up to the point where deployments are planned, that several tests look at."""
    with _copies(planned) as make:
        yield make


@pytest.fixture
def checkouts(planned: ScheduledCheckout) -> Iterator[MakeCheckout]:
    """Makes checkouts of one's own, up to the point where deployments are planned."""
    with _copies(planned) as make:
        yield make


@pytest.fixture
def checkout(checkouts: MakeCheckout) -> ScheduledCheckout:
    """A checkout of one's own, up to the point where deployments are planned."""
    return checkouts()


@pytest.fixture
def fresh(bare: ScheduledCheckout) -> Iterator[ScheduledCheckout]:
    """A checkout of one's own, untouched."""
    with _copies(bare) as make:
        yield make()


@pytest.fixture
def queue_left_empty(site: Sandbox) -> Iterator[None]:
    """No job is left in the site's queue for the next test."""
    yield
    harness.wait_until(
        lambda: not [j for j in site.jobs() if j["state"] in ("RUNNING", "COMPLETING", "PENDING")] or _cancel_all(site),
        30,
        "no job",
    )


def _cancel_all(site: Sandbox) -> None:
    site.run(["scancel", "--user=root"])


@pytest.fixture(scope="session")
def fault_table() -> Iterator[FaultTable]:
    """Collects one row for each fault; written to the file that SERVEMARK_FAULT_TABLE names, if it names one."""
    table = FaultTable()
    yield table
    if path := os.environ.get("SERVEMARK_FAULT_TABLE"):
        Path(path).write_text(table.markdown())


@pytest.fixture
def injury(fault_table: FaultTable) -> Injury:
    """This test's row of the table."""
    row = Injury()
    fault_table.rows.append(row)
    return row
