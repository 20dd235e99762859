"""The git state of a checkout: commit, changes, configuration files."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from servemark import supervisor
from servemark.deployment import attempts
from servemark.machine import git_state
from servemark.records import Sources


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with one commit, read without the configuration of git on this machine."""
    folder = tmp_path / "checkout"
    for name, text in {
        "Snakefile": "rule all\n", "workflow/a.py": "a\n", "workflow/b.py": "b\n", "README.md": "r\n", ".gitignore": "/results/*\n*.pyc\n",
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name, value in {
        "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_CEILING_DIRECTORIES": str(tmp_path),
        "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "x")


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_clean_checkout_has_its_commit_and_no_changes(checkout):
    (checkout / "my.yaml").write_text("run: a\n")
    (checkout / "results").mkdir()
    (checkout / "results" / "x").write_text("a result")
    state = git_state.look(checkout)
    assert state.commit == git(checkout, "rev-parse", "HEAD") and state.why is None
    assert (state.dirty, state.changes, state.changed, state.changes_sha256) == (False, 0, (), None)
    assert git_state.words([state]) == state.commit[:12]


def test_changes_are_listed_with_a_digest(checkout):
    (checkout / "workflow" / "a.py").write_text("changed\n")
    (checkout / "workflow" / "b.py").unlink()
    (checkout / "workflow" / "größe.py").write_text("new\n")
    (checkout / "workflow" / "c.pyc").write_text("ignored\n")
    git(checkout, "add", "workflow/a.py")
    state = git_state.look(checkout)
    assert (state.dirty, state.changes) == (True, 3)
    assert state.changed == ("workflow/a.py", "workflow/b.py", "workflow/größe.py")
    listing = f"{sha256('changed' + chr(10))}  workflow/a.py\ndeleted  workflow/b.py\n{sha256('new' + chr(10))}  workflow/größe.py\n"
    assert state.changes_sha256 == sha256(listing)
    assert git_state.words([state]) == f"{state.commit[:12]}-dirty"
    (checkout / "workflow" / "a.py").write_text("changed again\n")
    assert git_state.look(checkout).changes_sha256 != state.changes_sha256


def test_configuration_of_git_is_ignored(checkout, tmp_path, monkeypatch):
    (checkout / "workflow" / "a.py").write_text("changed\n")
    before = git_state.look(checkout)
    (tmp_path / "config").write_text(
        "[diff]\n external = false\n noprefix = true\n mnemonicPrefix = true\n renames = copies\n[core]\n quotePath = true\n"
        "[color]\n ui = always\n[status]\n showUntrackedFiles = no\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    assert git_state.look(checkout) == before


def test_untracked_checkout_in_another_repository_has_no_commit(checkout):
    inner = checkout / "inner"
    (inner / "workflow").mkdir(parents=True)
    (inner / "Snakefile").write_text("inner\n")
    (checkout / "workflow" / "a.py").write_text("of the outer one\n")
    assert git_state.look(inner).commit is None and git_state.look(inner).why
    commit(checkout)
    (inner / "workflow" / "new.py").write_text("new\n")
    (checkout / "workflow" / "b.py").write_text("of the outer one\n")
    state = git_state.look(inner)
    assert state.commit and state.changed == ("workflow/new.py",)


def test_without_git_the_reason_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    state = git_state.look(tmp_path)
    assert (state.commit, state.dirty) == (None, None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state.look(tmp_path).why.endswith("FileNotFoundError")
    assert git_state.words([state]) == state.why and git_state.words([])
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\necho 'fatal: dubious ownership' >&2\nexit 128\n")
    git.chmod(0o755)
    assert git_state.look(tmp_path).why == "fatal: dubious ownership"


def test_text_of_configuration_files_is_recorded(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_bytes("run: a  # größe\n".encode())
    (given,) = git_state.look(tmp_path, [path, tmp_path / "not-there.yaml"]).configuration
    assert (given.path, given.text) == (str(path), "run: a  # größe\n")
    assert given.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_attempt_gets_a_copy_of_the_git_state(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "launch", lambda *_: None)
    allocation = SimpleNamespace(job_id="7", ends_at=None)
    scratch = (tmp_path / "scratch" / name for name in "abc")
    (tmp_path / "scratch").mkdir(mode=0o700)
    folder = tmp_path / "demo" / "deployments" / "plain"
    made = []
    for state in (
        None,
        Sources(servemark="1", commit="a" * 40, dirty=False),
        Sources(servemark="2", why="no git"),
    ):
        if state:
            git_state.note(tmp_path / "demo", state)
        made.append(attempts.open_attempt("plain", folder, next(scratch), allocation, stop_grace_s=1.0))
    assert not (made[0] / git_state.NAME).exists()
    assert json.loads((made[1] / git_state.NAME).read_text())["servemark"] == "1"
    states = [Sources.read(attempt / git_state.NAME) for attempt in made[1:]]
    assert [state.servemark for state in states] == ["1", "2"]
    assert git_state.words(states) == f"{'a' * 12}, no git"
