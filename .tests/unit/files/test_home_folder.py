"""A home folder that takes no files: caches and settings of libraries go to a private folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from servemark.files import home, storage
from servemark.supervisor import process_request


@pytest.fixture
def private(tmp_path):
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    return lambda: folder


@pytest.fixture
def closed(tmp_path, monkeypatch):
    """A home folder that refuses every write, also of root."""
    folder = tmp_path / "closed"
    folder.mkdir()
    real = storage._try

    def attempt(place: Path, size: int) -> OSError | None:
        refused = Path(place).is_relative_to(folder)
        return PermissionError(errno.EACCES, "Permission denied", str(place)) if refused else real(place, size)

    monkeypatch.setattr(storage, "_try", attempt)
    return folder


def no_folder() -> Path:
    raise AssertionError("made a private folder")


def test_home_that_takes_files_changes_nothing(tmp_path):
    env = {"HOME": str(tmp_path), "PATH": "/bin"}
    assert home.replaced(env, no_folder) == env


def test_closed_home_gets_private_folders_and_keeps_its_name(closed, private):
    env = home.replaced({"HOME": str(closed)}, private)
    assert env["HOME"] == str(closed)
    for name in home.FOLDERS:
        assert Path(env[name]).is_relative_to(private()) and Path(env[name]).is_dir()
        assert Path(env[name]).stat().st_mode & 0o077 == 0


def test_closed_cache_folder_in_an_open_home_is_replaced_alone(closed, private, tmp_path):
    env = home.replaced({"HOME": str(tmp_path), "XDG_CACHE_HOME": str(closed / "x")}, private)
    assert Path(env["XDG_CACHE_HOME"]).is_relative_to(private())
    assert "XDG_CONFIG_HOME" not in env


def test_home_that_does_not_exist_is_judged_by_its_parent(closed, private):
    assert home.VARIABLE in home.replaced({"HOME": str(closed / "nobody")}, private)


def test_folder_of_another_node_is_forgotten(tmp_path):
    inherited = {"HOME": str(tmp_path), home.VARIABLE: "/far/home", "XDG_CACHE_HOME": "/far/home/.cache"}
    assert home.replaced(inherited, no_folder) == {"HOME": str(tmp_path)}


def test_process_without_any_folder_is_left_as_it_is(closed, monkeypatch):
    monkeypatch.setenv("HOME", str(closed))
    monkeypatch.setenv("SERVEMARK_RUNTIME_DIR", "/dev/null/runtime")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    home.replace()
    assert "XDG_CACHE_HOME" not in os.environ


def test_server_on_a_node_with_closed_home_writes_into_its_scratch(closed, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(closed))
    for name in home.FOLDERS:
        monkeypatch.delenv(name, raising=False)
    request = process_request.DaemonRequest(name="s", argv=("x",), env={}, log="l", scratch=str(tmp_path / "scratch"))
    env = process_request.environment(request)
    assert env["XDG_CACHE_HOME"].startswith(str(tmp_path / "scratch"))
    assert "XDG_CACHE_HOME" not in process_request.environment(request.model_copy(update={"scratch": None}))


@pytest.mark.parametrize("env", [{}, {"HOME": ""}, {"XDG_CACHE_HOME": "~nosuchuser/x", "XDG_CONFIG_HOME": "~nosuchuser/y"}])
def test_folder_of_an_unknown_user_is_replaced(private, monkeypatch, env):
    def unknown(*_):
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert all(Path(home.replaced(env, private)[name]).is_relative_to(private()) for name in home.FOLDERS)
