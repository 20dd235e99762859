"""Containers of enroot: a run to its archive, a killed run that is resumed, an image from a registry, and real vLLM.

The image is a squashfs file with this machine's interpreter, a shell and the stand-in (builders/image_folder.py). The last test makes one
of the image of builders/container_image.py, with real vLLM.
enroot is not in Debian. Build it from github.com/NVIDIA/enroot (docs/how-to/container.md, "What was tested"). Without enroot, mksquashfs
or squashfuse these tests skip.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from builders import container_image, image_registry
from builders.image_folder import make_image
from integration.harness import GONE_S, RUN, Checkout, wait_until

_PROGRAMS = ("enroot", "mksquashfs", "unsquashfs", "squashfuse")
_MISSING = [program for program in _PROGRAMS if shutil.which(program) is None]

pytestmark = [pytest.mark.full, pytest.mark.skipif(bool(_MISSING), reason=f"missing: {', '.join(_MISSING)}")]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image")
    made, file = make_image(folder / "folder"), folder / "image.sqsh"
    # As `enroot import` leaves it: a script that starts an entry point, and variables of the image.
    (made / "etc/rc").write_text("exec /bin/false\n")
    (made / "etc/environment").write_text("PATH=/usr/bin:/bin\nNVIDIA_VISIBLE_DEVICES=all\n")
    subprocess.run(["mksquashfs", made, file, "-all-root", "-quiet", "-no-progress"], check=True)
    return file


@pytest.fixture
def contained(fresh: Checkout, image: Path) -> Checkout:
    """Return a checkout whose environment is the image."""
    fresh.config["environments"] = {"standin": {"container": {"image": str(image)}}}
    fresh.keep("a")
    fresh.inject("none")
    return fresh


def inside(checkout: Checkout) -> dict[int, list[str]]:
    """Return the command lines of the checkout's processes that have the image as their root folder."""
    found = {}
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if str(checkout.path) in " ".join(words) + os.readlink(f"/proc/{process.pid}/fd/2"):
                root = os.stat(f"/proc/{process.pid}/root")
                if (root.st_dev, root.st_ino) != (os.stat("/").st_dev, os.stat("/").st_ino):
                    found[process.pid] = words
        except (psutil.Error, OSError):
            continue
    return found


def mounting(image: Path) -> list[int]:
    """Return the processes that mount the image."""
    return [process.pid for process in psutil.process_iter(["cmdline"]) if str(image) in (process.info["cmdline"] or [])]


