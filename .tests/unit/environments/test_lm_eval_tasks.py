"""Tasks of accuracy checks are looked up in lm-eval before a deployment starts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from servemark.environments import lm_eval_tasks
from servemark.errors import EnvironmentRefused
from servemark.processes.children import OwnerWatch
from standin import make_lm_eval


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return str(make_lm_eval(tmp_path_factory.mktemp("lm-eval")) / "bin" / "python")


def require(python, tmp_path, *tasks):
    environment = SimpleNamespace(python=python, bytecode=None)
    lm_eval_tasks.require(environment, tasks, log=tmp_path / "log", timeout_s=120, watch=OwnerWatch())


def test_known_tasks_pass(python, tmp_path):
    require(python, tmp_path, "gsm8k", "arc_easy")


def test_unknown_task_is_named(python, tmp_path):
    with pytest.raises(EnvironmentRefused) as caught:
        require(python, tmp_path, "gsm8k", "gsm8kk")
    assert caught.value.reason == "accuracy_task_unknown" and "gsm8kk" in caught.value.what and "gsm8k," not in caught.value.what


def test_tag_is_refused_because_it_has_no_result_of_its_own(python, tmp_path):
    with pytest.raises(EnvironmentRefused) as caught:
        require(python, tmp_path, "gsm8k", "ai2_arc")
    assert caught.value.reason == "accuracy_task_unknown" and "ai2_arc" in caught.value.what and "gsm8k" not in caught.value.what


def test_broken_lm_eval_is_refused(tmp_path):
    with pytest.raises(EnvironmentRefused) as caught:
        require("/bin/false", tmp_path, "gsm8k")
    assert caught.value.reason == "accuracy_failed" and caught.value.look
