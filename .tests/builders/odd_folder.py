"""A folder name that breaks naive quoting in shells, Slurm and locales, and an environment in a checkout there."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

# A space, an umlaut, both quotes, and characters that shells and sbatch expand.
NAME = "Pf ä'\"$d`x` & (ö);#*%j"


def own_environment(checkout: Path) -> Path:
    """Make ``.venv`` in a checkout with this interpreter's packages, as ``make setup`` does; return its ``snakemake``."""
    venv = checkout / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    packages = venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "packages.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    snakemake = venv / "bin" / "snakemake"
    # As pip writes it if the folder's name has a space.
    start = f"#!/bin/sh\n'''exec' \"{venv}/bin/python\" \"$0\" \"$@\"\n' '''\n"
    snakemake.write_text(f"{start}import sys\nfrom snakemake.cli import main\nsys.exit(main())\n")
    snakemake.chmod(0o755)
    finish = checkout / "envs" / "finish_setup.py"
    subprocess.run([str(venv / "bin" / "python"), "-I", str(finish)], check=True)
    return snakemake
