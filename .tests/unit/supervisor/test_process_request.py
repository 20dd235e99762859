"""Command line and environment of a process: devices, secrets from files, modules, and no variables of the Slurm step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builders.paths import LIBRARY
from servemark.records import Container
from servemark.supervisor import process_request
from servemark.supervisor.process_request import DaemonRequest
from servemark.variables import passed_on


@pytest.mark.parametrize(
    ("given", "places", "gpus", "expected"),
    [
        ("0,1,2,3", (2, 3), True, "2,3"),
        ("4,5,6,7", (0, 2), True, "4,6"),
        ("GPU-aa,GPU-bb,MIG-cc", (2, 0), True, "MIG-cc,GPU-aa"),
        ("7", (0,), False, "7"),
        ("1 , 0", (1, 0), True, "0,1"),
        (None, (1, 3), True, "1,3"),
        (None, (0, 1), False, None),
        # A value that hides all GPUs stays.
        ("", (0, 1), True, None),
        ("", (0,), False, None),
        ("-1", (0, 1), True, None),
        ("NoDevFiles", (0,), True, None),
    ],
)
def test_devices_are_selected_by_position_and_never_renumbered(monkeypatch, given, places, gpus, expected):
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: gpus if str(path) == "/dev/nvidiactl" else exists(path))
    assert process_request.visible({} if given is None else {process_request.VISIBLE: given}, places) == expected


def request(**changes) -> DaemonRequest:
    return DaemonRequest(**({"name": "server", "argv": ("vllm", "serve"), "env": {}, "log": "server.log"} | changes))


def test_environment_has_requested_variables_and_no_step(monkeypatch, tmp_path):
    for name in ("SLURM_STEP_ID", "SLURM_NTASKS", "SRUN_DEBUG", "SBATCH_PARTITION", "PMIX_RANK", "PMI_FD", "HF_TOKEN"):
        monkeypatch.setenv(name, "ours")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv(process_request.VISIBLE, "4,5,6,7")
    key = tmp_path / "key"
    key.write_text("s3cr3t\n")
    env = process_request.environment(request(env={"A": "b"}, secret_env={"VLLM_API_KEY": str(key)}, devices=(1, 2)))
    assert (env["A"], env["VLLM_API_KEY"], env[process_request.VISIBLE]) == ("b", "s3cr3t", "5,6")
    left = {name for name in env if name.startswith(("SLURM", "SRUN", "SBATCH", "PMI", "HF_"))}
    assert left <= {"SLURM_CONF", "SLURM_JOB_ID", "SLURMD_NODENAME"} and env["SLURM_JOB_ID"] == "7"
    assert process_request.environment(request())[process_request.VISIBLE] == "4,5,6,7", "all devices by default"
    with pytest.raises(FileNotFoundError):
        process_request.environment(request(secret_env={"VLLM_API_KEY": str(tmp_path / "gone")}))


def test_interpreters_folder_comes_first_in_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    ask = {"name": "server", "env": {}, "log": str(tmp_path / "log")}
    request = DaemonRequest(argv=("/env/bin/python", "-V"), **ask)
    assert process_request.environment(request)["PATH"] == "/env/bin:/usr/bin:/bin"
    assert process_request.environment(DaemonRequest(argv=("python", "-V"), **ask))["PATH"] == "/usr/bin:/bin"


def test_modules_do_not_hide_the_tools_next_to_the_interpreter(tmp_path):
    tool = tmp_path / "bin" / "show"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho $PATH\n")
    tool.chmod(0o755)
    (argv, env) = process_request.with_modules([str(tool)], ["none"]), {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    (tmp_path / ".bash_profile").write_text("module() { :; }\n")
    shown = subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout
    assert shown.startswith(f"{tool.parent}:")


def test_launcher_gets_only_the_request_file(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(process_request.VISIBLE, "0")
    monkeypatch.setenv("SLURM_STEP_ID", "3")
    monkeypatch.setenv("VLLM_API_KEY", "another one")
    asked = request(launcher=("srun", "--nodes=1"), env={"SECRET_PATH": "x"})
    argv, env = process_request.through_launcher(asked, Path("requests/server.json"))
    assert argv == [
        "srun",
        "--nodes=1",
        sys.executable,
        "-m",
        "servemark.supervisor.remote",
        str(tmp_path / "requests/server.json"),
    ]
    assert not {"SECRET_PATH", "VLLM_API_KEY", "SLURM_STEP_ID", process_request.VISIBLE} & set(env)
    library, plugin = map(Path, env["PYTHONPATH"].split(":"))
    assert library == LIBRARY and (plugin / "snakemake_executor_plugin_slurm_guarded" / "__init__.py").exists()


def test_command_without_modules_is_unchanged():
    assert process_request.command(request()) == ["vllm", "serve"]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A login shell with a function `module`, which records what it loads and fails for cuda/0."""
    (tmp_path / ".bash_profile").write_text('module() { [ "$2" = cuda/0 ] && return 1; LOADED="$LOADED $2"; export LOADED; }\n')
    monkeypatch.setenv("HOME", str(tmp_path))


