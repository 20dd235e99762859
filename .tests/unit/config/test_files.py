"""Other files are refused, and a fault has the file and line of its value."""

from __future__ import annotations

import re

import pytest
import yaml

from builders.config_text import BASE, failure, write
from builders.paths import ROOT
from servemark.config import positions
from servemark.config.load import load, validate
from servemark.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run: [", "my.yaml:2"),
        ("run: a\n\tmodels: b", "my.yaml:2:1: "),
        ("run: *nowhere", "my.yaml:1:6: "),
        ("run: !!python/object:os.system x", "my.yaml:1:6: "),
        ("run: a\n---\nrun: b", "my.yaml:2"),
        ("run: 2026-13-45", "my.yaml:1:6: "),
        ("run: a\0b", "my.yaml: "),
        ("", "the configuration: "),
        ("# nothing but a comment", "the configuration: "),
        ("- a\n- b", "the configuration: "),
        ("just text", "the configuration: "),
        ("run: &a [*a]", "my.yaml:1:6: "),
        ("[" * 100_000, "my.yaml:1:51: "),
        ("- " * 100_000, "my.yaml:1:101: "),
        ("? [a]\n: 1", "my.yaml:1:3: "),
    ],
)
def test_other_files_are_refused_at_their_line(tmp_path, text, expected):
    assert expected in failure(write(tmp_path, text))


def test_missing_or_unreadable_file_is_refused(tmp_path):
    assert str(tmp_path / "nowhere.yaml") in failure(tmp_path / "nowhere.yaml")
    assert str(tmp_path) in failure(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"run: a\ncache: \xe9")
    assert "latin.yaml:2: byte 15" in failure(tmp_path / "latin.yaml")


def test_repeated_key_is_refused_with_both_lines(tmp_path):
    path = write(tmp_path, BASE.replace("    requests: 32", "    requests: 32\n    requests: 64"))
    assert re.search(rf"{path}:24: requests: .*\b23\b", failure(path))
    with pytest.raises(ConfigError, match=r":24: requests: .*\b23\b"):
        validate(yaml.safe_load(path.read_text()), [path])


@pytest.mark.parametrize(("twice", "line"), [("&k K: 1\n      *k : 2", 17), ("! K: 1\n      K: 2", 18), ("K: 1\n      'K': 2", 18)])
def test_key_repeated_by_alias_tag_or_quotes_is_refused(tmp_path, twice, line):
    """An alias has the line of its anchor."""
    path = write(tmp_path, BASE.replace("OMP_NUM_THREADS: 2", twice))
    assert positions.read(path).duplicates == ((line, 17, "K"),)


@pytest.mark.parametrize("old", ["max-model-len: 512", "OMP_NUM_THREADS: 2"])
def test_empty_key_is_refused_at_its_section(tmp_path, old):
    assert re.search(r"my\.yaml:1[46]: deployments\.plain\.(options|variables)", failure(write(tmp_path, BASE.replace(old, "~: abc"))))


def test_same_key_in_two_mappings_or_behind_an_alias_is_valid(tmp_path):
    text = BASE.replace("    options:\n", "    options: &o\n") + "  code:\n    <<: {dataset: random}\n"
    text += "    input_tokens: 1\n    output_tokens: 1\n    requests: 1\n    concurrency: 1\n"
    assert set(load(write(tmp_path, text)).workloads) == {"chat", "code"}


def test_fault_behind_a_merge_key_has_its_own_line(tmp_path):
    text = "run: demo\nmodels:\n  a: &m\n    source: builtin:nope\n  b:\n    <<: [*m]\n" + BASE.split("\n", 4)[4]
    message = failure(write(tmp_path, text))
    assert "my.yaml:4: models.a.source" in message and "my.yaml:4: models.b.source" in message


def test_key_that_overrides_a_merged_one_has_its_own_line(tmp_path):
    text = "run: demo\nmodels:\n  a: &m\n    source: ./a\n  b:\n    <<: *m\n    source: builtin:nope\n"
    message = failure(write(tmp_path, text + BASE.split("\n", 4)[4].replace("model: tiny", "model: a")))
    assert re.findall(r"my\.yaml:\d+: [\w.]+", message) == ["my.yaml:7: models.b.source"]


def test_name_that_yaml_reads_as_false_is_refused_at_its_section(tmp_path):
    assert "my.yaml:18: workloads[False]: " in failure(write(tmp_path, BASE.replace("  chat:", "  no:")))


def test_fault_names_the_file_that_set_the_value_or_config(tmp_path):
    first, second = write(tmp_path, BASE, "first.yaml"), tmp_path / "second.yaml"
    second.write_text("models:\n  tiny:\n    source: builtin:oops\n")
    data = yaml.safe_load(BASE)
    data["models"]["tiny"]["source"] = "builtin:oops"
    data["workloads"]["chat"]["requests"] = 0
    data["run"] = "Second"
    data["cash"] = 1
    with pytest.raises(ConfigError) as caught:
        validate(data, [first, second])
    message = str(caught.value)
    assert f"{second}:3: models.tiny.source" in message
    for key in ("run", "cash", "workloads.chat.requests"):
        assert f"  --config: {key}: " in message
    assert message.index("models.tiny.source") < message.index("--config")


def test_default_configuration_is_valid_as_merged_data():
    path = ROOT / "config" / "config.yaml"
    assert validate(yaml.safe_load(path.read_text()), [path]) == load(path)
