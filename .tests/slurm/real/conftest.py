"""Fixtures: a Slurm of two nodes, real vLLM and Ray on it, a prepared checkout, and a copy of it for each test.

Needs the requirements of the Slurm sandbox and of the cpu lock. Without them the tests skip with the reason; with
SERVEMARK_REQUIRE_SLURM=1 or SERVEMARK_REQUIRE_REAL=1 they fail. The environment is built once, in the checkout's cache, and outside the
sandbox, which has no network to other hosts.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1]))
sys.path.insert(2, str(Path(__file__).parents[1] / "workflow"))
from fault_table import FaultTable, Injury
from real_checkout import RealCheckout, standin_config, tiny
from sandbox import Options, Sandbox, why_unavailable

from integration import harness
from standin import make_prefix

CACHE = harness.ROOT / "results" / "cache"
MakeCheckout = Callable[[], RealCheckout]


def _skip(reason: str, variable: str) -> None:
    if os.environ.get(variable) == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def disk() -> Iterator[Path]:
    """Return a folder that both nodes see and every user may enter: files in it that others cannot read are closed by servemark."""
    with tempfile.TemporaryDirectory(prefix="sm-re-", dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path


@pytest.fixture(scope="session")
def site(disk: Path) -> Iterator[Sandbox]:
    """Start two nodes with fake GPUs and with accounting that stores every job's script and environment."""
    # A real server needs some seconds to end; Slurm's default is 30.
    options = Options(kill_wait=20)
    if reason := why_unavailable(options):
        _skip(reason, "SERVEMARK_REQUIRE_SLURM")
    with Sandbox(disk / "site", options) as sandbox:
        with (sandbox.folder / "etc/slurm.conf").open("a") as conf:
            conf.write("AccountingStoreFlags=job_script,job_env\n")
        sandbox.stop_slurmctld()
        sandbox.start_slurmctld()
        sandbox.wait_idle()
        yield sandbox
        scratch = [str(path) for path in sandbox.folder.glob("nodes/*/tmp/servemark-*/*")]
    assert sandbox.leftovers() == []
    assert scratch == [], "scratch folders that no run has removed"


@pytest.fixture(scope="session")
def real_environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Build the environment of the cpu lock unless it exists."""
    if sys.version_info[:2] != (3, 11) or platform.machine() != "x86_64":
        _skip("the cpu lock is for CPython 3.11 on x86_64", "SERVEMARK_REQUIRE_REAL")
    path = tmp_path_factory.mktemp("build") / "checkout"
    path.mkdir()
    harness.copy_parts(path)
    config = {
        "run": harness.RUN,
        "models": {"tiny": {"source": "builtin:tiny-dense"}},
        "environments": {"cpu": {"lock": "cpu"}},
        "deployments": {"a": tiny()},
        "workloads": {"chat": {"dataset": "random", "input_tokens": 8, "output_tokens": 4, "requests": 1, "concurrency": 1}},
        "cache": str(CACHE),
    }
    with tempfile.TemporaryDirectory(prefix="sm", dir="/tmp") as runtime:
        checkout = harness.Checkout(path, Path(runtime), config)
        done = checkout.run("--until", "build_environment", seconds=600)
    assert done.rc == 0, done.text


def _bare(disk: Path, name: str, site: Sandbox, config: dict[str, Any]) -> RealCheckout:
    path = disk / name
    path.mkdir()
    harness.copy_parts(path)
    return RealCheckout(site, path, config)


@pytest.fixture(scope="session")
def prepared(site: Sandbox, disk: Path, real_environment: None) -> RealCheckout:
    """Return a checkout with hardware, real environment and model recorded. Tests copy it and do not run in it."""
    config = {
        "run": harness.RUN,
        "models": {"tiny": {"source": "builtin:tiny-dense"}},
        "environments": {"cpu": {"lock": "cpu"}},
        "deployments": {"ray": tiny(nodes=2, tensor_parallel=2, executor="ray")},
        "workloads": {"chat": {"dataset": "random", "input_tokens": 64, "output_tokens": 16, "requests": 16, "concurrency": 4}},
        "cache": str(CACHE),
        "verdict": {"min_duration_s": 0.0, "min_requests_per_slot": 1.0},
        # On a busy machine of two cores, a rank takes a minute to import vLLM.
        "timeouts": {
            "cluster": 180.0,
            "start": 420.0,
            "stall": 240.0,
            "point": 300.0,
            "no_progress": 30.0,
            "stop": 10.0,
        },
    }
    checkout = _bare(disk, "prepared", site, config)
    done = checkout.run("--until", "check_environment", "stage_weights", seconds=400)
    assert done.rc == 0, done.text
    checkout.assert_nothing_left()
    return checkout


@contextlib.contextmanager
def _copies(source: RealCheckout, disk: Path) -> Iterator[MakeCheckout]:
    made: list[RealCheckout] = []

    def make() -> RealCheckout:
        folder = Path(tempfile.mkdtemp(prefix="c", dir=disk))
        folder.chmod(0o755)
        path = folder / "checkout"
        shutil.copytree(source.path, path)
        # Its jobs belong to the original.
        shutil.rmtree(path / "results" / harness.RUN / "slurm", ignore_errors=True)
        made.append(RealCheckout(source.cluster, path, source.config))
        return made[-1]

    try:
        yield make
    finally:
        for checkout in made:
            checkout.cluster.restore_network()
            checkout.close()


@pytest.fixture
def real_checkouts(prepared: RealCheckout, disk: Path) -> Iterator[MakeCheckout]:
    """Return a function that makes checkouts with real vLLM, ready for planning."""
    with _copies(prepared, disk) as make:
        yield make


@pytest.fixture(scope="session")
def prepared_standin(site: Sandbox, disk: Path) -> RealCheckout:
    """Return the same on the stand-in, for tests that do not need vLLM."""
    checkout = _bare(disk, "prepared-standin", site, standin_config(make_prefix(disk / "standin"), disk / "cache"))
    done = checkout.run("--until", "check_environment", "stage_weights")
    assert done.rc == 0, done.text
    checkout.assert_nothing_left()
    return checkout


@pytest.fixture(scope="module")
def standin_checkouts(prepared_standin: RealCheckout, disk: Path) -> Iterator[MakeCheckout]:
    """Return a function that makes checkouts on the stand-in, ready for planning."""
    with _copies(prepared_standin, disk) as make:
        yield make


@pytest.fixture(scope="session")
def fault_table() -> Iterator[FaultTable]:
    """Collect one row for each fault; append them to the file that SERVEMARK_FAULT_TABLE names, if set."""
    table = FaultTable()
    yield table
    if path := os.environ.get("SERVEMARK_FAULT_TABLE"):
        with open(path, "a") as stream:
            stream.write(f"\nOn real vLLM and Ray:\n\n{table.markdown()}")
    print(f"\n{table.markdown()}", file=sys.stderr)


@pytest.fixture
def new_injury(fault_table: FaultTable) -> Callable[[], Injury]:
    """Return a function that makes rows of the table."""

    def make() -> Injury:
        fault_table.rows.append(Injury())
        return fault_table.rows[-1]

    return make
