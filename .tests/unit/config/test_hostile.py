"""Hostile configurations and models: each is refused at its line with exit code 2, without a traceback, in bounded time and memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders import hostile
from builders.config_text import BASE
from builders.paths import LIBRARY, TESTS
from servemark.cli import main as cli
from servemark.config import paths
from servemark.weights import builtin

Outcomes = dict[str, tuple[int, str]]


def check(folder: Path, files: list[str]) -> Outcomes:
    """Run ``servemark check`` on each file, in one process that forks, because imports take longer than checks."""
    done = subprocess.run(
        [sys.executable, "-m", "builders.hostile", folder, *files],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
        env=os.environ | {"PYTHONPATH": f"{LIBRARY}:{TESTS}"},
    )
    return {file: (code, text) for file, (code, text) in json.loads(done.stdout).items()}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> Outcomes:
    folder = tmp_path_factory.mktemp("hostile")
    hostile.write(folder)
    found = check(folder, [*(f"{name}.yaml" for name in hostile.FILES), *hostile.PLACES])
    assert not (folder / "hacked").exists()
    return found


def assert_refused(outcome: tuple[int, str], expected: str) -> None:
    code, text = outcome
    assert code == 2, (code, text[:2000])
    assert expected in text and "Traceback" not in text, text[:2000]
    # Readable: the value is short, and there are no control characters.
    assert len(text) < 5000 and text.replace("\n", "").isprintable()


@pytest.mark.parametrize("name", hostile.FILES)
def test_hostile_file_is_refused_at_its_line(outcomes: Outcomes, name: str):
    assert_refused(outcomes[f"{name}.yaml"], hostile.FILES[name][1])


@pytest.mark.parametrize("name", hostile.PLACES)
def test_path_that_is_not_a_regular_file_is_refused(outcomes: Outcomes, name: str):
    assert_refused(outcomes[name], hostile.PLACES[name])


def test_1000_deployments_of_20_points_are_valid(tmp_path):
    loads = f"    concurrency: [{', '.join(map(str, range(1, 21)))}]\n"
    (tmp_path / "large.yaml").write_text(BASE.replace(hostile.LOADS, loads) + hostile.SWEEP)
    code, text = check(tmp_path, ["large.yaml"])["large.yaml"]
    assert code == 0 and text.count(" 20 load points") == 1000


# Models: a change to an intact folder, and a part of the message.


def _config(**changes: Any) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        path = model / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def _raw(text: str) -> Callable[[Path], None]:
    return lambda model: (model / "config.json").write_text(text) and None


def _header(text: bytes, length: int | None = None) -> Callable[[Path], None]:
    size = (len(text) if length is None else length).to_bytes(8, "little")
    return lambda model: (model / "model.safetensors").write_bytes(size + text + b"1234") and None


def _loop(model: Path) -> None:
    (model / "a").symlink_to("b")
    (model / "b").symlink_to("a")


def _many(model: Path) -> None:
    for number in range(10_001):
        (model / f"{number}.txt").touch()


def _pipe(model: Path) -> None:
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")


def _index(model: Path) -> None:
    (model / "model.safetensors.index.json").write_text(f'{{"weight_map": {"[" * 5000}{"]" * 5000}}}')


def _offsets(end: str) -> bytes:
    return f'{{"a": {{"dtype": "U8", "shape": [4], "data_offsets": [0, {end}]}}}}'.encode()


MODELS: dict[str, tuple[Callable[[Path], None], str]] = {
    "link-loop": (_loop, "back to itself"),
    "link-to-itself": (lambda model: (model / "a").symlink_to("."), "folder"),
    "many-files": (_many, "10,000"),
    "pipe": (_pipe, "config.json"),
    "nested": (_raw('{"a":' * 3000 + "1" + "}" * 3000), "config.json"),
    "nested-list": (_raw("[" * 10**5), "config.json"),
    "no-json": (_raw("{"), "config.json"),
    "list": (_raw("[1]"), "config.json"),
    "huge-file": (lambda model: os.truncate(model / "config.json", 2 * 10**8), "config.json"),
    "layers": (_config(num_hidden_layers=10**9), "1,000,000,000"),
    "layers-10-to-400": (_config(num_hidden_layers=10**400), "num_hidden_layers"),
    "layers-text": (_config(num_hidden_layers="2"), "num_hidden_layers"),
    "layers-below-0": (_config(num_hidden_layers=-2), "num_hidden_layers"),
    "no-heads": (_config(num_attention_heads=0), "num_attention_heads"),
    "more-heads-than-width": (_config(num_attention_heads=10**6), "1,000,000"),
    "nan": (_config(hidden_size=float("nan")), "hidden_size"),
    "layer-types": (_config(layer_types=5), "config.json"),
    "layer-types-of-lists": (_config(layer_types=[[1], [2]], num_hidden_layers=2), "config.json"),
    "window": (_config(sliding_window="x", use_sliding_window=True, layer_types=None), "sliding_window"),
    "sparse-step": (_config(num_experts=4, decoder_sparse_step="x"), "config.json"),
    "quantisation": (_config(quantization_config=[1]), "config.json"),
    "bits-10-to-400": (_config(quantization_config={"quant_method": "gptq", "bits": 10**400}), "config.json"),
    "header-cut": (_header(_offsets("4"), 1000), "model.safetensors"),
    "header-of-2-to-63": (_header(_offsets("4"), 2**63), "model.safetensors"),
    "header-nested": (_header(b"[" * 10**5), "model.safetensors"),
    "header-text": (_header(_offsets('"4"')), "model.safetensors"),
    "header-below-0": (_header(_offsets("-4")), "model.safetensors"),
    "header-list": (_header(b"[]"), "model.safetensors"),
    "index-nested": (_index, "model.safetensors.index.json"),
}


@pytest.fixture(scope="module")
def model_outcomes(tmp_path_factory) -> Outcomes:
    folder = tmp_path_factory.mktemp("models")
    builtin.make("tiny-dense", folder / "whole")
    for name, (injure, _) in ({"whole": (None, "")} | MODELS).items():
        if injure:
            injure(shutil.copytree(folder / "whole", folder / name))
        text = BASE.replace("builtin:tiny-dense", str(folder / name))
        (folder / f"{name}.yaml").write_text(text)
    return check(folder, ["whole.yaml", *(f"{name}.yaml" for name in MODELS)])


def test_intact_model_is_valid(model_outcomes: Outcomes):
    assert model_outcomes["whole.yaml"][0] == 0, model_outcomes["whole.yaml"]


@pytest.mark.parametrize("name", MODELS)
def test_hostile_model_is_refused_at_the_line_of_its_source(model_outcomes: Outcomes, name: str):
    assert_refused(model_outcomes[f"{name}.yaml"], f"{name}.yaml:4: models.tiny.source: ")
    assert MODELS[name][1] in model_outcomes[f"{name}.yaml"][1].replace(str(name), "", 1)


@pytest.mark.parametrize(("modules", "code"), [("", 2), ("modules: [site-vllm]", 0)])
def test_prefix_without_vllm_is_refused_unless_modules_may_bring_it(tmp_path, monkeypatch, capsys, modules, code):
    (tmp_path / "site.yaml").write_text(f"scheduler: slurm\n{modules}\n")
    text = BASE.replace("lock: cpu", f"prefix: {sys.prefix}") + f"\ncluster: {tmp_path}/site.yaml\n"
    (tmp_path / "my.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vllm").mkdir()  # such as a clone of its repository
    assert cli.main(["check", "my.yaml"]) == code
    assert ("my.yaml:7: environments.cpu.prefix: " in capsys.readouterr().out) is (code == 2)


@pytest.mark.parametrize("inside", ["bin", "bin/python"])
def test_prefix_inside_an_environment_names_its_folder(tmp_path, capsys, inside):
    (tmp_path / "my.yaml").write_text(BASE.replace("lock: cpu", f"prefix: {sys.prefix}/{inside}"))
    assert cli.main(["check", str(tmp_path / "my.yaml")]) == 2
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "environments.cpu.prefix: " in line)
    assert line.endswith(f" {sys.prefix}")


def test_missing_interpreter_at_the_root_folder_is_refused():
    assert "/missing/python" in (paths._prefix_fault(Path("/missing/python"), modules=False) or "")


def test_interpreter_that_is_not_executable_is_refused(tmp_path, capsys):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("")
    (tmp_path / "my.yaml").write_text(BASE.replace("lock: cpu", f"prefix: {tmp_path}"))
    assert cli.main(["check", str(tmp_path / "my.yaml")]) == 2
    assert "my.yaml:7: environments.cpu.prefix: " in capsys.readouterr().out
