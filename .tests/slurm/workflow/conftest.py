"""Fixtures: a cluster with every option, a checkout prepared on it once, a copy for each test, the fault table."""

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
# Processes are tracked by their tree, as on clusters without control groups: a detached one outlives its job.
LOOSE = Options(accounting=False, proctrack="linuxproc", kill_wait=3)


@pytest.fixture(scope="session")
def disk() -> Iterator[Path]:
    """Return a folder that every node of every sandbox sees (they do not see each other's /tmp)."""
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
    """Start two nodes with fake GPUs and one without; accounts enforced; preemption; a short slurmd time-out."""
    yield from _started(disk / "site", SITE)


@pytest.fixture(scope="session")
def loose(disk: Path) -> Iterator[Sandbox]:
    """Start two nodes without control groups and without accounting."""
    yield from _started(disk / "loose", LOOSE)


@pytest.fixture(scope="session")
def bare(site: Sandbox, disk: Path) -> ScheduledCheckout:
    """Return a checkout without any run. Tests copy it and do not run in it."""
    prefix = make_prefix(disk / "standin")
    path = disk / "bare"
    path.mkdir()
    harness.copy_parts(path)
    # Each script is a separate interpreter; without this, each would compile the library again.
    compileall.compile_dir(path / "workflow" / "lib", quiet=1)
    compileall.compile_dir(prefix / "lib", quiet=1)
    config = harness.basic_config(prefix, disk / "cache")
    config["timeouts"] |= {"cluster": 40.0, "start": 90.0}
    return ScheduledCheckout(site, path, config)


@pytest.fixture(scope="session")
def planned(bare: ScheduledCheckout) -> ScheduledCheckout:
    """Return a checkout with hardware, environment and model recorded. Tests copy it and do not run in it."""
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
        # Its jobs belong to the original.
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
    """Return a function that makes checkouts ready for planning, shared by several tests."""
    with _copies(planned) as make:
        yield make


@pytest.fixture
def checkouts(planned: ScheduledCheckout) -> Iterator[MakeCheckout]:
    """Return a function that makes checkouts ready for planning."""
    with _copies(planned) as make:
        yield make


@pytest.fixture
def checkout(checkouts: MakeCheckout) -> ScheduledCheckout:
    """Return a checkout that is ready for planning."""
    return checkouts()


@pytest.fixture
def fresh(bare: ScheduledCheckout) -> Iterator[ScheduledCheckout]:
    """Return a copy of the checkout without any run."""
    with _copies(bare) as make:
        yield make()


@pytest.fixture
def queue_left_empty(site: Sandbox) -> Iterator[None]:
    """Assert after the test that the site's queue is empty."""
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
    """Collect one row for each fault; write them to the file that SERVEMARK_FAULT_TABLE names, if set."""
    table = FaultTable()
    yield table
    if path := os.environ.get("SERVEMARK_FAULT_TABLE"):
        Path(path).write_text(table.markdown())


@pytest.fixture
def injury(fault_table: FaultTable) -> Injury:
    """Return this test's row of the table."""
    row = Injury()
    fault_table.rows.append(row)
    return row
