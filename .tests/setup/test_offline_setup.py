"""``make setup`` in an odd folder with only the files of the lock and no index. The test downloads the files once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from builders import odd_folder
from integration import harness
from servemark.environments.lockfiles import Lock

ROOT = harness.ROOT
LOCK = Lock("workflow", ROOT / "envs" / "workflow.lock", ())


def test_make_setup_needs_only_the_files_in_the_lock(tmp_path: Path) -> None:
    files = tmp_path / "files"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
    ]
    subprocess.run([*pip, "--dest", str(files), "-r", str(LOCK.requirements)], check=True, timeout=300)
    assert len(list(files.iterdir())) == len(LOCK.packages())

    checkout = tmp_path / odd_folder.NAME / "checkout"
    checkout.mkdir(parents=True)
    harness.copy_parts(checkout)
    shutil.copy(ROOT / "Makefile", checkout)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "LC_", "LANG"))}
    offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(files), "LC_ALL": "C"}
    # The system's Python if its version fits: its old pip warns about things that newer ones refuse.
    plain = "/usr/bin/python3.11"
    python = plain if Path(plain).exists() else sys.executable
    argv = ["make", "setup", f"PYTHON={python}"]
    done = subprocess.run(argv, cwd=checkout, env=kept | offline, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1
    for argv in ([".venv/bin/servemark", "check"], [".venv/bin/snakemake", "--version"]):
        said = subprocess.run(argv, cwd=checkout, env=kept | {"LC_ALL": "C"}, capture_output=True, timeout=60)
        assert said.returncode == 0, said.stderr
