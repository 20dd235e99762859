"""``servemark reproduce --yes`` of an archive that the stand-in measured: verify, unpack, run, compare."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration.harness import RUN, SNAKEMAKE, Checkout
from servemark import verification
from servemark.records import Comparison, Topology
from servemark.variables import passed_on


def servemark(checkout: Checkout, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    ours = passed_on.deciding(os.environ, Topology(), {})
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STANDIN_", "SLURM_", "SERVEMARK_"))}
    environment = {name: value for name, value in kept.items() if name not in ours} | {
        "PYTHONPATH": str(checkout.path / "workflow" / "lib"),
        "SERVEMARK_RUNTIME_DIR": str(checkout.runtime),
        "STANDIN_START_S": "0.1",
        "STANDIN_TOKEN_S": "0.002",
    }
    return subprocess.run(
        [SNAKEMAKE.with_name("servemark"), *map(str, words)],
        cwd=checkout.path, env=environment | variables, capture_output=True, text=True, timeout=480,
    )  # fmt: skip


@pytest.fixture
def archive(measured_checkout: Checkout, tmp_path: Path) -> Path:
    path = tmp_path / "received.tar.zst"
    path.write_bytes((measured_checkout.results / "archive" / f"{RUN}.tar.zst").read_bytes())
    return path


def test_archive_is_measured_again_and_compared(archive: Path, fresh: Checkout) -> None:
    done = servemark(fresh, "reproduce", archive, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    results = fresh.path / "results" / f"{RUN}-reproduced"
    again = results / "archive" / f"{RUN}-reproduced.tar.zst"
    assert verification.verify(again).wrong == ()
    assert len(list(results.glob("deployments/*/points/*-r1.json"))) == 4
    # compare ended the command, with all four load points of both deployments.
    assert servemark(fresh, "compare", archive, results, "-o", "out").stdout.splitlines()[0] in done.stdout
    compared = Comparison.read(fresh.path / "out" / "compare.json")
    assert len(compared.points) == 4 and compared.one_sided == ()
    fresh.assert_all_dead()


# test_archive_is_measured_again_and_compared runs the same command to a good end.
@pytest.mark.full
def test_failed_run_exits_with_the_code_of_snakemake_and_continues(archive: Path, fresh: Checkout) -> None:
    failed = servemark(fresh, "reproduce", archive, "--yes", STANDIN_FAULT="exit_at_start")
    assert failed.returncode == 1, failed.stdout + failed.stderr
    config = f"reproduced/{RUN}-reproduced/config.yaml"
    assert config in failed.stderr
    again = servemark(fresh, "reproduce", archive, "--yes")
    assert again.returncode == 2, again.stdout + again.stderr
    assert (fresh.path / config).is_file()


def test_package_is_importable_without_pandas() -> None:
    code = "import sys, servemark.cli.main; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