def test_login_shell_loads_modules_in_order_then_execs(module):
    code = "import os, sys; print(os.environ['LOADED'], sys.argv[1:], os.getpid())"
    argv = process_request.with_modules([sys.executable, "-c", code, "a b", "$HOME", ""], ["gcc/12", "cuda/13.0"])
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=passed_on.clean_environment())
    said, _ = child.communicate(timeout=120)
    assert said.splitlines()[-1] == f" gcc/12 cuda/13.0 ['a b', '$HOME', ''] {child.pid}"


def test_a_module_that_does_not_load_ends_the_start(module):
    argv = process_request.with_modules(["echo", "started"], ["gcc/12", "cuda/0"])
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert done.returncode == 97 and "cuda/0" in done.stderr
    assert "started" not in done.stdout


def test_temporary_files_go_to_scratch_unless_a_variable_is_set(monkeypatch):
    for name in process_request.TEMPORARY:
        monkeypatch.setenv(name, "/tmp")
    env = process_request.environment(request(scratch="/tmp/s/1", env={"TMP": "/mine"}))
    assert {name: env[name] for name in process_request.TEMPORARY} == {
        "TMPDIR": "/tmp/s/1", "TEMPDIR": "/tmp/s/1", "TMP": "/mine", "TEMP": "/tmp/s/1"
    }  # fmt: skip
    assert process_request.environment(request())["TMPDIR"] == "/tmp"


def test_process_in_an_image_has_the_runtimes_command_and_no_variables_of_the_host(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/host/lib")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    (tmp_path / "key").write_text("sk-secret\n")
    image = Container(image="/x.sif", runtime="apptainer", place="/x.sif", digest="sha256:" + "0" * 64, path="/usr/bin")
    request = DaemonRequest(
        name="server", argv=("/opt/env/bin/python", "-m", "vllm"), env={"VLLM_X": "1"}, secret_env={"KEY": str(tmp_path / "key")},
        log=str(tmp_path / "log"), scratch=str(tmp_path / "scratch"), container=image,
    )  # fmt: skip
    argv, env = process_request.prepared(request, {"SERVEMARK_ATTEMPT": "/a"})
    assert argv[0] == "apptainer" and argv[-4:] == ["/x.sif", "/opt/env/bin/python", "-m", "vllm"] and "sk-secret" not in " ".join(argv)
    inside = {name.removeprefix("APPTAINERENV_"): value for name, value in env.items() if name.startswith("APPTAINERENV_")}
    assert inside["VLLM_X"] == "1" and inside["KEY"] == "sk-secret" and inside["NCCL_DEBUG"] == "INFO"
    assert inside["TMPDIR"] == str(tmp_path / "scratch") and inside["SERVEMARK_ATTEMPT"] == "/a"
    assert inside["PATH"] == "/opt/env/bin:/usr/bin" and "LD_LIBRARY_PATH" not in inside


def test_process_outside_of_an_image_is_unchanged(tmp_path):
    request = DaemonRequest(name="server", argv=("/opt/env/bin/python", "-m", "vllm"), env={"VLLM_X": "1"}, log=str(tmp_path / "log"))
    marks = {"SERVEMARK_ATTEMPT": "/a"}
    expected = process_request.command(request), {**process_request.environment(request), **marks}
    assert process_request.prepared(request, marks) == expected and expected[0] == list(request.argv)


def test_copies_are_made_before_the_start_unless_the_path_exists(tmp_path):
    given, present = tmp_path / "cache" / "class.json", tmp_path / "root" / "present.json"
    for path, text in ((given, "given"), (present, "own")):
        path.parent.mkdir()
        path.write_text(text)
    new, lost = tmp_path / "scratch" / "modelinfos" / "class.json", tmp_path / "lost.json"
    copies = {str(new): str(given), str(present): str(given), str(lost): str(tmp_path / "gone"), f"{given}/below": str(given)}
    process_request.prepared(request(copies=copies), {})
    assert new.read_text() == "given" and present.read_text() == "own" and not lost.exists()
    assert os.listdir(new.parent) == ["class.json"]
