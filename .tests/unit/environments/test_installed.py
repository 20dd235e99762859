"""The digest of an environment covers the files that its interpreter can load, and nothing that depends on place or time."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from builders.places import site_packages
from servemark.environments import build
from servemark.progress import Progress
from servemark.records import Environment


def digest(environment: Environment) -> str:
    return build.use_prefix("mine", Path(environment.prefix), None, Progress(None, "build_environment")).digest


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def info(packages: Path) -> Path:
    (found,) = packages.glob("vllm-*.dist-info")
    return found


def patch(packages: Path) -> None:
    """Change one character of vLLM's code, and neither its size nor its version."""
    path = packages / "vllm" / "__init__.py"
    text = path.read_text()
    path.write_text(("#" if text[0] != "#" else "$") + text[1:])


def program(packages: Path, first: str) -> None:
    """Add a program outside site-packages that the distribution lists."""
    write(packages / "../../../bin/tool", f"{first}\nprint(1)\n")
    write(info(packages) / "RECORD", "../../../bin/tool,,\n")


DECIDE = {
    "code": patch,
    "version": lambda packages: write(info(packages) / "METADATA", "Name: vllm\nVersion: 9\n"),
    "added": lambda packages: write(packages / "sitecustomize.py", "import os\n"),
    "removed": lambda packages: (packages / "vllm" / "__init__.py").unlink(),
    "hidden library": lambda packages: write(packages / "vllm" / ".libs" / "a.so"),
    "pth code": lambda packages: write(packages / "a.pth", "import sys\n"),
    "library elsewhere": lambda packages: (
        write(packages / "../../libiomp5.so", "x"),
        write(info(packages) / "RECORD", "../../libiomp5.so,,\n"),
    ),
    "program": lambda packages: program(packages, "ELF"),
    "conda": lambda packages: write(packages / "../../../conda-meta/nccl-2.27-h1.json"),
}
DO_NOT = {
    "bytecode": lambda packages: write(packages / "vllm" / "__pycache__" / "x.cpython-311.pyc"),
    "installer": lambda packages: write(info(packages) / "INSTALLER", "uv"),
    "record": lambda packages: write(info(packages) / "RECORD", "vllm/__init__.py,,\n"),
    "origin": lambda packages: write(info(packages) / "direct_url.json", '{"url": "file:///home/me/vllm.whl", "archive_info": {}}'),
    "start script": lambda packages: program(packages, "#!/home/me/env/bin/python"),
    "time": lambda packages: os.utime(packages / "vllm" / "__init__.py", (1, 1)),
    "conda's paths": lambda packages: write(packages / "../../../conda-meta/history"),
}


@pytest.mark.parametrize("change", DECIDE.values(), ids=DECIDE)
def test_change_of_a_loaded_file_changes_the_digest(standin, standin_copy, change: Callable[[Path], object]):
    change(site_packages(standin_copy))
    assert digest(standin_copy) != standin.digest


@pytest.mark.parametrize("change", DO_NOT.values(), ids=DO_NOT)
def test_notes_of_installers_and_paths_do_not_change_the_digest(standin, standin_copy, change: Callable[[Path], object]):
    change(site_packages(standin_copy))
    assert digest(standin_copy) == standin.digest


def test_two_places_have_one_digest_and_the_name_does_not_count(standin, standin_copy):
    found = build.use_prefix("other", Path(standin_copy.prefix), None, Progress(None, "build_environment"))
    assert found.digest == standin.digest
    assert (found.name, found.origin, found.packages, found.seconds) == ("other", "prefix", 3, 0)
    assert found.files == standin.files and found.files > 10


@pytest.fixture
def sources(tmp_path) -> Path:
    """Sources of a package, with files that are never imported."""
    folder = tmp_path / "sources"
    write(folder / "fork" / "__init__.py", "A = 1\n")
    write(folder / "fork" / "configs" / "a.json", "{}")
    write(folder / "results" / "run.log")
    write(folder / ".git" / "HEAD")
    return folder


def editable(packages: Path, sources: Path) -> None:
    """Install ``sources`` as pip does with -e and setuptools's finder."""
    inside = packages / "fork-1.0.dist-info"
    write(inside / "METADATA", "Metadata-Version: 2.1\nName: fork\nVersion: 1.0\n")
    write(inside / "top_level.txt", "fork\n")
    write(inside / "direct_url.json", json.dumps({"url": sources.as_uri(), "dir_info": {"editable": True}}))
    write(packages / "__editable___fork_1_0_finder.py", f"MAPPING = {{'fork': '{sources}/fork'}}\n")
    write(packages / "__editable__.fork-1.0.pth", "import __editable___fork_1_0_finder\n")


def added_folder(packages: Path, sources: Path) -> None:
    """Add ``sources`` to sys.path by a .pth file, as older editable installs do."""
    write(packages / "easy-install.pth", f"{sources}\n")
    write(sources / "fork.egg-info" / "PKG-INFO", "Metadata-Version: 2.1\nName: fork\nVersion: 1.0\n")
    write(sources / "fork.egg-info" / "top_level.txt", "fork\n")


@pytest.mark.parametrize("install", [editable, added_folder])
@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ("fork/__init__.py", False),
        ("fork/configs/a.json", False),
        ("fork/_C.abi3.so", False),
        ("results/run.log", True),
        (".git/HEAD", True),
    ],
)
def test_sources_of_an_editable_install_are_in_the_digest(standin_copy, sources, install, changed, same):
    install(site_packages(standin_copy), sources)
    before = digest(standin_copy)
    write(sources / changed, "another")
    assert (digest(standin_copy) == before) is same


@pytest.mark.parametrize("install", [editable, added_folder])
def test_sources_at_another_place_have_the_same_digest(standin_copy, sources, tmp_path, install):
    install(site_packages(standin_copy), sources)
    before = digest(standin_copy)
    moved = tmp_path / "moved"
    shutil.move(sources, moved)
    assert digest(standin_copy) != before
    install(site_packages(standin_copy), moved)
    assert digest(standin_copy) == before


def test_sources_without_named_modules_count_as_a_whole(standin_copy, sources):
    write(site_packages(standin_copy) / "fork.pth", f"{sources}\n")
    before = digest(standin_copy)
    write(sources / "results" / "run.log", "another")
    assert digest(standin_copy) != before


def test_unchanged_files_are_not_read_again(standin_copy, tmp_path, monkeypatch, told):
    monkeypatch.setattr("servemark.files.content._CLOCK_S", -1.0)
    cache = tmp_path / "cache"
    first = build.use_prefix("mine", Path(standin_copy.prefix), cache, told)
    assert any("hashing" in text for text in told.words)
    before = len(told.words)
    assert build.use_prefix("mine", Path(standin_copy.prefix), cache, told) == first
    assert len(told.words) == before
    assert not list(Path(standin_copy.prefix).rglob("hashes-*")) and list(cache.glob("hashes-*/*.json"))
