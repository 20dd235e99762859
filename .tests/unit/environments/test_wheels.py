"""Wheels for a machine without internet: choice by machine, continuation, hashes, room, and what a build from them refuses."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from servemark.cli.main import main
from servemark.environments import wheels
from servemark.environments.lockfiles import Lock
from servemark.environments.wheels import Target
from servemark.errors import EnvironmentRefused
from servemark.files.content import Hashes

HERE = (sys.version_info[:2], platform.machine())


def make_wheel(folder: Path, name: str, tag: str = "py3-none-any") -> str:
    """Write an empty wheel ``name`` 1.0 and return its sha256."""
    folder.mkdir(exist_ok=True)
    path, info = folder / f"{name}-1.0-{tag}.whl", f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nSummary: {tag}\n")
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n")
        wheel.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Site:
    """A package index (a folder, no network), lock files of it, and the folder that is filled from it."""

    def __init__(self, tmp_path: Path):
        self.index, self.folder, self.envs = tmp_path / "index", tmp_path / "bundle", tmp_path / "envs"
        self.envs.mkdir()
        self.said: list[str] = []

    def lock(self, name: str, *lines: str, **more: object) -> Lock:
        path = self.envs / f"{name}.lock"
        path.write_text("".join(f"{line}\n" for line in lines))
        return Lock(name, path, (HERE[0],), **more)

    def pinned(self, name: str, *tags: str, marker: str = "") -> str:
        """Put wheels into the index and return their entry of a lock file."""
        hashes = [make_wheel(self.index, name, tag) for tag in tags or ("py3-none-any",)]
        return " \\\n".join([f"{name}==1.0{marker}", *(f"    --hash=sha256:{one}" for one in hashes)])

    def collect(self, *locks: Lock, python: tuple[int, int] = HERE[0], machine: str = HERE[1]) -> list[str]:
        wheels.collect(locks, python, machine, self.folder, self.said.append)
        return self.names()

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*"))


@pytest.fixture
def site(tmp_path, monkeypatch) -> Site:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    made = Site(tmp_path)
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(made.index), "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return made


@pytest.fixture
def calls(monkeypatch) -> list[list[str]]:
    """The packages of each call of pip."""
    found: list[list[str]] = []
    real = wheels._pip

    def pip(packages, target, folder):
        found.append([package.pin for package in packages])
        return real(packages, target, folder)

    monkeypatch.setattr(wheels, "_pip", pip)
    return found


@pytest.mark.parametrize(
    ("python", "machine", "chosen"),
    [
        ((3, 11), "x86_64", "built-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"),
        ((3, 12), "x86_64", "built-1.0-cp312-cp312-manylinux2014_x86_64.whl"),
        ((3, 11), "aarch64", "built-1.0-cp311-cp311-manylinux_2_17_aarch64.manylinux2014_aarch64.whl"),
    ],
)
def test_wheels_fit_the_named_machine(site, python, machine, chosen):
    tags = (
        "cp311-cp311-manylinux_2_28_x86_64",
        "cp312-cp312-manylinux2014_x86_64",
        "cp311-cp311-manylinux_2_17_aarch64.manylinux2014_aarch64",
        "cp311-cp311-manylinux_2_34_x86_64",
        "cp311-cp311-macosx_11_0_arm64",
    )
    stable = site.pinned("stable", f"cp38-abi3-manylinux_2_28_{machine}")
    arm = site.pinned("armonly", marker=" ; platform_machine == 'aarch64'")
    new = site.pinned("newonly", marker=" ; python_version >= '3.12' and sys_platform == 'linux'")
    lock = site.lock("demo", site.pinned("built", *tags), stable, arm, new)
    extra = ["armonly-1.0-py3-none-any.whl"] if machine == "aarch64" else []
    extra += ["newonly-1.0-py3-none-any.whl"] if python == (3, 12) else []
    expected = [chosen, f"stable-1.0-cp38-abi3-manylinux_2_28_{machine}.whl", *extra]
    assert site.collect(lock, python=python, machine=machine) == sorted(expected)


def test_tags_of_this_machine_are_the_interpreters_own():
    """A wheel that servemark collects for this interpreter is one that pip installs here."""
    from packaging import tags

    mine = Target(*HERE, (2, 28))
    assert set(mine.tags) <= set(tags.sys_tags())


def test_second_call_downloads_only_what_is_missing_or_damaged(site, calls):
    lock = site.lock("demo", *(site.pinned(f"p{number}") for number in range(5)))
    site.collect(lock)
    assert calls == [[f"p{number}==1.0" for number in range(5)]]
    (site.folder / "p1-1.0-py3-none-any.whl").unlink()
    damaged = site.folder / "p3-1.0-py3-none-any.whl"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    (site.folder / ".pip-left").mkdir()
    names = site.collect(lock)
    assert calls[1:] == [["p1==1.0", "p3==1.0"]]
    assert names == [f"p{number}-1.0-py3-none-any.whl" for number in range(5)], "without what a killed call left"
    assert damaged.read_bytes() == (site.index / damaged.name).read_bytes()
    site.collect(lock)
    assert len(calls) == 2, "a complete folder needs no pip"


def test_interruption_keeps_finished_calls(site, calls, monkeypatch):
    monkeypatch.setattr(wheels, "TOGETHER", 2)
    lock = site.lock("demo", *(site.pinned(f"p{number}") for number in range(6)))
    real = wheels._pip
    monkeypatch.setattr(wheels, "_pip", lambda some, *more: real(some, *more) if len(calls) < 2 else pytest.fail("interrupted"))
    with pytest.raises(pytest.fail.Exception):
        site.collect(lock)
    assert len(site.names()) == 4
    monkeypatch.setattr(wheels, "_pip", real)
    site.collect(lock)
    assert calls[2:] == [["p4==1.0", "p5==1.0"]] and len(site.names()) == 6


def test_every_wheel_that_pip_cannot_get_is_named_and_the_others_are_kept(site):
    other = f"swapped==1.0 --hash=sha256:{'0' * 64}"
    make_wheel(site.index, "swapped")
    absent = f"torch==2.13.0+cpu --hash=sha256:{'0' * 64}"
    lock = site.lock("demo", site.pinned("one"), other, absent, site.pinned("two"))
    with pytest.raises(EnvironmentRefused) as refused:
        site.collect(lock)
    assert refused.value.reason == "wheels_missing" and "docs/reference/environments.md" in refused.value.do
    rows = [line.split(":")[0].strip(" -") for line in refused.value.what.splitlines()[1:]]
    assert [row for row in rows if "==" in row] == ["swapped==1.0", "torch==2.13.0+cpu"]
    assert site.names() == ["one-1.0-py3-none-any.whl", "two-1.0-py3-none-any.whl"]


def test_without_an_index_it_stops_after_three_packages(site, calls):
    lock = site.lock("demo", *(f"p{number}==1.0 --hash=sha256:{'0' * 64}" for number in range(20)))
    with pytest.raises(EnvironmentRefused) as refused:
        site.collect(lock)
    assert len(calls) == 1 + wheels.FAILURES, "all of a call together, then one after another"
    assert len(refused.value.what.splitlines()) == 1 + 20, "every package is named"


def test_disk_without_room_is_refused_before_pip(site, calls):
    lock = site.lock("demo", site.pinned("one"), wheels_gib=1e6)
    with pytest.raises(EnvironmentRefused) as refused:
        site.collect(lock)
    assert refused.value.reason == "no_room" and "1,000,000.0 GiB" in refused.value.what
    assert calls == [] and site.names() == []


def test_wheels_that_are_present_need_no_room(site, monkeypatch):
    lock = site.lock("demo", site.pinned("one"), site.pinned("two"))
    site.collect(lock)
    size = sum(path.stat().st_size for path in site.folder.glob("*.whl"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 0))
    site.collect(site.lock("demo", *lock.requirements.read_text().splitlines(), wheels_gib=1e6))
    (site.folder / "two-1.0-py3-none-any.whl").unlink()
    kept = (site.folder / "one-1.0-py3-none-any.whl").stat().st_size
    whole = site.lock("demo", *lock.requirements.read_text().splitlines(), wheels_gib=kept / 2**30)
    site.collect(whole)
    assert sum(path.stat().st_size for path in site.folder.glob("*.whl")) == size


# The check before a build


def test_complete_folder_passes_and_each_fault_is_named(site):
    entries = [site.pinned("one"), site.pinned("two"), site.pinned("three", "cp39-cp39-win_amd64")]
    lock = site.lock("demo", *entries[:2])
    site.collect(lock)
    wheels.require(lock, site.folder)
    (site.folder / "one-1.0-py3-none-any.whl").unlink()
    (site.folder / "two-1.0-py3-none-any.whl").write_bytes(b"other")
    shutil.copy(site.index / "three-1.0-cp39-cp39-win_amd64.whl", site.folder)
    (site.folder / "no wheel.whl").write_bytes(b"")
    lock = site.lock("demo", *entries)
    with pytest.raises(EnvironmentRefused) as refused:
        wheels.require(lock, site.folder)
    assert refused.value.reason == "wheels_missing" and "servemark bundle demo DIR" in refused.value.do
    found = wheels.without_wheel(lock.locked(), site.folder, frozenset(wheels.tags.sys_tags()), Hashes(None, ""))
    assert [package.pin for package in found] == ["one==1.0", "two==1.0", "three==1.0"]
    assert all(package.pin in refused.value.what for package in found)
    names_only = wheels.without_wheel(lock.locked(), site.folder, frozenset(wheels.tags.sys_tags()), None)
    assert [package.pin for package in names_only] == ["one==1.0", "three==1.0"]


def test_long_list_is_shortened(site):
    lock = site.lock("demo", *(f"p{number}==1.0 --hash=sha256:{'0' * 64}" for number in range(30)))
    assert (wheels.fault(lock, site.folder, None) or "").count("==1.0") == wheels.NAMED


# The command


@pytest.fixture
def checkout(site, tmp_path, monkeypatch) -> Path:
    """A folder with lock files like those of a checkout."""
    for name in ("workflow", "test", "cpu", "cuda13"):
        site.lock(name, site.pinned("shared"), site.pinned(name))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_command_writes_wheels_of_both_environments_and_their_manifest(checkout, site, capsys):
    assert main(["bundle", "cuda13", "bundle"]) == 0
    names = ["cuda13-1.0-py3-none-any.whl", "shared-1.0-py3-none-any.whl", "workflow-1.0-py3-none-any.whl"]
    manifest = json.loads((site.folder / "bundle.json").read_text())
    assert [file["name"] for file in manifest["files"]] == names
    for file in manifest["files"]:
        content = (site.folder / file["name"]).read_bytes()
        assert file["sha256"] == hashlib.sha256(content).hexdigest() and file["bytes"] == len(content)
    assert site.names() == ["bundle.json", *names]
    assert main(["bundle", "cuda13", "bundle", "--python", "3.12", "--machine", "aarch64"]) == 0
    assert site.names() == ["bundle.json", *names]
    assert main(["bundle", "cuda13", "bundle", "--test", "--python", "3.12", "--machine", "x86_64"]) == 0
    assert "test-1.0-py3-none-any.whl" in site.names()


def test_lock_file_of_the_workflow_alone_collects_no_model_environment(checkout, site):
    assert main(["bundle", "envs/workflow.lock", "bundle"]) == 0
    assert site.names() == ["bundle.json", "shared-1.0-py3-none-any.whl", "workflow-1.0-py3-none-any.whl"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["cpu", "bundle", "--python", "3.13"],
        ["cpu", "bundle", "--machine", "aarch64"],
        ["cuda13", "bundle", "--machine", "aarch64", "--test"],
        ["cpu", "envs/cpu.lock"],
        ["auto", "bundle"],
        ["./absent.lock", "bundle"],
    ],
    ids=["another Python", "another machine", "tests on another machine", "a file", "no lock file", "an absent own one"],
)
def test_command_refuses_what_the_lock_file_does_not_support(checkout, site, calls, capsys, arguments):
    assert main(["bundle", *arguments]) == 2
    assert calls == [] and not site.folder.exists()
    assert capsys.readouterr().err.startswith("servemark: ")


def test_command_refuses_an_own_lock_file_with_a_package_of_a_url(checkout, site, calls, capsys):
    Path("my.lock").write_text(f"other @ https://example.org/other-1-py3-none-any.whl --hash=sha256:{'0' * 64}\n")
    assert main(["bundle", "./my.lock", "bundle"]) == 2
    assert calls == [] and not site.folder.exists()
    assert "other from a URL" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["cpu", "bundle", "--python", "3"], ["cpu", "bundle", "--python", "3.x"]])
def test_wrong_arguments_are_refused_by_the_parser(checkout, arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bundle", *arguments])
    assert ended.value.code == 2


def test_missing_wheel_ends_with_code_1_and_no_manifest(checkout, site, capsys):
    (site.index / "cpu-1.0-py3-none-any.whl").unlink()
    assert main(["bundle", "cpu", "bundle", "--python", "3.11", "--machine", "x86_64"]) == 1
    assert "cpu==1.0" in capsys.readouterr().err
    assert site.names() == ["shared-1.0-py3-none-any.whl", "workflow-1.0-py3-none-any.whl"]


def test_interruption_ends_with_code_130(checkout, site, monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupt)
    assert main(["bundle", "cuda13", "bundle"]) == 130
    assert site.names() == []
