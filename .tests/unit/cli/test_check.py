"""``servemark check`` of models, environments and workloads: ok, problem or not checked, and the exit code."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

from builders import hub_cache
from builders.checked import CONFIG, run, slurm
from servemark.cli import check
from servemark.cli import main as cli
from servemark.config import paths
from servemark.config.expand import expand
from servemark.config.load import load
from servemark.environments import build, lockfiles
from servemark.machine import hardware
from servemark.weights import builtin


@pytest.mark.parametrize("with_slurm", [False, True])
@pytest.mark.parametrize(
    ("site", "state"), [(None, "problem"), ("stage_on: login", "here"), ("stage_on: job", "not checked")], ids=["machine", "login", "job"]
)
def test_missing_model_is_a_problem_only_where_the_run_would_read_it(checkout, tmp_path, monkeypatch, capsys, with_slurm, site, state):
    if with_slurm:
        slurm(tmp_path, monkeypatch)
    state = state if state != "here" else "problem" if with_slurm else "not checked"
    code, found = run(capsys, source="/no/model", site=site)
    assert code == (2 if state == "problem" else 0)
    assert [text for text in found[state] if "models.m.source: " in text and "/no/model" in text]
    assert state != "problem" or found[state][0].startswith("my.yaml:4: ")


def test_folder_of_a_hub_cache_is_no_model(checkout, capsys):
    folder = checkout / "hub" / "models--Qwen--Qwen3-0.6B"
    (folder / "snapshots").mkdir(parents=True)
    code, found = run(capsys, source=str(folder))
    assert code == 2 and "`hf:Qwen/Qwen3-0.6B`" in found["problem"][0] and found["problem"][0].endswith(f" {folder.parent}")


def test_existing_model_folder_is_examined(checkout, capsys):
    builtin.make("tiny-dense", checkout / "model")
    code, found = run(capsys, source="./model")
    assert code == 0 and f"models.m.source: {checkout}/model" in found["ok"]
    (checkout / "model" / "config.json").unlink()
    code, found = run(capsys, source="./model", site="stage_on: login")
    assert code == 2 and "config.json" in found["problem"][0]


@pytest.fixture
def caches(tmp_path, monkeypatch) -> Path:
    """The folder of a Hugging Face cache that does not exist yet, in place of those of this machine."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hub"


@pytest.mark.parametrize("revision", ["", f"@{hub_cache.COMMIT}"])
@pytest.mark.parametrize("configured", [False, True])
def test_model_of_the_hub_is_found_in_a_cache_without_a_network(checkout, caches, tmp_path, monkeypatch, capsys, revision, configured):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    snapshot = hub_cache.make(tmp_path / "site" if configured else caches)
    source = f"hf:{hub_cache.REPOSITORY}{revision}"
    code, found = run(capsys, source=source, top=f"hub_cache: {tmp_path / 'site'}" if configured else "")
    (line,) = [text for text in found["ok"] if text.startswith("models.m.source: ")]
    assert code == 0 and str(snapshot) in line and f"(commit {hub_cache.COMMIT})" in line
    assert ("the hub" in line) == (not revision), "a branch may have another commit"


def test_model_of_the_hub_that_servemark_downloaded_is_found(checkout, caches, capsys):
    home = checkout / "results" / "cache" / "models" / "hf" / "Org--Name"
    (home / ("3" * 40)).mkdir(parents=True)
    (home / ".refs").mkdir()
    (home / ".refs" / "main.json").write_text(f'{{"commit": "{"3" * 40}"}}')
    code, found = run(capsys, source="hf:Org/Name")
    assert code == 0 and any(f"{home / ('3' * 40)} (commit {'3' * 40})" in text for text in found["ok"])


@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("stage_on", [None, "login", "job"])
def test_model_of_the_hub_in_no_cache_is_not_checked(checkout, caches, tmp_path, monkeypatch, capsys, stage_on, offline):
    hub_cache.make(caches)
    slurm(tmp_path, monkeypatch)
    if offline:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, found = run(capsys, source="hf:Org/Tiny-2B", site=f"stage_on: {stage_on}" if stage_on else None)
    state = "problem" if offline and stage_on != "job" else "not checked"
    (line,) = [text for text in found[state] if "models.m.source: " in text]
    assert code == (2 if state == "problem" else 0)
    assert str(caches) in line and str(checkout / "results" / "cache" / "models" / "hf") in line


