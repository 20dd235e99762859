"""The folder of compiled code: its name, its state before a start, and which deployments share it."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from builders import report_data
from builders.deployed import CONFIG, HARDWARE
from servemark.config.model import Deployment
from servemark.launch import compile_cache as compiled
from servemark.records import Gpu, Topology
from servemark.variables import table

H200 = HARDWARE.model_copy(update={"accelerator": "cuda", "driver": "580.1", "gpus": (Gpu(name="NVIDIA H200", memory_mib=143771),) * 2})
PARTS = {"model": "m", "options": {"max-model-len": "512"}, "variables": {}, "modules": []}


def plan(**changes):
    return report_data.plan("plain", **({"variables": {}, "key_parts": PARTS} | changes))


def config(cache, **changes):
    deployment = CONFIG.deployments["plain"].model_copy(update=changes)
    return CONFIG.model_copy(update={"cache": cache, "deployments": {"plain": deployment}})


def place(tmp_path, asked=None, hardware=H200):
    return compiled.place(config(tmp_path), asked or plan(), hardware)


def test_folder_is_an_absolute_path_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = compiled.place(config(Path("cache")), plan(), H200)
    assert found.parent == tmp_path / "cache" / f"compiled-{os.getuid()}" and len(found.name) == 16


def test_compile_cache_none_has_no_folder(tmp_path):
    assert compiled.place(config(tmp_path, compile_cache="none"), plan(), H200) is None


@pytest.mark.parametrize(
    ("changes", "hardware", "shared"),
    [
        ({"model_digest": "other"}, {}, True),
        ({"options": {"max-num-seqs": 4}}, {}, True),
        ({"topology": Topology(replicas=4, devices_per_node=4)}, {}, True),
        ({"environment_digest": "other"}, {}, False),
        ({"topology": Topology(tensor_parallel=2, executor="mp")}, {}, False),
        ({"topology": Topology(data_parallel=2, executor="mp")}, {}, False),
        ({}, {"driver": "590.1"}, False),
        ({}, {"architecture": "aarch64"}, False),
        ({}, {"gpus": (Gpu(name="NVIDIA H100", memory_mib=81559),)}, False),
        ({}, {"gpus": H200.gpus[:1], "cpu_model": "another", "host": "elsewhere", "memory_gib": 1.0}, True),
    ],
)
def test_environment_hardware_and_engine_shape_have_separate_folders(tmp_path, changes, hardware, shared):
    one = plan(topology=Topology())
    other = place(tmp_path, plan(**({"topology": Topology()} | changes)), H200.model_copy(update=hardware))
    assert (place(tmp_path, one) == other) is shared


def test_each_cpu_model_has_a_folder_without_gpus(tmp_path):
    other = HARDWARE.model_copy(update={"cpu_model": "another"})
    assert place(tmp_path, hardware=HARDWARE) != place(tmp_path, hardware=other)


def test_each_user_has_a_folder(tmp_path, monkeypatch):
    mine = place(tmp_path)
    monkeypatch.setattr("os.getuid", lambda: 4242)
    assert place(tmp_path) != mine


def test_state_of_the_folder_before_a_start(tmp_path):
    folder, one = place(tmp_path), plan()
    other = plan(key_parts={**PARTS, "model": "another"})
    assert compiled.prepare(folder, one, H200) == "empty"
    assert compiled.prepare(folder, one, H200) == "empty", "a folder that was only made holds nothing"
    (folder / "triton" / "ABC").mkdir(parents=True)
    assert compiled.prepare(folder, one, H200) == "other", "a start that never came up has left something"
    compiled.came_up(folder, one)
    assert (compiled.prepare(folder, one, H200), compiled.prepare(folder, other, H200)) == ("filled", "other")
    compiled.came_up(folder, other)
    assert compiled.prepare(folder, other, H200) == "filled"


def test_state_is_none_if_the_deployment_sets_another_folder(tmp_path):
    asked = plan(variables={"VLLM_CACHE_ROOT": "/mine"})
    assert compiled.prepare(place(tmp_path, asked), asked, H200) is None


def test_folder_describes_itself_and_is_private(tmp_path):
    folder = place(tmp_path)
    compiled.prepare(folder, plan(), H200)
    said = json.loads((folder / "what.json").read_text())["for"]
    assert said == json.loads(json.dumps(compiled.purpose(plan(), H200)))
    assert (said["gpus"], said["driver"], said["cpu_model"]) == (["NVIDIA H200"], "580.1", None)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_compile_caches_are_not_in_the_ledger_key(tmp_path):
    """No plan has these variables. For most of them the ledger key has no value even if a user sets them."""
    names = set(compiled.variables(tmp_path, {}))
    assert {name for name in names if table.in_key(name)} == {"FLASHINFER_WORKSPACE_BASE"}
    assert "compile_cache" in Deployment.model_fields and "compile_cache" not in report_data.plan().model_dump()


@pytest.mark.parametrize(
    ("keep", "age_s", "removed"),
    [
        (lambda whole: whole, 60, False),
        (lambda whole: whole[:-1], 60, True),
        (lambda whole: whole[:1000], 60, True),
        (lambda whole: whole[:20], 60, True),
        (lambda _: b"", 60, True),
        (lambda whole: bytes(len(whole)), 60, True),
        # A linker may still write it.
        (lambda _: b"", 0, False),
        # A text for the linker, as some packages have.
        (lambda _: b"INPUT(-lm)", 60, False),
    ],
    ids=["whole", "last byte missing", "cut", "cut in the header", "empty", "zeros", "young", "text"],
)
def test_library_that_a_killed_compiler_left_is_removed_before_a_start(tmp_path, keep, age_s, removed):
    (library, *_) = (path for path in sorted(Path(shutil.__file__).parent.rglob("lib-dynload/*.so")) if path.stat().st_size > 4096)
    folder = place(tmp_path)
    left = folder / "vllm" / "torch_compile_cache" / "so" / "c.main.so"
    left.parent.mkdir(parents=True)
    left.write_bytes(keep(library.read_bytes()))
    os.utime(left, (time.time() - age_s,) * 2)
    compiled.prepare(folder, plan(), H200)
    assert left.exists() is not removed
