"""Real vLLM in a container: charliecloud starts the image of builders/container_image.py, from the build to the verified archive.

Building the image needs root. Without it, debootstrap or charliecloud the test skips; with SERVEMARK_REQUIRE_CONTAINERS=1 it fails.
"""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from builders import container_image
from integration.harness import ROOT, SNAKEMAKE, Checkout
from servemark.measurement.ledger import is_keepable
from servemark.records import Measurement

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def image() -> Path:
    container_image.require(container_image.why_unavailable())
    return container_image.built()


@pytest.fixture
def home(fresh: Checkout):
    """Return a home folder with a file; it is not below /tmp, which a container shares with the host."""
    with tempfile.TemporaryDirectory(prefix="smh-", dir="/var/tmp") as folder:
        Path(folder, "secret").write_text("not for the container\n")
        fresh.exported["HOME"] = folder
        yield Path(folder)


def test_killed_run_in_a_container_resumes_to_a_verified_archive(fresh: Checkout, image: Path, home: Path):
    """kill -9 while the second point is measured, then a plain run to the end."""
    fresh.config |= {
        "environments": {"image": {"container": {"image": str(image), "runtime": "charliecloud"}}},
        "deployments": {
            "a": {
                "model": "tiny",
                "environment": "image",
                "options": {"max-model-len": 512, "enforce-eager": True, "dtype": "bfloat16"},
                "variables": {"VLLM_CPU_KVCACHE_SPACE": "1"},
            }
        },
        # The second point, which is interrupted, takes several seconds also on a fast machine.
        "workloads": {"chat": {"dataset": "random", "input_tokens": 32, "output_tokens": 32, "requests": [40, 240], "concurrency": [1, 4]}},
        "cache": str(ROOT / "results" / "cache"),
        "timeouts": {"start": 300.0, "point": 300.0, "no_progress": 30.0, "stop": 10.0},
    }

    measuring = fresh.start()
    fresh.wait_for_progress("chat-c4-r1: 240 requests", subject="a", seconds=600)
    time.sleep(1)  # the client runs
    server = psutil.Process(fresh.daemon("a")["pid"])
    inside = Path(f"/proc/{server.pid}/root")
    assert (inside / "opt/env/cpu.lock").exists() and not (inside / str(home).lstrip("/")).exists()
    assert str(home) not in server.environ().values()
    measuring.interrupt(signal.SIGKILL)
    fresh.assert_all_dead()
    first = Measurement.read(fresh.results / "deployments/a/points/chat-c1-r1.json")

    done = fresh.run(seconds=600)
    assert done.rc == 0, done.text
    fresh.assert_all_dead()
    # On a busy machine the server may stand still for seconds. Such a point is measured again.
    assert (fresh.started_at("a")["chat-c1-r1"] == first.started_at) == is_keepable(first), (first.verdict, first.reasons)
    rows = fresh.rows()
    assert len(rows) == 2 and {row["verdict"] for row in rows.values()} <= {"VALID", "SUSPECT"}

    (archive,) = (fresh.results / "archive").glob("*.tar.zst")
    verified = subprocess.run([SNAKEMAKE.with_name("servemark"), "verify", archive], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    record = json.loads(fresh.archived()["environments/image/environment.json"])
    container = record["container"]
    assert (record["origin"], container["runtime"], container["image"]) == ("container", "charliecloud", str(image))
    assert container["digest"] == f"sha256:{record['digest']}" and len(record["digest"]) == 64
    assert {"vllm==0.32.0+cpu", "torch==2.13.0+cpu", "ray==2.60.0"} <= set(container["packages"])
    assert record["packages"] == len(container["packages"]) > 100
