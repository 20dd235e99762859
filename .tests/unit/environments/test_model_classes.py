"""Descriptions of model classes: made by vLLM when the environment is checked, kept for it, and copied to servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.deployed import HARDWARE
from builders.places import site_packages
from servemark.environments import model_classes
from servemark.weights.builtin import CONFIGS

COMMIT = "0123456789abcdef0123456789abcdef01234567"
QWEN = "Qwen3ForCausalLM"
# vllm/model_executor/models/registry.py, 0.32.0: the names that servemark uses, and the place of the file.
REGISTRY = """
class _Class:
    def inspect_model_cls(self):
        import os, pathlib
        made = pathlib.Path(os.environ["VLLM_CACHE_ROOT"], "modelinfos", "vllm-qwen3.json")
        made.parent.mkdir(parents=True)
        made.write_text('{"hash": "1"}')


class ModelRegistry:
    models = {"Qwen3ForCausalLM": _Class()}

    @staticmethod
    def get_supported_archs():
        return ModelRegistry.models.keys()
"""


@pytest.fixture
def vllm(standin_copy):
    """The package of a stand-in that describes one model class."""
    package = site_packages(standin_copy) / "vllm"
    (package / "__init__.py").open("a").write(REGISTRY)
    return package


@pytest.fixture
def describe(tmp_path, standin_copy, told, watch):
    def run(*wanted: str, cache: Path = tmp_path / "cache"):
        log = tmp_path / "logs" / "check.log"
        log.parent.mkdir(exist_ok=True)
        log.touch()
        model_classes.describe(standin_copy, HARDWARE, wanted, cache, log=log, progress=told, watch=watch)
        return log.read_text()

    return run


def test_description_is_made_once_and_copied_to_each_root(describe, vllm, standin_copy, tmp_path):
    describe(QWEN)
    copies = model_classes.copies(tmp_path / "cache", standin_copy.digest, "/root")
    ((target, source),) = copies.items()
    assert target == "/root/modelinfos/vllm-qwen3.json" and json.loads(Path(source).read_text()) == {"hash": "1"}
    (vllm / "__init__.py").write_text("raise SystemExit('imported again')\n")
    assert describe(QWEN) == ""
    assert model_classes.copies(tmp_path / "cache", "another environment", "/root") == {}
    assert (tmp_path / "cache" / Path(source).parents[3].name).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("file", "text", "word"),
    [
        # A build for GPUs on a node without one.
        ("platforms.py", "class current_platform:\n    device_type = ''\n", "no device"),
        ("__init__.py", "__version__ = '0.8.0'\n", "ImportError"),
        ("__init__.py", f"{REGISTRY}\nModelRegistry.models.clear()\n", "architecture"),
        ("__init__.py", f"{REGISTRY}\n_Class.inspect_model_cls = lambda self: None\n", "keeps no description"),
        ("__init__.py", f"{REGISTRY}\nimport os, signal\n_Class.inspect_model_cls = lambda self: os.kill(os.getpid(), 9)\n", QWEN),
    ],
)
def test_class_that_cannot_be_described_is_left_to_the_servers(describe, vllm, standin_copy, told, tmp_path, file, text, word):
    (vllm / file).write_text(text)
    log = describe(QWEN)
    last = log.splitlines()[-1]
    assert last.startswith("servemark: ") and QWEN in last and word in log and last.removeprefix("servemark: ") in told.words
    assert model_classes.copies(tmp_path / "cache", standin_copy.digest, "/root") == {}
    assert not (tmp_path / "logs" / "check.tmp").exists()


def test_cache_without_permission_is_reported(describe, vllm, tmp_path):
    (tmp_path / "file").touch()
    assert QWEN in describe(QWEN, cache=tmp_path / "file")


def folder(place: Path, **config) -> Path:
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(config))
    return place


def test_architectures_come_from_the_files_of_this_machine(tmp_path):
    cache = tmp_path / "cache"
    hub = cache / "models" / "hf" / "org--staged"
    folder(hub / COMMIT, architectures=["Staged"])
    # A download that has not ended.
    folder(cache / "models" / "hf" / "org--draft" / f".{COMMIT}", architectures=["Draft", "../../Elsewhere", 3])
    local = folder(tmp_path / "local", architectures=["Local"])
    broken = folder(tmp_path / "broken", architectures="Text")
    sources = ["builtin:tiny-moe", f"hf:org/staged@{COMMIT}", f"hf:org/draft@{COMMIT}", "hf:org/absent", str(local), str(broken), "/absent"]
    (moe,) = CONFIGS["tiny-moe"]["architectures"]
    assert model_classes.architectures(sources, cache, None) == {moe, "Staged", "Draft", "Local"}
