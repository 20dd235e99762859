"""Environments and compile caches whose paths have special characters get links with plain names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from builders import odd_folder
from servemark.supervisor import process_request
from servemark.supervisor.process_request import DaemonRequest


@pytest.fixture
def root(tmp_path):
    """The private folder on a node, which holds the attempts' scratch folders."""
    made = tmp_path / "root"
    made.mkdir(mode=0o700)
    return made


def request(root: Path, python: str, **env: str) -> DaemonRequest:
    return DaemonRequest(name="server", argv=(python, "-m", "vllm", "a b"), env=env, log="log", scratch=f"{root}/1")


def test_interpreter_in_odd_folder_gets_plain_name(tmp_path, root):
    prefix = tmp_path / odd_folder.NAME
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    argv = process_request.command(request(root, str(prefix / "bin/python")))
    assert process_request.is_plain(argv[0]) and argv[1:] == ["-m", "vllm", "a b"]
    code = "import os, sys; print(sys.prefix, os.path.realpath(sys.prefix))"
    done = subprocess.run([argv[0], "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{Path(argv[0]).parents[1]} {prefix}\n"
    assert process_request.command(request(root, str(prefix / "bin/python"))) == argv, "the same name at every start"


def test_compile_caches_get_plain_names(tmp_path, root):
    kept = tmp_path / odd_folder.NAME / "compiled"
    given = {"VLLM_CACHE_ROOT": str(kept / "vllm"), "TRITON_CACHE_DIR": str(kept / "triton"), "MINE": "/my own/folder"}
    env = process_request.environment(request(root, sys.executable, **given))
    assert env["MINE"] == "/my own/folder"
    for name in ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR"):
        assert process_request.is_plain(env[name])
        os.makedirs(env[name])
        assert Path(given[name]).is_dir()


def test_folder_whose_own_name_is_special_gets_a_plain_name(tmp_path, root):
    kept = tmp_path / "my cache"
    env = process_request.environment(request(root, sys.executable, VLLM_CACHE_ROOT=str(kept)))
    assert process_request.is_plain(env["VLLM_CACHE_ROOT"])
    os.makedirs(Path(env["VLLM_CACHE_ROOT"], "below"))
    assert (kept / "below").is_dir()


def test_link_that_leads_elsewhere_is_replaced(tmp_path, root):
    folder, other = tmp_path / "my cache", tmp_path / "other"
    link = process_request.plain(folder, root)
    link.unlink()
    link.symlink_to(other)
    assert process_request.plain(folder, root) == link and os.readlink(link) == str(folder)


def test_root_that_others_can_write_to_is_refused(tmp_path, root):
    root.chmod(0o777)
    with pytest.raises(PermissionError, match=re.escape(str(root))):
        process_request.plain(tmp_path / "my cache", root)
    assert list(root.iterdir()) == []


def test_plain_names_stay_as_they_are(root):
    asked = request(root, "/opt/env/bin/python", VLLM_CACHE_ROOT="/cache/vllm")
    assert process_request.command(asked)[0] == "/opt/env/bin/python"
    assert process_request.environment(asked)["VLLM_CACHE_ROOT"] == "/cache/vllm"
    assert process_request.command(request(root, "python"))[0] == "python"
    assert list(root.iterdir()) == []
