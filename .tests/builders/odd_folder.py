"""A folder whose name holds what shells, Slurm and locales trip over, and an environment of its own in a checkout there."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

# A space, an umlaut, both quotes, what shells expand, and what sbatch does.
NAME = "Pf ä'\"$d`x` & (ö);#*%j"


def own_environment(checkout: Path) -> Path:
    """Give a checkout a ``.venv`` with this interpreter's packages, finished as ``make setup`` does; returns its ``snakemake``."""
    venv = checkout / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    packages = venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "packages.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    snakemake = venv / "bin" / "snakemake"
    # As pip writes it where the folder's name has a space.
    start = f"#!/bin/sh\n'''exec' \"{venv}/bin/python\" \"$0\" \"$@\"\n' '''\n"
    snakemake.write_text(f"{start}import sys\nfrom snakemake.cli import main\nsys.exit(main())\n")
    snakemake.chmod(0o755)
    finish = checkout / "envs" / "finish_setup.py"
    subprocess.run([str(venv / "bin" / "python"), "-I", str(finish)], check=True)
    return snakemake