def test_run_in_a_container_ends_in_an_archive_that_verifies(contained: Checkout, image: Path):
    running = contained.start()
    key_file = contained.key_file()
    key = key_file.read_text().strip()
    seen: dict[int, list[str]] = {}
    while key_file.exists() and running.process.poll() is None:
        seen |= inside(contained)
        assert not [
            words for words in (process.info["cmdline"] for process in psutil.process_iter(["cmdline"])) if words and key in " ".join(words)
        ]
        time.sleep(0.2)
    done = running.wait(480)

    assert done.rc == 0, done.text
    assert {row["verdict"] for row in contained.rows().values()} <= {"VALID", "SUSPECT"}
    log = (contained.results / "deployments/a/attempts/001/telemetry.log").read_text()
    assert {"vllm.entrypoints.cli.main", "gpu_watch.py"} <= {word for words in seen.values() for word in map(os.path.basename, words)}, log
    telemetry = next(iter(contained.points("a").values()))["telemetry"]
    assert telemetry["nodes"][0]["foreign_cores"] is not None
    assert wait_until(lambda: not inside(contained) and not mounting(image), GONE_S, "the end of all processes") is True

    environment = contained.record("environments/standin/environment.json")
    sha = subprocess.run(["sha256sum", image], capture_output=True, text=True, check=True).stdout.split()[0]
    assert (environment["origin"], environment["python"], environment["digest"]) == ("container", "/usr/bin/python3", sha)
    container = environment["container"]
    assert (container["runtime"], container["digest"]) == ("enroot", f"sha256:{sha}") and container["version"][0].isdigit()
    assert "vllm==0.0.0+standin" in container["packages"]
    assert json.loads(contained.archived()["environments/standin/environment.json"])["container"]["runtime"] == "enroot"
    archive = contained.results / "archive" / f"{RUN}.tar.zst"
    verified = subprocess.run([Path(sys.executable).with_name("servemark"), "verify", archive], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout + verified.stderr

    again = contained.run()
    assert again.rc == 0 and contained.attempts("a") == [contained.attempts("a")[0]], again.text


def test_killed_run_leaves_no_process_in_the_image_and_is_resumed(contained: Checkout, image: Path):
    running = contained.start(STANDIN_TOKEN_S="0.1")
    contained.wait_for_progress("chat-c2-r1: 6 requests", seconds=120)
    contained.inject("hang")
    before = contained.started_at("a")
    assert inside(contained) and mounting(image)

    running.interrupt(signal.SIGKILL)
    running.wait(120)
    gone = wait_until(lambda: not inside(contained) and not mounting(image), GONE_S, f"the end of all processes: {mounting(image)}")
    assert gone is True

    contained.inject("none")
    resumed = contained.run()
    assert resumed.rc == 0, resumed.text
    assert contained.started_at("a").items() >= before.items() and len(contained.started_at("a")) == 2


@pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("docker-registry", "openssl", "parallel")), reason="no registry, no parallel"
)
def test_image_from_a_registry_is_imported_by_its_digest(fresh: Checkout, tmp_path: Path):
    with image_registry.running(tmp_path / "registry", tls=False) as registry:
        pushed = registry.push(make_image(tmp_path / "folder"), "group/vllm", "latest")
        fresh.config["environments"] = {"standin": {"container": {"image": f"docker://{registry.address}/group/vllm:latest"}}}
        fresh.keep("a")
        fresh.inject("none")
        done = fresh.run("--until", "build_environment")
    assert done.rc == 0, done.text
    container = fresh.record("environments/standin/environment.json")["container"]
    assert (container["runtime"], container["digest"], container["path"]) == ("enroot", pushed, "/usr/bin:/bin")
    assert container["place"].endswith(".sqsh") and os.path.isfile(container["place"])

    measured = fresh.run()
    assert measured.rc == 0, measured.text
    assert {row["verdict"] for row in fresh.rows().values()} <= {"VALID", "SUSPECT"}


@pytest.mark.timeout(1800)
def test_real_vllm(fresh: Checkout, tmp_path: Path):
    container_image.require(container_image.why_unavailable())
    file = tmp_path / "real.sqsh"
    fast = ["-comp", "lzo", "-noD", "-all-root", "-quiet", "-no-progress"]
    subprocess.run(["mksquashfs", container_image.built(), file, *fast], check=True)
    fresh.config["environments"] = {"standin": {"container": {"image": str(file), "python": container_image.PYTHON}}}
    fresh.keep("a")
    fresh.config["deployments"]["a"] |= {
        "options": {"max-model-len": 512, "enforce-eager": True, "dtype": "bfloat16"},
        "variables": {"VLLM_CPU_KVCACHE_SPACE": "1"},
    }
    fresh.config["workloads"]["chat"]["requests"] = 20
    fresh.config["timeouts"] |= {"start": 400.0, "stall": 200.0, "no_progress": 60.0, "point": 300.0}
    done = fresh.run(seconds=1200)
    assert done.rc == 0, done.text
    assert {row["verdict"] for row in fresh.rows().values()} <= {"VALID", "SUSPECT"}
    container = fresh.record("environments/standin/environment.json")["container"]
    assert container["runtime"] == "enroot" and {"vllm==0.32.0+cpu", "torch==2.13.0+cpu"} <= set(container["packages"])
    assert wait_until(lambda: not inside(fresh) and not mounting(file), GONE_S, "the end of all processes") is True
