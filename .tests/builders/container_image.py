"""The container image of the tests: a small Debian 12 with the environment of the cpu lock file, as a folder.

The image is made on this machine, because no registry is needed to test a container. debootstrap takes Debian from the mirror of the
machine's own apt. pip on the machine downloads the wheels, with the machine's configuration; pip in the image installs them with their
hashes and without an index. It needs root, debootstrap and CPython 3.11 on x86_64.

The image lies outside the checkout, in ``SERVEMARK_IMAGES`` (default: /var/tmp/servemark-image), under a name made from everything it
is built from. A second call returns the same folder at once. By hand, from ``.tests``::

    ../.venv/bin/python -m builders.container_image
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm.sandbox.trees import mirror

ROOT = Path(__file__).parents[2]
SUITE = "bookworm"
# ensurepip is in python3-venv. vLLM's CPU build links libnuma, and torch.compile calls a C++ compiler that these tests do not need.
PACKAGES = ("python3", "python3-venv", "libnuma1", "ca-certificates")
PYTHON = "/opt/env/bin/python"
"""The interpreter of the environment inside the image."""
_PROGRAMS = {"debootstrap": "debootstrap", "ch-run": "charliecloud"}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DONE = "servemark-image-complete"
# charliecloud mounts these, and an image that is mounted read-only must have them.
_MOUNT_POINTS = ("etc/hosts", "etc/resolv.conf")


def why_unavailable() -> str | None:
    """Return why no image can be built here and what to do, in one line; None if one can."""
    if os.geteuid() != 0:
        return "debootstrap builds the container image and needs root."
    missing = [package for program, package in _PROGRAMS.items() if shutil.which(program, path=PATH) is None]
    if missing:
        return f"{' and '.join(missing)} missing. Install with: apt-get install {' '.join(missing)}"
    if sys.version_info[:2] != (3, 11) or platform.machine() != "x86_64":
        return "the cpu lock file is for CPython 3.11 on x86_64, the Python of Debian 12"
    return None


def require(reason: str | None) -> None:
    """Skip the test if there is a reason; with SERVEMARK_REQUIRE_CONTAINERS=1 fail."""
    if reason and os.environ.get("SERVEMARK_REQUIRE_CONTAINERS") == "1":
        pytest.fail(reason, pytrace=False)
    if reason:
        pytest.skip(reason)


def folder() -> Path:
    """Return the folder of images."""
    return Path(os.environ.get("SERVEMARK_IMAGES", "/var/tmp/servemark-image"))


def _sources() -> list[Path]:
    shim = sorted(path for path in (ROOT / "envs/cpu-shim").glob("*") if path.is_file())
    return [Path(__file__), ROOT / "envs/cpu.lock", ROOT / "envs/install-in-image", *shim]


def built() -> Path:
    """Return the image folder; build it if this checkout's lock file and this script have none yet."""
    digest = hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in _sources())).hexdigest()
    image = folder() / f"cpu-{digest[:12]}"
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (image / _DONE).exists():
            shutil.rmtree(image, ignore_errors=True)
            _build(image)
            (image / _DONE).write_text("")
    return image


def _build(image: Path) -> None:
    wheels = Path(f"{image}-wheels")
    shutil.rmtree(wheels, ignore_errors=True)
    wheels.mkdir()
    locked = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "-r"]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--dest", str(wheels)]
    # Both wait for the network most of the time.
    with subprocess.Popen([*pip, *locked, str(ROOT / "envs/cpu.lock")]) as downloading:
        try:
            run(["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(image), mirror()])
        except BaseException:
            downloading.terminate()
            raise
    if downloading.returncode != 0:
        raise RuntimeError(f"pip downloaded no wheels of envs/cpu.lock (exit code {downloading.returncode}); its messages are above.")
    wheels.rename(image / "var/wheels")
    shutil.copytree(ROOT / "envs", image / "var/envs", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    # The script of the users' images, on the downloaded wheels. "0" sets --no-compile: servemark keeps bytecode in its cache.
    run(["/var/envs/install-in-image", "cpu"], within=image, PIP_NO_INDEX="1", PIP_FIND_LINKS="/var/wheels", PIP_NO_COMPILE="0")
    for name in ("wheels", "envs"):
        shutil.rmtree(image / "var" / name)
    shutil.rmtree(image / "var/cache/apt", ignore_errors=True)
    for name in _MOUNT_POINTS:
        (image / name).touch()
    (image / "ch").mkdir(exist_ok=True)
    # `ch-run --set-env` reads it.
    (image / "ch/environment").write_text(f"PATH={Path(PYTHON).parent}:{PATH}\n")


def run(argv: Sequence[str], within: Path | None = None, **variables: str) -> None:
    clean = {"PATH": PATH, "HOME": "/root", "LC_ALL": "C.UTF-8"}
    env = clean | variables if within else os.environ | {"PATH": f"{PATH}:{os.environ.get('PATH', '')}"}
    argv = ["chroot", str(within), *argv] if within else list(argv)
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(argv)}` ended with exit code {done.returncode}:\n{done.stdout[-3000:]}")


if __name__ == "__main__":
    begun = time.monotonic()
    print(f"{built()} ({time.monotonic() - begun:.0f} s)")
