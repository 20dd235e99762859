"""Where compiled code is kept, who shares it, and what is said of it before a start."""

from __future__ import annotations

import json
import os
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


def test_the_folder_lies_in_the_cache_under_an_absolute_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = compiled.place(config(Path("cache")), plan(), H200)
    assert found.parent == tmp_path / "cache" / f"compiled-{os.getuid()}" and len(found.name) == 16


def test_nothing_is_kept_where_each_start_is_to_be_a_first_one(tmp_path):
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
def test_environment_kind_of_node_and_shape_of_an_engine_have_a_folder_of_their_own(tmp_path, changes, hardware, shared):
    one = plan(topology=Topology())
    other = place(tmp_path, plan(**({"topology": Topology()} | changes)), H200.model_copy(update=hardware))
    assert (place(tmp_path, one) == other) is shared


def test_without_gpus_code_is_compiled_for_the_cpu(tmp_path):
    other = HARDWARE.model_copy(update={"cpu_model": "another"})
    assert place(tmp_path, hardware=HARDWARE) != place(tmp_path, hardware=other)


def test_another_users_compiled_code_is_never_run(tmp_path, monkeypatch):
    mine = place(tmp_path)
    monkeypatch.setattr("os.getuid", lambda: 4242)
    assert place(tmp_path) != mine


def test_what_a_start_finds_is_said_before_it_begins(tmp_path):
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


def test_a_place_of_the_deployments_own_is_not_known(tmp_path):
    asked = plan(variables={"VLLM_CACHE_ROOT": "/mine"})
    assert compiled.prepare(place(tmp_path, asked), asked, H200) is None


def test_the_folder_says_what_it_is_for_and_is_its_owners_alone(tmp_path):
    folder = place(tmp_path)
    compiled.prepare(folder, plan(), H200)
    said = json.loads((folder / "what.json").read_text())["for"]
    assert said == json.loads(json.dumps(compiled.purpose(plan(), H200)))
    assert (said["gpus"], said["driver"], said["cpu_model"]) == (["NVIDIA H200"], "580.1", None)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_where_code_is_compiled_decides_no_ledger_key(tmp_path):
    """The variables never stand in a plan; most would be taken for places, were they given by a user."""
    names = set(compiled.variables(tmp_path, {}))
    assert {name for name in names if table.in_key(name)} == {"FLASHINFER_WORKSPACE_BASE"}
    assert "compile_cache" in Deployment.model_fields and "compile_cache" not in report_data.plan().model_dump()
