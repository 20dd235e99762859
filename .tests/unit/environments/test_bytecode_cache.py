"""Bytecode goes to the cache only if Python cannot write it next to the sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from servemark.environments import bytecode_cache
from servemark.errors import EnvironmentRefused
from servemark.progress import Progress
from servemark.records import Environment
from servemark.variables import passed_on


def site_packages(prefix: Path) -> Path:
    (found,) = prefix.glob("lib/python*/site-packages")
    return found


@pytest.fixture
def prefix(tmp_path, monkeypatch) -> Path:
    """An environment with a package named vllm and no bytecode of it."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    made = tmp_path / "prefix"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
    package = site_packages(made) / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("VERSION = '1'\n")
    return made


def place(prefix: Path, cache: Path) -> Path | None:
    folder = bytecode_cache.placed(described(prefix), cache, Progress(None, "build_environment")).bytecode
    return Path(folder) if folder else None


def run(prefix: Path, variables: dict[str, str]) -> None:
    argv = [str(prefix / "bin" / "python"), "-c", "import vllm"]
    subprocess.run(argv, check=True, env=passed_on.clean_environment(variables))


def described(prefix: Path, folder: Path | None = None, python: Path | None = None) -> Environment:
    return Environment(
        name="mine",
        origin="prefix",
        digest="d" * 64,
        prefix=str(prefix),
        python=str(python or prefix / "bin" / "python"),
        packages=1,
        bytecode=str(folder) if folder else None,
        seconds=0,
        size_mib=0,
    )


def test_writable_prefix_keeps_its_bytecode(prefix, tmp_path):
    assert place(prefix, tmp_path / "cache") is None
    assert not (tmp_path / "cache").exists()
    assert bytecode_cache.variables(described(prefix)) == {}


def test_bytecode_goes_to_the_cache_if_python_may_not_write(prefix, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    folder = place(prefix, tmp_path / "cache")
    assert folder is not None and folder.is_relative_to(tmp_path / "cache")
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert folder.parent.name.endswith(str(os.getuid()))
    run(prefix, bytecode_cache.variables(described(prefix, folder)))
    (kept,) = folder.rglob("vllm/__init__.*.pyc")
    before = kept.stat().st_mtime_ns
    run(prefix, bytecode_cache.variables(described(prefix, folder)))
    assert kept.stat().st_mtime_ns == before, "found, not made again"
    assert not list(site_packages(prefix).rglob("*.pyc")), "nothing is written into the user's environment"


def test_edited_environment_keeps_its_bytecode_folder(prefix, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    folder = place(prefix, tmp_path / "cache")
    edited = described(prefix).model_copy(update={"digest": "e" * 64})
    assert bytecode_cache.placed(edited, tmp_path / "cache", Progress(None, "build_environment")).bytecode == str(folder)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_bytecode_of_a_read_only_prefix_goes_to_the_cache(prefix, tmp_path):
    (site_packages(prefix) / "vllm").chmod(0o555)
    assert place(prefix, tmp_path / "cache") is not None


def test_existing_bytecode_is_used(prefix, tmp_path, monkeypatch):
    run(prefix, {})
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert place(prefix, tmp_path / "cache") is None


def test_bytecode_folder_of_the_user_is_kept(prefix, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "own"))
    assert place(prefix, tmp_path / "cache") is None


def test_output_of_a_pth_file_is_ignored(prefix, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (site_packages(prefix) / "talks.pth").write_text("import sys; print('hello')\n")
    assert place(prefix, tmp_path / "cache") is not None


def test_interpreter_that_fails_is_refused(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such module >&2; exit 3\n")
    broken.chmod(0o755)
    with pytest.raises(EnvironmentRefused) as refused:
        bytecode_cache.placed(described(tmp_path, python=broken), tmp_path / "cache", Progress(None, "build_environment"))
    assert refused.value.reason == "prefix_broken" and "no such module" in refused.value.what


def test_folder_that_cannot_be_made_is_refused(prefix, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(EnvironmentRefused) as refused:
        place(prefix, tmp_path / "cache")
    assert refused.value.reason == "bytecode_folder" and "PYTHONPYCACHEPREFIX" in refused.value.do
