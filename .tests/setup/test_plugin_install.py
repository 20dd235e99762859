"""pip builds and installs the Slurm executor as a separate distribution. The test downloads the build backend once."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "plugins" / "snakemake-executor-plugin-slurm-guarded"
PACKAGE = "snakemake_executor_plugin_slurm_guarded"
ASK = f"""
import importlib.metadata as m, json, pathlib
import {PACKAGE} as plugin
from {PACKAGE} import commands, reasons, request, states
found = m.metadata("{PLUGIN.name}")
files = sorted(path.name for path in pathlib.Path(plugin.__path__[0]).iterdir() if path.is_file())
print(json.dumps([found["Name"], found.get_all("Requires-Dist"), files]))
"""


def test_pip_builds_and_installs_the_plugin_alone(tmp_path: Path) -> None:
    # A copy, because setuptools writes into the source folder.
    source, venv = tmp_path / "plugin", tmp_path / "venv"
    shutil.copytree(PLUGIN, source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=120)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    done = subprocess.run([*pip, str(source)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = subprocess.run([str(venv / "bin" / "python"), "-I", "-c", ASK], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    name, required, files = json.loads(said.stdout)
    assert name == PLUGIN.name
    assert files == sorted(path.name for path in (PLUGIN / "src" / PACKAGE).iterdir() if path.is_file())
    locked = (ROOT / "envs" / "workflow.lock").read_text()
    (jobstep,) = (text for text in required if text.startswith("snakemake-executor-plugin-slurm-jobstep"))
    assert re.search(rf"^{re.escape(jobstep)} ", locked, re.MULTILINE), f"the lock has another version than {jobstep}"
