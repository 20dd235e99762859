"""Folder names: refused names, start of pip's scripts, quoting of Snakemake's command lines."""

from __future__ import annotations

import importlib.util
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from snakemake_interface_executor_plugins import utils

from builders import odd_folder
from builders.paths import ROOT
from servemark.config import field_types
from servemark.files import folder_name
from servemark.run import main_process
from snakemake_executor_plugin_slurm_guarded import quoting

SPEC = importlib.util.spec_from_file_location("finish_setup", ROOT / "envs" / "finish_setup.py")
finish_setup = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(finish_setup)
BODY = "import sys\nprint(sys.argv[1:], sys.flags.utf8_mode)\n"
BAD = [b"/home/a:b", b"/home/a\nb", b"/home/a\tb", b"/home/a\\b", b"/home/\xfcber"]


@pytest.mark.parametrize("folder", BAD)
def test_folder_that_cannot_work_has_a_fault(folder):
    assert folder_name.fault(folder)


def test_folder_with_odd_but_workable_name_has_no_fault():
    assert folder_name.fault(os.fsencode(f"/home/{odd_folder.NAME}")) is None


@pytest.mark.parametrize("folder", BAD)
def test_script_refuses_the_name_without_any_package(tmp_path, folder):
    here = os.path.join(os.fsencode(tmp_path), os.path.basename(folder))
    os.mkdir(here)
    argv = [sys.executable, "-I", "-S", folder_name.__file__]
    done = subprocess.run(argv, cwd=here, env={"LC_ALL": "C"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (2, "", False)
    assert done.stderr.count("\n") == 2


def test_main_process_refuses_folder_with_colon(tmp_path, monkeypatch, capsys):
    here = tmp_path / "a:b"
    here.mkdir()
    monkeypatch.chdir(here)
    with pytest.raises(SystemExit) as ended:
        main_process.load({}, [], is_main=True)
    assert ended.value.code == 2
    assert "a:b" in capsys.readouterr().err and list(here.iterdir()) == []


@pytest.mark.parametrize("folder", ["/data/a:b", "/data/a\nb"])
def test_configuration_refuses_path_that_cannot_work(folder):
    with pytest.raises(ValueError):
        field_types._path(folder)


@pytest.mark.parametrize("name", ["plain", "with space", "x" * 130, odd_folder.NAME])
def test_script_of_pip_starts_in_any_folder_and_when_moved(tmp_path, name):
    scripts = tmp_path / name / "bin"
    scripts.mkdir(parents=True)
    (scripts / "python").symlink_to(sys.executable)
    quoted = f'"{scripts}/python"' if " " in name else f"{scripts}/python"
    simple = " " not in name and len(quoted) < 120
    start = f"#{'!'}{quoted}\n" if simple else f"#!/bin/sh\n'''exec' {quoted} \"$0\" \"$@\"\n' '''\n"
    (scripts / "tool").write_text(start + BODY)
    (scripts / "tool").chmod(0o755)
    (scripts / "activate").write_text("# for a shell\n")
    finish_setup.start_scripts(scripts)
    moved = tmp_path / "moved"
    (tmp_path / name).rename(moved)
    linked = tmp_path / "link"
    linked.symlink_to(moved / "bin" / "tool")
    for tool in (moved / "bin" / "tool", linked):
        done = subprocess.run([tool, "a b", "$c"], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "['a b', '$c'] 1\n"), done.stderr
    assert stat.S_IMODE((moved / "bin" / "tool").stat().st_mode) == 0o755
    assert (moved / "bin" / "activate").read_text() == "# for a shell\n"
    assert {path.name for path in (moved / "bin").iterdir()} == {"python", "tool", "activate", "servemark"}


def test_pth_file_below_umlaut_is_ascii(tmp_path, monkeypatch):
    root = tmp_path / odd_folder.NAME
    packages = root / ".venv/lib/python3/site-packages"
    packages.mkdir(parents=True)
    monkeypatch.setattr(finish_setup, "ROOT", root)
    finish_setup.find_packages(packages)
    lines = (packages / "servemark.pth").read_bytes().splitlines()
    assert lines == [f"../../../../{folder}".encode("ascii") for folder in finish_setup.PACKAGES]


def test_pth_file_of_a_linked_venv_has_absolute_paths(tmp_path, monkeypatch):
    root, elsewhere = tmp_path / "checkout", tmp_path / "elsewhere"
    (elsewhere / "site-packages").mkdir(parents=True)
    root.mkdir()
    (root / ".venv").symlink_to(elsewhere)
    monkeypatch.setattr(finish_setup, "ROOT", root)
    finish_setup.find_packages(root / ".venv/site-packages")
    lines = (elsewhere / "site-packages/servemark.pth").read_text().splitlines()
    assert lines == [f"{root}/{folder}" for folder in finish_setup.PACKAGES]


def test_every_folder_of_the_pth_file_exists():
    assert [folder for folder in finish_setup.PACKAGES if not list((ROOT / folder).glob("*/__init__.py"))] == []


@pytest.fixture
def snakemake_as_it_is(monkeypatch):
    monkeypatch.setattr(sys, "executable", sys.executable)
    monkeypatch.setattr(utils, "format_cli_value", utils.format_cli_value)


@pytest.fixture
def odd_python(tmp_path, snakemake_as_it_is):
    """Set ``sys.executable`` to an interpreter in an odd folder; return the folder."""
    root = tmp_path / odd_folder.NAME
    bin_ = root / ".venv" / "bin"
    bin_.mkdir(parents=True)
    (root / ".venv/pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    (bin_ / "python").symlink_to(Path(sys.executable).resolve())
    sys.executable = str(bin_ / "python")
    return root


def test_interpreter_in_odd_folder_gets_a_name_without_quotes(odd_python, monkeypatch):
    monkeypatch.chdir(odd_python)
    quoting.quote(odd_python)
    assert shlex.quote(sys.executable) == sys.executable
    code = "import sys; print(sys.prefix != sys.base_prefix)"
    done = subprocess.run(f"{sys.executable} -c {shlex.quote(code)}", shell=True, capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


def test_interpreter_named_by_its_link_makes_no_second_link(odd_python, monkeypatch):
    quoting.quote(odd_python)
    link = odd_python / quoting.LINK
    before = link.readlink()
    # In a job, Python makes the name absolute.
    sys.executable = str(odd_python / sys.executable)
    quoting.quote(odd_python)
    assert (sys.executable, link.readlink()) == (str(quoting.LINK / "bin/python"), before)
    assert len(list(link.parent.iterdir())) == 1


def test_link_to_a_missing_environment_is_replaced(odd_python):
    link = odd_python / quoting.LINK
    link.parent.mkdir()
    link.symlink_to("/nowhere")
    quoting.quote(odd_python)
    assert link.readlink() == odd_python / ".venv"


def test_plain_interpreter_is_left_as_it_is(tmp_path, snakemake_as_it_is):
    sys.executable = "/usr/bin/python3"
    quoting.quote(tmp_path)
    assert (sys.executable, list(tmp_path.iterdir())) == ("/usr/bin/python3", [])


def test_shell_splits_arguments_of_snakemake_correctly(tmp_path, snakemake_as_it_is):
    odd = tmp_path / odd_folder.NAME
    odd.mkdir()
    quoting.quote(odd)
    path = f"/work/{odd_folder.NAME}/Snakefile"
    said = utils.format_cli_arg("--snakefile", path)
    assert shlex.split(said) == ["--snakefile", path]
    assert shlex.split(utils.format_cli_arg("--wait-for-files", [path, "b"])) == ["--wait-for-files", path, "b"]
    assert shlex.split(utils.format_cli_arg("--config", ["'a b'"])) == ["--config", "a b"]
    assert utils.format_cli_arg("--jobs", 3) == "--jobs 3"


def test_our_packages_are_compiled_at_setup(tmp_path, monkeypatch):
    module = tmp_path / finish_setup.PACKAGES[0] / "one.py"
    module.parent.mkdir(parents=True)
    module.write_text("pass\n")
    monkeypatch.setattr(finish_setup, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    finish_setup.compile_packages()
    assert Path(importlib.util.cache_from_source(str(module))).exists()
