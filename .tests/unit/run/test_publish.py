"""``publish``: the command gets the archive's path, no shell runs, a failure is a message."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from servemark.config.after import with_archive
from servemark.config.model import Config
from servemark.deployment.stage import Stage
from servemark.errors import ConfigError
from servemark.processes.children import OwnerWatch
from servemark.progress import Progress
from servemark.run.publish import PublishFailed, publish

DUMP = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open('seen.json', 'w'))"


@pytest.fixture
def archive(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "demo.tar.zst"
    path.write_bytes(b"archive")
    path.with_name("demo.tar.zst.sha256").write_text("ab12  demo.tar.zst\n")
    return path


@pytest.fixture
def stage(tmp_path, monkeypatch) -> Stage:
    monkeypatch.setattr(OwnerWatch, "_watch", lambda self: None)
    return Stage(Progress(None, "publish_archive"), tmp_path / "publish.log", OwnerWatch(os.getpid()))  # type: ignore[arg-type]


def test_command_gets_path_and_variables(archive, stage):
    done = publish((sys.executable, "-c", DUMP, "a b", "$HOME"), archive, stage, {"PATH": os.environ["PATH"]})
    words, variables = json.loads(Path("seen.json").read_text())
    assert words == ["a b", "$HOME", str(archive)]
    assert variables["SERVEMARK_ARCHIVE"] == str(archive)
    assert (variables["SERVEMARK_SHA256"], variables["SERVEMARK_RUN"]) == ("ab12", "demo")
    assert (done.exit_code, done.stopped) == (0, None)


def test_place_of_the_path_can_be_chosen():
    assert with_archive(("cp", "{archive}", "s3://x/"), "/a b.zst") == ["cp", "/a b.zst", "s3://x/"]
    assert with_archive(("upload",), "/a.zst") == ["upload", "/a.zst"]


def test_failure_names_command_code_and_last_lines(archive, stage):
    code = "import sys; print('disk quota exceeded', file=sys.stderr); sys.exit(7)"
    with pytest.raises(PublishFailed) as caught:
        publish((sys.executable, "-c", code), archive, stage, os.environ)
    assert caught.value.exit_code == 1 and caught.value.reason == "publish_failed"
    assert "7" in caught.value.what and "disk quota exceeded" in caught.value.what
    assert archive.read_bytes() == b"archive"


def test_missing_program_is_a_message(archive, stage):
    with pytest.raises(PublishFailed) as caught:
        publish(("no-such-program",), archive, stage, os.environ)
    assert "no-such-program" in caught.value.what


@pytest.mark.parametrize(
    ("given", "words"),
    [("upload --to 'my site'", ("upload", "--to", "my site")), (["upload", "a b"], ("upload", "a b")), (None, None)],
)
def test_text_is_split_and_a_list_is_taken_as_it_is(given, words):
    base = {
        "run": "x",
        "models": {"tiny": {"source": "builtin:tiny-dense"}},
        "environments": {"cpu": {"lock": "cpu"}},
        "deployments": {"a": {"model": "tiny", "environment": "cpu"}},
        "workloads": {"w": {"dataset": "random", "input_tokens": 1, "output_tokens": 1, "requests": 1, "concurrency": 1}},
    }
    assert Config.model_validate(base | {"publish": given}).publish == words
    for wrong in ("", [], "un'finished", [1]):
        with pytest.raises((ValueError, ConfigError)):
            Config.model_validate(base | {"publish": wrong})