def test_incomplete_model_of_a_cache_is_named(checkout, caches, capsys):
    snapshot = hub_cache.make(caches)
    (snapshot / "model.safetensors").unlink()
    code, found = run(capsys, source=f"hf:{hub_cache.REPOSITORY}")
    assert code == 0 and str(snapshot) in found["not checked"][0] and "hf download" in found["not checked"][0]


@pytest.mark.parametrize("with_slurm", [False, True])
@pytest.mark.parametrize(("site", "state"), [(None, "problem"), ("stage_on: login", "here"), ("stage_on: job", "not checked")])
def test_missing_hub_cache_is_a_problem_only_where_the_run_would_read_it(
    checkout, caches, tmp_path, monkeypatch, capsys, with_slurm, site, state
):
    if with_slurm:
        slurm(tmp_path, monkeypatch)
    state = state if state != "here" else "problem" if with_slurm else "not checked"
    code, found = run(capsys, source="hf:Org/Name", site=site, top="hub_cache: ./absent")
    assert code == (2 if state == "problem" else 0)
    (line,) = [text for text in found[state] if "hub_cache: " in text and str(checkout / "absent") in text]
    assert state != "problem" or line.startswith("my.yaml:")


def test_folder_above_a_hub_cache_is_a_problem(checkout, caches, tmp_path, capsys):
    hub_cache.make(tmp_path / "shared" / "hub")
    for folder, expected in (("shared", 2), ("shared/hub", 0)):
        code, found = run(capsys, source=f"hf:{hub_cache.REPOSITORY}", top=f"hub_cache: {tmp_path / folder}")
        assert code == expected, found
        assert all(text.startswith("my.yaml:") and str(tmp_path / "shared/hub") in text for text in found["problem"])


def test_missing_hub_cache_is_no_problem_after_everything_is_staged(checkout, caches, capsys):
    run(capsys, source="hf:Org/Name", top="hub_cache: ./absent")
    results = Path("results/r")
    config = expand(load(Path("my.yaml")))
    assert [problem.loc for problem in paths.problems(config, results)] == [("hub_cache",)]
    (results / "models" / "m").mkdir(parents=True)
    (results / "models" / "m" / "manifest.json").touch()
    assert paths.problems(config, results) == []


@pytest.mark.parametrize(("environment", "open_"), [("lock: cpu", False), ("container: {image: docker://org/vllm:1}", True)])
def test_options_that_only_the_run_can_check_are_named(checkout, capsys, environment, open_):
    _, found = run(capsys, environment=environment, deployment=", options: {max-num-seqs: 4}")
    assert any(text.startswith("deployments.d.options: ") for text in found["not checked"]) is open_


def test_tasks_of_accuracy_checks_are_left_to_the_run(checkout, capsys):
    code, found = run(capsys, deployment=", checks: {gms8k: {limit: 10, min: 0.5}}")
    assert code == 0 and any(text.startswith("deployments.d.checks: ") for text in found["not checked"])


def test_missing_interpreter_is_a_problem_with_its_line(checkout, capsys):
    code, found = run(capsys, environment="prefix: ./none")
    assert code == 2 and found["problem"][0].startswith("my.yaml:7: environments.e.prefix: ")


@pytest.mark.parametrize(
    ("length", "most", "legal"), [("recorded", 511, True), ("recorded", 512, False), ("4", 512, True)], ids=["fits", "too long", "not sent"]
)
def test_recorded_outputs_are_compared_with_max_model_len(checkout, capsys, length, most, legal):
    rows = [f'{{"prompt": "a", "output_tokens": {tokens}}}\n' for tokens in (8, most)]
    Path("mine.jsonl").write_text("".join(rows))
    text = CONFIG.format(source="builtin:tiny-dense", environment="lock: cpu", deployment=", options: {max-model-len: 512}")
    text = text.replace("dataset: random, input_tokens: 8, output_tokens: 4", f"dataset: {{file: mine.jsonl}}, output_tokens: {length}")
    Path("my.yaml").write_text(text)
    assert cli.main(["check", "my.yaml"]) == (0 if legal else 2)
    line = "my.yaml:11: workloads.w.dataset.file: line 2 "
    assert (line in capsys.readouterr().out) is not legal


def test_summary_counts_one_load_point(checkout, capsys):
    Path("my.yaml").write_text(CONFIG.format(source="builtin:tiny-dense", environment="lock: cpu", deployment=""))
    cli.main(["check", "my.yaml"])
    assert re.search(r"\b1 load point\b", capsys.readouterr().out)


