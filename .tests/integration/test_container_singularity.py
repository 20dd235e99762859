"""Apptainer and SingularityCE as an ordinary user, each in a folder with another release: an image file with the stand-in of vLLM, and a
folder with real vLLM.

Needs root to make the folder and to enter it. Without it or debootstrap these tests skip; with SERVEMARK_REQUIRE_CONTAINERS=1 they fail.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders import container_image, runtime_tree
from builders.image_folder import make_image
from integration import harness
from integration.harness import SNAKEMAKE, Checkout

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800), pytest.mark.parametrize("runtime", ["apptainer", "singularity"])]
VERSIONS = {"apptainer": "apptainer version 1.", "singularity": "singularity-ce version 4."}


@pytest.fixture
def disk() -> Iterator[Path]:
    """Return a folder of the ordinary user."""
    with tempfile.TemporaryDirectory(prefix="sma", dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        os.chown(folder, runtime_tree.UID, runtime_tree.UID)
        yield Path(folder)


@pytest.fixture
def checkout(disk: Path) -> Iterator[Checkout]:
    """Return a checkout of the ordinary user, whose runs start in the tree."""
    container_image.require(container_image.why_unavailable())
    path, home = disk / "checkout", disk / "home"
    path.mkdir()
    home.mkdir()
    harness.copy_parts(path)
    checkout = Checkout(path, disk / "r", harness.basic_config(disk / "none", disk / "cache"))
    checkout.exported |= {"HOME": str(home), "PATH": container_image.PATH, "TMPDIR": "/tmp", "USER": runtime_tree.USER}
    checkout.keep("a")
    yield checkout
    for process in checkout.processes():
        process.kill()


def run(checkout: Checkout, disk: Path, image: Path, runtime: str, **container: object) -> dict:
    """Run to the archive, and return the record of the environment from it."""
    checkout.config["environments"] = {"standin": {"container": {"image": str(image), "runtime": runtime, **container}}}
    folders = [disk, harness.ROOT, *([image] if image.is_dir() else [])]
    checkout.through = runtime_tree.entering(runtime_tree.built(runtime), folders, checkout.path)
    subprocess.run(["chown", "-R", f"{runtime_tree.UID}:{runtime_tree.UID}", disk], check=True)
    done = checkout.run(seconds=900)
    assert done.rc == 0, done.text
    checkout.assert_all_dead()
    assert {row["verdict"] for row in checkout.rows().values()} <= {"VALID", "SUSPECT"}
    (archive,) = (checkout.results / "archive").glob("*.tar.zst")
    verified = subprocess.run([SNAKEMAKE.with_name("servemark"), "verify", archive], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    record = json.loads(checkout.archived()["environments/standin/environment.json"])
    assert (record["origin"], record["container"]["runtime"]) == ("container", runtime)
    assert record["container"]["version"].startswith(VERSIONS[runtime])
    return record


def test_image_file_of_an_ordinary_user(checkout: Checkout, disk: Path, runtime: str):
    folder, file = make_image(disk / "folder"), disk / "standin.sif"
    subprocess.run(["chown", "-R", f"{runtime_tree.UID}:{runtime_tree.UID}", disk], check=True)
    runtime_tree.run(runtime_tree.built(runtime), [disk], disk, [runtime, "build", str(file), str(folder)])
    # A container without /dev/fuse cannot mount the file. SingularityCE unpacks it by itself then.
    options = ["--unsquash"] if runtime == "apptainer" else []
    record = run(checkout, disk, file, runtime, options=options)
    sha = subprocess.run(["sha256sum", file], capture_output=True, text=True, check=True).stdout.split()[0]
    assert record["digest"] == sha and record["container"]["digest"] == f"sha256:{sha}"


def test_real_vllm_of_an_ordinary_user(checkout: Checkout, disk: Path, runtime: str):
    image = container_image.built()
    checkout.config["deployments"]["a"] |= {
        "options": {"max-model-len": 512, "enforce-eager": True, "dtype": "bfloat16"},
        "variables": {"VLLM_CPU_KVCACHE_SPACE": "1"},
    }
    checkout.config["workloads"]["chat"]["requests"] = 20
    checkout.config["timeouts"] |= {"start": 400.0, "stall": 200.0, "no_progress": 60.0, "point": 300.0}
    record = run(checkout, disk, image, runtime, python=container_image.PYTHON)
    assert {"vllm==0.32.0+cpu", "torch==2.13.0+cpu"} <= set(record["container"]["packages"])
