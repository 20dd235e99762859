"""A checkout without Slurm, in which ``servemark check`` runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.paths import ROOT
from builders.recorded_site import only
from servemark.cli import check_jobs
from snakemake_executor_plugin_slurm_guarded import journal


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "envs").symlink_to(ROOT / "envs")
    monkeypatch.chdir(folder)
    monkeypatch.setenv(journal.VARIABLE, "")  # the command sets it
    monkeypatch.setattr(check_jobs, "PATIENCE_S", 0.1)
    only(tmp_path / "bin", monkeypatch, {})
    return folder
