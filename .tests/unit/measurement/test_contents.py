"""Content of files and folders that options and variables name, in the ledger key in place of their path."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from servemark.errors import StageFailed
from servemark.measurement import contents


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    """A folder with a draft model, tuned kernels, a template and two libraries; the working folder."""
    for name, text in {
        "draft/config.json": "{}", "draft/model.safetensors": "w", "tuned/a.json": "{}", "t.jinja": "t", "a.so": "a", "b.so": "b",
        "bfloat16": "a file with the name of a value",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def look(options=None, variables=None) -> dict[str, str]:
    return contents.digests(options or {}, variables or {}, Path("cache"), keep=True)


def sha(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


OPTIONS = [
    {"chat-template": "{}/t.jinja"},
    {"chat_template": "t.jinja"},
    {"speculative-config": {"model": "{}/draft", "num_speculative_tokens": 3}},
    {"speculative-config": '{{"model": "{}/draft"}}'},
    {"speculative-config.model": "{}/draft"},
    {"lora-modules": ["sql={}/draft", "other={}/tuned"]},
    {"lora-modules": ['{{"name": "sql", "path": "{}/draft"}}']},
    {"logits-processors": ["{}/a.so"]},
]
VARIABLES = [
    {"VLLM_TUNED_CONFIG_FOLDER": "{}/tuned"},
    {"NCCL_TOPO_FILE": "{}/t.jinja"},
    {"LD_PRELOAD": "{}/a.so:{}/b.so"},
    {"LD_PRELOAD": "{}/a.so {}/b.so"},
    {"PYTHONPATH": "{}/tuned:{}/draft"},
    {"LMCACHE_CONFIG_FILE": "{}/t.jinja"},
]


def filled(value, folder: Path):
    """Return a value with the folder in the place of each pair of braces."""
    if isinstance(value, dict):
        return {name: filled(inner, folder) for name, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, folder) for inner in value]
    return value.replace("{}", str(folder)).replace("{{", "{").replace("}}", "}") if isinstance(value, str) else value


@pytest.mark.parametrize("given", [*OPTIONS, *VARIABLES], ids=str)
def test_content_stands_for_the_path(files, tmp_path_factory, given):
    def identity(folder: Path):
        values = filled(given, folder)
        return contents.by_content(values, look(values))

    before = identity(files)
    assert str(files) not in json.dumps(before) and "sha256:" in json.dumps(before)
    for path in [path for path in files.rglob("*") if path.is_file()]:
        path.write_text(f"{path.read_text()} ")
    assert identity(files) != before


def test_digest_does_not_depend_on_the_place(files, tmp_path):
    (tmp_path / "copy").mkdir()
    for name in ("draft", "tuned"):
        (files / name).rename(tmp_path / "copy" / name)
    for name in ("draft", "tuned"):
        (files / name).mkdir()
        for path in (tmp_path / "copy" / name).iterdir():
            (files / name / path.name).write_bytes(path.read_bytes())
    values = [
        {"speculative-config": {"model": str(place / "draft")}, "hf-config-path": str(place / "tuned")} for place in (files, files / "copy")
    ]
    one, other = (contents.by_content(value, look(value)) for value in values)
    assert one == other


def test_parts_of_a_value_are_replaced_alone(files):
    values = {"LD_PRELOAD": f"{files}/a.so:/missing.so:{files}/b.so"}
    assert contents.by_content(values, look({}, values)) == {"LD_PRELOAD": f"{sha('a')}:/missing.so:{sha('b')}"}


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        # Places, and what servers write.
        ({"download-dir": "{}/draft", "model": "{}/draft"}, {}),
        ({"kv-transfer-config": {"kv_connector_extra_config": {"shared_storage_path": "{}/tuned"}}}, {}),
        ({"compilation-config": {"cache_dir": "{}/tuned"}}, {}),
        ({"profiler-config": {"torch_profiler_dir": "{}/tuned"}}, {}),
        ({"allowed-local-media-path": "{}/tuned"}, {}),
        ({}, {"VLLM_CACHE_ROOT": "{}/tuned", "HF_HOME": "{}/draft", "FLASHINFER_WORKSPACE_BASE": "{}/tuned"}),
        # Whole systems.
        ({}, {"LD_LIBRARY_PATH": "{}/tuned", "CUDA_HOME": "{}/tuned"}),
        # No paths.
        ({"dtype": "bfloat16", "max-model-len": 512, "enforce-eager": True, "hf-overrides": {"a": None}}, {}),
        ({"tokenizer": "org/name", "chat-template": "{}/missing.jinja"}, {}),
        ({"compilation-config": "{{not json"}, {}),
    ],
    ids=str,
)
def test_other_values_stay_as_they_are(files, options, variables):
    options, variables = filled(options, files), filled(variables, files)
    assert look(options, variables) == {}
    assert contents.by_content(options, {str(files / "tuned"): "x", str(files / "draft"): "x"}) == options
    assert contents.by_content(variables, {str(files / "tuned"): "x", str(files / "draft"): "x"}) == variables


def test_readme_of_a_draft_model_does_not_count(files):
    before = look({"speculative-config": {"model": "draft/"}})
    (files / "draft" / "README.md").write_text("words")
    (files / "tuned" / "README.md").write_text("may be read")
    assert look({"speculative-config": {"model": "draft/"}}) == before
    (files / "draft" / "model.safetensors").write_text("x")
    assert look({"speculative-config": {"model": "draft/"}}) != before


def test_only_a_run_remembers_digests(files, monkeypatch):
    monkeypatch.setattr("servemark.files.content._CLOCK_S", -1.0)
    contents.digests({"chat-template": "t.jinja"}, {}, Path("cache"), keep=False)
    assert not (files / "cache").exists()
    look({"chat-template": "t.jinja"})
    assert (files / "cache").exists()


def test_file_changed_after_the_plan_is_refused_by_name(files):
    planned = look({"chat-template": "t.jinja", "hf-config-path": "tuned/"})
    contents.verify(planned, Path("cache"))
    (files / "t.jinja").write_text("another")
    with pytest.raises(StageFailed) as refused:
        contents.verify(planned, Path("cache"))
    assert refused.value.reason == "content_changed" and "t.jinja" in refused.value.what and "tuned" not in refused.value.what
