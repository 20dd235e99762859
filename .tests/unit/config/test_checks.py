"""Accuracy checks in the configuration: refused before anything starts, and absent where none is asked for."""

from __future__ import annotations

import json
import shutil

import pytest

from builders.paths import ROOT
from servemark.config import asked_checks, paths
from servemark.config.load import validate
from servemark.errors import ConfigError

TASK = ROOT / ".tests" / "fixtures" / "tasks" / "capitals"


def config(checks, model=None):
    return {
        "run": "demo",
        "models": {"tiny": {"source": "builtin:tiny-dense", **(model or {})}},
        "environments": {"cpu": {"lock": "cpu"}},
        "deployments": {"plain": {"model": "tiny", "environment": "cpu", "checks": checks}},
        "workloads": {"chat": {"dataset": "random", "input_tokens": 64, "output_tokens": 32, "requests": 32, "concurrency": 4}},
    }


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"limit": 0}, "deployments.plain.checks.gsm8k.limit"),
        ({"limit": 1.5}, "deployments.plain.checks.gsm8k.limit"),
        ({"min": 1.1}, "deployments.plain.checks.gsm8k.min"),
        ({"min": -0.1}, "deployments.plain.checks.gsm8k.min"),
        ({"min": None}, "deployments.plain.checks.gsm8k.min"),
        ({"shots": -1}, "deployments.plain.checks.gsm8k.shots"),
        ({"task": "gsm8k"}, "deployments.plain.checks.gsm8k.task"),
        ({"minimum": 0.5}, "deployments.plain.checks.gsm8k.minimum"),
    ],
)
def test_bad_check_is_refused_with_exit_code_2(changes, place):
    with pytest.raises(ConfigError) as caught:
        validate(config({"gsm8k": {"limit": 200, "min": 0.9, **changes}}))
    assert caught.value.exit_code == 2 and f"{place}:" in str(caught.value)


def test_unknown_key_of_check_suggests_the_nearest():
    with pytest.raises(ConfigError) as caught:
        validate(config({"gsm8k": {"limits": 200, "min": 0.9}}))
    assert "`limit`" in str(caught.value)


def test_name_that_is_no_file_name_is_refused():
    with pytest.raises(ConfigError):
        validate(config({"../gsm8k": {"limit": 200, "min": 0.9}}))


def test_random_weights_are_refused_with_exit_code_2():
    with pytest.raises(ConfigError) as caught:
        validate(config({"gsm8k": {"limit": 200, "min": 0.9}}, {"load_format": "dummy"}))
    assert caught.value.exit_code == 2 and "deployments.plain.checks:" in str(caught.value)


@pytest.mark.parametrize(("program", "faults"), [("true", []), ("no-such-program", [("publish",)]), ("./up.sh", [("publish",)])])
def test_program_of_publish_is_looked_up(tmp_path, monkeypatch, program, faults):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "up.sh").write_text("#!/bin/sh\n")
    asked = validate(config({}) | {"publish": [program, "{archive}"]})
    assert [problem.loc for problem in paths.problems(asked)] == faults
    (tmp_path / "published.json").write_text("{}")
    assert paths.problems(asked, tmp_path) == [], "it has run"


def test_missing_task_and_crowded_folder_are_refused(tmp_path, monkeypatch):
    shutil.copytree(TASK, tmp_path / "capitals")
    task = tmp_path / "capitals" / "capitals.yaml"
    asked = {"limit": 5, "min": 0.5, "task": str(task)}
    assert not list(paths.problems(validate(config({"capitals": asked}))))
    monkeypatch.setattr(asked_checks, "MOST_FILES", 1)
    (crowded,) = paths.problems(validate(config({"capitals": asked})))
    monkeypatch.undo()
    task.write_text("task: x\nprocess_docs: !function code.rows\n")
    assert not list(paths.problems(validate(config({"capitals": asked})))), "lm-eval's own tags"
    task.write_text("task: [x\n")
    (broken,) = paths.problems(validate(config({"capitals": asked})))
    assert broken.loc == crowded.loc
    task.unlink()
    (lost,) = paths.problems(validate(config({"capitals": asked})))
    assert crowded.loc == lost.loc == ("deployments", "plain", "checks", "capitals", "task") and crowded.text != lost.text


def test_content_of_the_task_folder_is_asked_for(tmp_path):
    shutil.copytree(TASK, tmp_path / "capitals")
    found = validate(config({"capitals": {"limit": 5, "min": 0.5, "task": str(tmp_path / "capitals" / "capitals.yaml")}}))
    found = found.model_copy(update={"cache": tmp_path / "cache"})
    (before,) = asked_checks.asked(found, "plain")
    (tmp_path / "capitals" / "capitals.jsonl").write_text("{}\n")
    (after,) = asked_checks.asked(found, "plain")
    assert before.data and after.data and before.data != after.data
    assert before.model_copy(update={"data": None}) == after.model_copy(update={"data": None})


def test_configuration_without_checks_keeps_its_text():
    text = json.dumps(validate(config({})).model_dump(mode="json"))
    assert "checks" not in text and asked_checks.asked(validate(config({})), "plain") == ()
