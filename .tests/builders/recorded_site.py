"""Slurm's commands in place of real ones: they print what a real Slurm printed (``unit/init/fixtures``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[1] / "unit" / "init" / "fixtures"


def recorded(name: str) -> str:
    return (FIXTURES / f"{name}-22.05.8.txt").read_text()


PARTITIONS, NODES, SACCTMGR, ASSOC_MGR = map(recorded, ("partitions", "nodes", "sacctmgr", "assoc-mgr"))
SILENT = "echo 'error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
BODIES = {
    "sbatch": "exit 0",
    "squeue": "exit 0",
    "scancel": "exit 0",
    "srun": "exit 0",
    "sinfo": f"/bin/cat {FIXTURES}/nodes-22.05.8.txt",
    "sacctmgr": f"/bin/cat {FIXTURES}/sacctmgr-22.05.8.txt",
    "scontrol": f"""case "$*" in
*config) echo 'ClusterName             = sandbox' ;;
*partition) /bin/cat {FIXTURES}/partitions-22.05.8.txt ;;
*assoc*) /bin/cat {FIXTURES}/assoc-mgr-22.05.8.txt ;;
esac""",
}


def only(folder: Path, monkeypatch: pytest.MonkeyPatch, bodies: Mapping[str, str]) -> None:
    """Leave on the PATH only these commands, each a shell script by its body."""
    folder.mkdir()
    for name, body in bodies.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
