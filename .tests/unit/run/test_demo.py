"""``make demo`` states its work, its size and its time before it begins."""

from __future__ import annotations

import subprocess
import sys

import pytest

from builders.paths import LIBRARY, ROOT
from servemark.config.expand import expand
from servemark.config.load import load
from servemark.environments import build, lockfiles
from servemark.run import demo


@pytest.fixture
def config(tmp_path, monkeypatch):
    found = expand(load(ROOT / "config" / "config.yaml")).model_copy(update={"cache": str(tmp_path / "cache")})
    (tmp_path / "envs").symlink_to(ROOT / "envs")
    monkeypatch.chdir(tmp_path)
    return found


def test_first_demo_names_size_time_deployments_and_points(config):
    text = "\n".join(demo.preview(config))
    cpu = lockfiles.table(ROOT / "envs")["cpu"]
    for words in (f"{cpu.wheels_gib} GiB to download", f"{cpu.installed_gib} GiB on disk", "7 minutes on 2 cores plus the download"):
        assert words in text
    assert "2 deployments" in text and "plain, ray-tp2" in text and "12 load points" in text


def test_built_environment_needs_no_download_completed_run_no_words(config, tmp_path):
    prefix = build.prefix_of(lockfiles.table(ROOT / "envs")["cpu"], tmp_path / "cache")
    prefix.mkdir(parents=True)
    (prefix / build.MARKER).touch()
    assert "download" not in "\n".join(demo.preview(config))
    (tmp_path / "results" / "demo").mkdir(parents=True)
    (tmp_path / "results" / "demo" / "check.json").touch()
    assert list(demo.preview(config)) == []


@pytest.mark.parametrize("text", ["run: [", "run: demo\n"])
def test_refused_configuration_is_left_to_snakemake(tmp_path, text):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.yaml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "servemark.run.demo"], cwd=tmp_path, env={"PYTHONPATH": str(LIBRARY)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