def test_folder_of_wheels_is_compared_with_the_lock_file(checkout, capsys):
    asked = "lock: cpu\n    wheels: ./wheels"
    code, found = run(capsys, environment=asked)
    assert code == 2 and found["problem"][0].startswith("my.yaml:8: environments.e.wheels: ")
    wheels = checkout / "wheels"
    wheels.mkdir()
    code, found = run(capsys, environment=asked)
    assert code == 2 and "agent-detector==2.0.0" in found["problem"][0], "missing wheels are named"
    for package in lockfiles.table(Path("envs"))["cpu"].packages():
        name, version = package.split("==")
        (wheels / f"{name.replace('-', '_')}-{version}-py3-none-any.whl").touch()
    code, found = run(capsys, environment=asked)
    assert code == 0 and f"environments.e.wheels: {wheels}" in found["ok"]
    shutil.rmtree(wheels)
    wheels.mkdir()
    prefix = build.prefix_of(lockfiles.table(Path("envs"))["cpu"], Path("results/cache"))
    prefix.mkdir(parents=True)
    (prefix / build.MARKER).touch()
    assert run(capsys, environment=asked)[0] == 0, "a built environment needs no wheels"


def test_room_for_the_environment_is_compared_with_free_space(checkout, monkeypatch, capsys):
    usage = shutil.disk_usage(".")
    for free, code in ((2**50, 0), (2**30, 2)):
        monkeypatch.setattr(check.shutil, "disk_usage", lambda _, free=free: usage._replace(free=free))
        answer, found = run(capsys)
        assert answer == code
        assert "3 GiB" in found["problem" if code else "ok"][-1]


def test_environment_that_is_built_needs_no_room(checkout, monkeypatch, capsys):
    prefix = build.prefix_of(lockfiles.table(Path("envs"))["cpu"], Path("results/cache"))
    prefix.mkdir(parents=True)
    (prefix / build.MARKER).touch()
    code, found = run(capsys)
    assert code == 0 and any("exists already" in text for text in found["ok"])


def test_lock_that_does_not_fit_this_machine_is_a_problem(checkout, capsys, monkeypatch):
    real = hardware.probe()
    monkeypatch.setattr(hardware, "probe", lambda: real.model_copy(update={"architecture": "riscv64"}))
    code, found = run(capsys)
    assert code == 2 and "riscv64" in found["problem"][0]


@pytest.mark.parametrize(("gpus", "gib"), [(4, 16), (0, 3)])
def test_room_for_auto_on_a_cluster_is_that_of_the_largest_lock(checkout, tmp_path, monkeypatch, capsys, gpus, gib):
    slurm(tmp_path, monkeypatch)
    _, found = run(capsys, environment="lock: auto", site=f"gpus_per_node: {gpus}")
    assert any(f"up to {gib} GiB" in text for text in [*found["ok"], *found["problem"]])


def test_cache_that_is_not_on_this_machine_is_not_checked(checkout, capsys):
    code, found = run(capsys, site="cache: /no/cache")
    assert code == 0 and any("/no/cache" in text for text in found["not checked"])


def test_interface_that_this_machine_has_is_ok(checkout, capsys):
    code, found = run(capsys, site="interface: lo")
    assert code == 0 and any("127.0.0.1" in text for text in found["ok"])
    code, found = run(capsys, site="interface: nonexistent7")
    assert code == 0 and any("nonexistent7" in text for text in found["not checked"])


@pytest.mark.parametrize("environment", ["lock: ./absent.lock", "container: {image: /no/such.sif}"])
def test_absent_file_of_an_environment_is_named_with_its_key(checkout, capsys, environment):
    code, found = run(capsys, environment=environment)
    key = "environments.e.container.image" if "image" in environment else "environments.e.lock"
    assert code == 2 and len(found["problem"]) == 1
    assert found["problem"][0].startswith(f"my.yaml:7: {key}: ")
    assert "/no/such.sif" in found["problem"][0] or "absent.lock" in found["problem"][0]


@pytest.mark.parametrize("with_slurm", [False, True])
@pytest.mark.parametrize("place", ["login", "job"])
def test_missing_image_is_never_reported_as_ok(checkout, tmp_path, monkeypatch, capsys, place, with_slurm):
    if with_slurm:
        slurm(tmp_path, monkeypatch)
    code, found = run(capsys, environment="container: {image: /data/images/vllm.sif}", site=f"build_on: {place}")
    state = "problem" if with_slurm and place == "login" else "not checked"
    assert code == (2 if state == "problem" else 0)
    assert {name for name, texts in found.items() if any("/data/images/vllm.sif" in text for text in texts)} == {state}


