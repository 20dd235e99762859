"""The commands of README.md, the tutorials and the how-to pages, as they stand there, in a checkout with a finished run on the stand-in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from builders.document_commands import RUN_HERE
from integration.harness import ROOT, RUN, Checkout


def reader(checkout: Checkout, home: Path) -> dict[str, str]:
    """Prepare what the pages take for granted, and return the reader's environment."""
    (checkout.path / ".venv").symlink_to(sys.prefix)
    (checkout.path / ".tests").symlink_to(ROOT / ".tests")
    (home / "my-token-file").write_text("not-a-token\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STANDIN_", "SERVEMARK_", "SLURM_"))}
    library = {"PYTHONPATH": str(checkout.path / "workflow" / "lib")}
    return kept | library | {"SERVEMARK_RUNTIME_DIR": str(checkout.runtime), "HOME": str(home)}


def test_every_cheap_command_of_the_pages_exits_with_0(measured: Checkout, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environment = reader(measured, home)
    # The pages' runs and cluster file. The content is that of this run.
    for name in ("demo", "tiny-dense"):
        shutil.copytree(measured.results, measured.results.with_name(name))
    for name in ("qwen.yaml", "tiny.yaml"):
        shutil.copy(measured.path / "my.yaml", measured.path / name)
    clusters = measured.path / "config" / "clusters"
    shutil.copy(clusters / "slurm.yaml", clusters / "ourcluster.yaml")
    failed = []
    for command in RUN_HERE:
        here = measured.path if "RUN" not in command else measured.results / "archive"
        typed = command.replace("REPOSITORY", str(ROOT)).replace("RUN", RUN)
        done = subprocess.run(["bash", "-c", typed], cwd=here, env=environment, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            failed.append(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    assert failed == [], "\n".join(failed)
    assert (measured.path / "servemark" / "README.md").is_file(), "the clone"
    assert (measured.path / "servemark-ticket-tiny-dense.tar.gz").is_file()
