"""The stand-in server in a container of Charliecloud: a run to its archive, and a killed run that is resumed.

The image is a folder with this machine's interpreter, a shell and the stand-in (builders/image_folder.py). It has no real vLLM.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from builders import container_image
from builders.image_folder import make_image
from integration.harness import GONE_S, RUN, Checkout, wait_until


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    container_image.require(None if shutil.which("ch-run") else "ch-run is missing. Install it with: apt-get install charliecloud")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_image(tmp_path_factory.mktemp("image") / "folder")


@pytest.fixture
def contained(fresh: Checkout, image: Path) -> Checkout:
    """Return a checkout whose environment is the image."""
    fresh.config["environments"] = {"standin": {"container": {"image": str(image), "runtime": "charliecloud"}}}
    fresh.keep("a")
    fresh.inject("none")
    return fresh


def of(checkout: Checkout) -> dict[int, list[str]]:
    """Return the command lines of the processes that write below the checkout's results, in an image or not."""
    found = {}
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            writes = os.readlink(f"/proc/{process.pid}/fd/2").startswith(str(checkout.path))
        except (psutil.Error, OSError):
            continue
        if writes or str(checkout.path) in " ".join(words):
            found[process.pid] = words
    return found


def has_other_root(pid: int, image: Path) -> bool:
    """Return whether a process has the image as its root folder."""
    with contextlib.suppress(OSError):  # it has ended
        return os.stat(f"/proc/{pid}/root/usr/bin").st_ino == os.stat(image / "usr/bin").st_ino
    return False


def test_run_in_a_container_ends_in_an_archive_that_verifies(contained: Checkout, image: Path):
    running = contained.start(STANDIN_TOKEN_S="0.1")  # on a busy machine, one look at all processes takes a second
    key_file = contained.key_file()
    key = key_file.read_text().strip()
    seen, inside = set(), set()
    while key_file.exists() and running.process.poll() is None:
        for pid, words in of(contained).items():
            seen.update(words)
            if has_other_root(pid, image):
                inside.update(map(os.path.basename, words))
        time.sleep(0.2)
    done = running.wait(480)

    assert done.rc == 0, done.text
    assert {row["verdict"] for row in contained.rows().values()} <= {"VALID", "SUSPECT"}
    assert {"vllm.entrypoints.cli.main", "gpu_watch.py"} <= inside
    assert not [word for word in seen if key in word]
    assert wait_until(lambda: not of(contained), GONE_S, "the end of all processes") is True

    environment = contained.record("environments/standin/environment.json")
    assert environment["origin"] == "container" and environment["python"] == "/usr/bin/python3" and environment["bytecode"]
    assert environment["container"]["runtime"] == "charliecloud" and environment["container"]["version"]
    assert environment["container"]["digest"] == f"sha256:{environment['digest']}"
    assert "vllm==0.0.0+standin" in environment["container"]["packages"]
    assert "vllm==0.0.0+standin" in contained.archived()["environments/standin/environment.json"].decode()
    archive = contained.results / "archive" / f"{RUN}.tar.zst"
    verified = subprocess.run([Path(sys.executable).with_name("servemark"), "verify", archive], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout + verified.stderr

    telemetry = next(iter(contained.points("a").values()))["telemetry"]
    assert telemetry["nodes"][0]["foreign_cores"] is not None

    again = contained.run()
    assert again.rc == 0 and contained.attempts("a") == [contained.attempts("a")[0]], again.text


@pytest.mark.full
def test_killed_run_leaves_no_process_in_the_image_and_is_resumed(contained: Checkout, image: Path):
    running = contained.start(STANDIN_TOKEN_S="0.1")
    contained.wait_for_progress("chat-c2-r1: 6 requests", seconds=120)
    contained.inject("hang")
    before = contained.started_at("a")
    assert any(has_other_root(pid, image) for pid in of(contained))

    running.interrupt(signal.SIGKILL)
    running.wait(120)
    assert wait_until(lambda: not of(contained), GONE_S, f"the end of all processes: {of(contained)}") is True

    contained.inject("none")
    resumed = contained.run()
    assert resumed.rc == 0, resumed.text
    assert contained.started_at("a").items() >= before.items() and len(contained.started_at("a")) == 2


# test_moved_tag_gives_another_environment covers another digest of an image.
@pytest.mark.full
def test_changed_image_is_measured_again(contained: Checkout, image: Path, tmp_path: Path):
    own = tmp_path / "own"
    shutil.copytree(image, own, symlinks=True)
    contained.config["environments"]["standin"]["container"]["image"] = str(own)
    contained.config["workloads"]["chat"]["concurrency"] = [1]
    first = contained.run()
    assert first.rc == 0, first.text
    digest = contained.record("environments/standin/environment.json")["digest"]

    (next(own.glob("usr/lib/python3*/site-packages/ray")) / "added.py").write_text("")
    assert contained.run().rc == 0
    assert contained.record("environments/standin/environment.json")["digest"] != digest
    assert len(contained.attempts("a")) == 2