def test_image_that_the_jobs_read_is_ok_if_it_is_here(checkout, capsys):
    (checkout / "vllm.sif").write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC")
    code, found = run(capsys, environment=f"container: {{image: {checkout}/vllm.sif}}", site="build_on: job")
    assert code == 0 and f"environments.e.container.image: {checkout}/vllm.sif" in found["ok"]


@pytest.mark.parametrize(("place", "state"), [("login", "problem"), ("job", "not checked")])
def test_own_lock_file_is_a_problem_only_where_the_environment_is_built(checkout, tmp_path, monkeypatch, capsys, place, state):
    slurm(tmp_path, monkeypatch)
    _, found = run(capsys, environment="lock: ./absent.lock", site=f"build_on: {place}")
    assert [text for text in found[state] if "environments.e.lock: " in text and "absent.lock" in text]
    Path("absent.lock").write_text("idna==3.20\n")
    _, found = run(capsys, environment="lock: ./absent.lock", site=f"build_on: {place}")
    assert any("no digest" in text for text in found["problem"]), "a file that is here is read"


@pytest.mark.parametrize(("rows", "state", "code"), [('{"prompt": "a"}', "ok", 0), ('{"text": "a"}', "problem", 2), (None, "problem", 2)])
def test_prompt_file_is_read_and_named_with_its_key(checkout, capsys, rows, state, code):
    if rows is not None:
        Path("mine.jsonl").write_text(f"{rows}\n")
    text = CONFIG.format(source="builtin:tiny-dense", environment="lock: cpu", deployment="")
    text = text.replace("dataset: random, input_tokens: 8", "dataset: {file: mine.jsonl}")
    Path("my.yaml").write_text(text)
    assert cli.main(["check", "my.yaml"]) == code
    lines = [line for line in capsys.readouterr().out.splitlines() if "workloads.w.dataset.file: " in line]
    assert len(lines) == 1 and lines[0].startswith(state)
    assert rows is not None or str(Path("mine.jsonl").absolute()) in lines[0]


def test_dataset_of_the_hub_is_not_checked(checkout, capsys):
    text = CONFIG.format(source="builtin:tiny-dense", environment="lock: cpu", deployment="")
    Path("my.yaml").write_text(text.replace("dataset: random, input_tokens: 8", f"dataset: {{hf: org/name@{'1' * 40}}}"))
    assert cli.main(["check", "my.yaml"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "workloads.w.dataset.hf: " in line]
    assert line.startswith("not checked")


@pytest.mark.parametrize(("length", "problems"), [(11, 1), (12, 0), ("auto", 0)])
def test_requests_longer_than_max_model_len_are_a_problem_at_its_line(checkout, capsys, length, problems):
    code, found = run(capsys, deployment=f", options: {{max-model-len: {length}}}")
    assert (code, len(found["problem"])) == (2 if problems else 0, problems)
    assert all(text.startswith("my.yaml:9: deployments.d: ") and "8 + 4 = 12 tokens" in text for text in found["problem"])


@pytest.mark.parametrize(("length", "problems"), [(11, 1), (12, 0)])
def test_requests_of_a_search_longer_than_max_model_len_are_a_problem(checkout, capsys, length, problems):
    text = CONFIG.format(source="builtin:tiny-dense", environment="lock: cpu", deployment=f", options: {{max-model-len: {length}}}")
    text = text.replace("requests: 4, concurrency: 1", "requests: 200, concurrency: {search: {from: 1, to: 8}}")
    Path("my.yaml").write_text(text + "slo: {ttft_ms: {p50: 1000}}\n")
    code = cli.main(["check", "my.yaml"])
    told = capsys.readouterr()
    assert code == (2 if problems else 0), told
    assert sum("8 + 4 = 12 tokens" in line for line in told.out.splitlines()) == problems


@pytest.mark.parametrize(
    ("source", "topology", "problems"),
    [
        ("builtin:tiny-dense", "tensor_parallel: 3", 1),
        ("builtin:tiny-dense", "tensor_parallel: 2", 0),
        ("builtin:tiny-dense", "pipeline_parallel: 3, tensor_parallel: 3", 2),
        ("builtin:tiny-moe", "tensor_parallel: 3", 1),
        # Only the plan counts the devices of a node.
        ("builtin:tiny-dense", "data_parallel: 64", 0),
    ],
)
def test_topology_that_a_built_in_model_does_not_allow_is_a_problem_at_its_line(checkout, capsys, source, topology, problems):
    code, found = run(capsys, source=source, deployment=f", topology: {{{topology}, executor: mp}}")
    assert (code, len(found["problem"])) == (2 if problems else 0, problems)
    assert all(text.startswith("my.yaml:9: deployments.d.topology: ") for text in found["problem"])
