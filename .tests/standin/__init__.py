"""A stand-in for a vLLM environment, for fault tests that need a server in seconds: no model, no vLLM, no torch.

All parts identify themselves as a stand-in (version ``0.0.0+standin``); its timings are made up.
"""

from __future__ import annotations

import shutil
import sysconfig
import venv
from pathlib import Path

VERSION = "0.0.0+standin"
_SITE = Path(__file__).with_name("site")
OPTIONS = Path(__file__).parents[2] / "workflow" / "lib" / "servemark" / "environments" / "vllm-options" / "0.32.0.json"


def make_prefix(directory: Path) -> Path:
    """Make an environment prefix whose ``bin/python`` finds stand-ins of vllm, torch, ray and pynvml, and nothing else.

    Takes about 0.1 s. ``bin/python -m vllm.entrypoints.cli.main`` has ``serve`` and ``bench serve``; ``site/vllm/standin_faults.py``
    describes the variables for their pace and faults.

    Args:
        directory: the prefix; created if necessary.

    Returns:
        The directory.
    """
    directory = Path(directory)
    venv.EnvBuilder(symlinks=True, with_pip=False).create(directory)
    install(Path(sysconfig.get_path("purelib", "venv", {"base": str(directory), "platbase": str(directory)})))
    return directory


def install(packages: Path) -> None:
    """Copy the stand-ins into the folder ``packages`` of an interpreter."""
    shutil.copytree(_SITE, packages, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(OPTIONS, packages / "vllm" / "standin_options.json")
    for name in ("vllm", "torch", "ray"):
        metadata = packages / f"{name}-{VERSION}.dist-info" / "METADATA"
        metadata.parent.mkdir(exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\nSummary: servemark stand-in\n")


def make_lm_eval(directory: Path) -> Path:
    """Make an environment prefix whose ``bin/python`` finds a stand-in of lm-eval, and nothing else."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(directory)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(directory), "platbase": str(directory)}))
    shutil.copytree(Path(__file__).with_name("lm_eval"), packages, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    metadata = packages / f"lm_eval-{VERSION}.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: lm_eval\nVersion: {VERSION}\nSummary: servemark stand-in\n")
    return directory
