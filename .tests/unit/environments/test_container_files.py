"""The build files of a container image: both start from the same base and install every lock file that there is."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from servemark.environments import lockfiles

ENVS = Path(__file__).parents[3] / "envs"
CONTAINERFILE, DEFINITION = (ENVS / "Containerfile").read_text(), (ENVS / "container.def").read_text()
SCRIPT = ENVS / "install-in-image"


def test_both_files_have_the_same_defaults():
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", CONTAINERFILE, re.MULTILINE))
    section = DEFINITION.partition("%arguments")[2].partition("%files")[0]
    assert arguments == {name: value for name, value in re.findall(r"^\s+(\w+)=(\S+)$", section, re.MULTILINE) if name != "FROM"}
    assert arguments["LOCK"] in lockfiles.NAMES


def test_both_files_copy_what_the_script_reads():
    for name in ("install-in-image", "cpu-shim", ".lock"):
        assert name in CONTAINERFILE and name in DEFINITION


def test_both_files_put_the_environment_first_in_the_path():
    paths = [re.search(r"PATH=(\S+)$", text, re.MULTILINE) for text in (CONTAINERFILE, DEFINITION)]
    assert paths[0] and paths[1] and paths[0][1] == paths[1][1]
    assert paths[0][1].startswith("/opt/env/bin:")


def test_script_installs_every_lock_file_and_no_other():
    cases = re.findall(r"^  ([a-z0-9 |]+)\)", SCRIPT.read_text(), re.MULTILINE)
    assert {name.strip() for case in cases for name in case.split("|")} == set(lockfiles.NAMES)


@pytest.mark.parametrize("name", ["", "cuda14", "workflow"])
def test_script_refuses_another_name(name: str):
    done = subprocess.run([SCRIPT, name], capture_output=True, text=True)
    assert done.returncode == 2 and all(lock in done.stderr for lock in lockfiles.NAMES)
