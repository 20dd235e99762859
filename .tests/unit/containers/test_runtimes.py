"""Command lines of the container runtimes.

podman-hpc and the options for GPUs do not run here. They stand as in their documentation: ``--nv`` (Apptainer user guide, "GPU Support"),
``--device nvidia.com/gpu=all`` (NVIDIA Container Toolkit, "Support for Container Device Interface"), ``--gpu`` (NERSC, "podman-hpc").
"""

import pytest

from servemark.containers.runtimes import RUNTIMES, Inside, candidates, choose
from servemark.records import Container

PROGRAM = ("/opt/env/bin/python", "-m", "vllm")
ENV = {"HOME": "/tmp/s/x", "PATH": "/opt/env/bin:/usr/bin", "PYTHONPATH": "/co/lib", "SERVEMARK_API_KEY": "sk-secret", "TMPDIR": "/tmp/s/x"}
INSIDE = Inside(PROGRAM, ENV, ("/co", "/tmp"), "/tmp/s/x", "/co")
HOST = {"PATH": "/host/bin", "HOME": "/home/me", "LD_LIBRARY_PATH": "/host/lib"}


def image(runtime, place="/images/x", **more) -> Container:
    return Container(image=place, runtime=runtime, place=place, digest="sha256:" + "0" * 64, **more)


ASKED = {"binds": ("/data:/data",), "options": ("--own=1",), "gpus": True}


def test_apptainer():
    apptainer = RUNTIMES["apptainer"]
    assert apptainer.command(image("apptainer", "/images/x.sif", **ASKED), INSIDE) == [
        *("apptainer", "--silent", "exec", "--cleanenv", "--no-eval", "--home=/tmp/s/x", "--no-mount=cwd", "--pwd=/co"),
        *("--bind=/co", "--bind=/tmp", "--bind=/data:/data", "--nv", "--own=1", "/images/x.sif", *PROGRAM),
    ]
    found = apptainer.environment(HOST, INSIDE)
    assert found["APPTAINERENV_SERVEMARK_API_KEY"] == "sk-secret" and found["APPTAINERENV_PATH"] == "/opt/env/bin:/usr/bin"
    assert found["PATH"] == "/host/bin" and "APPTAINERENV_HOME" not in found and "APPTAINERENV_LD_LIBRARY_PATH" not in found


def test_charliecloud():
    charliecloud = RUNTIMES["charliecloud"]
    unset = [f"--unset-env={name}" for name in ("LD_*", "PYTHON*", "CUDA_HOME", "CUDA_PATH", "BASH_*")]
    assert charliecloud.command(image("charliecloud", **ASKED), INSIDE) == [
        *("ch-run", *unset, "--env-no-expand", "--set-env=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        *("--set-env=HOME=/tmp/s/x", "--set-env=PATH=/opt/env/bin:/usr/bin", "--set-env=PYTHONPATH=/co/lib", "--set-env=TMPDIR=/tmp/s/x"),
        *("--cd=/co", "--bind=/co", "--bind=/data:/data", "--own=1", "/images/x", "--", *PROGRAM),
    ]
    found = charliecloud.environment(HOST, INSIDE)
    assert found["SERVEMARK_API_KEY"] == "sk-secret" and found["PATH"] == "/host/bin" and found["TMPDIR"] == "/tmp" and found["USER"]
    assert "LD_LIBRARY_PATH" not in found


@pytest.mark.parametrize(("runtime", "gpu"), [("podman", "--device=nvidia.com/gpu=all"), ("podman-hpc", "--gpu")])
def test_podman(runtime, gpu):
    podman, place = RUNTIMES[runtime], "registry.example/vllm@sha256:" + "0" * 64
    assert podman.command(image(runtime, place, **ASKED), INSIDE) == [
        *(runtime, "run", "--network=host", "--pid=host", "--ipc=host", "--userns=keep-id", "--cgroups=disabled", "--ulimit=host", "--rm"),
        *("--read-only", "--pull=never", "--log-driver=none", "--http-proxy=false", "--security-opt=label=disable", "--entrypoint="),
        *("--env=HOME=/tmp/s/x", "--env=PATH=/opt/env/bin:/usr/bin", "--env=PYTHONPATH=/co/lib", "--env=SERVEMARK_API_KEY"),
        *("--env=TMPDIR=/tmp/s/x", "--volume=/co:/co", "--volume=/tmp:/tmp", "--volume=/data:/data", "--workdir=/co", gpu, "--own=1"),
        *(place, *PROGRAM),
    ]
    found = podman.environment(HOST, INSIDE)
    assert found["SERVEMARK_API_KEY"] == "sk-secret" and found["PATH"] == "/host/bin" and found["HOME"] == "/home/me"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_no_gpu_option_and_no_secret_in_the_command_line(runtime):
    words = RUNTIMES[runtime].command(image(runtime), INSIDE)
    assert not [word for word in words if "sk-secret" in word or word in ("--nv", "--gpu") or word.startswith("--device")]


@pytest.mark.parametrize(
    ("name", "asked", "there", "chosen"),
    [
        ("docker://a/b:c", "auto", {"apptainer", "podman"}, "apptainer"),
        ("docker://a/b:c", "auto", {"ch-run", "podman"}, "podman"),
        ("docker://a/b:c", "podman", {"apptainer"}, None),
        ("/x.sif", "auto", {"ch-run", "podman"}, None),
        ("/x", "auto", {"apptainer", "ch-run"}, "charliecloud"),
        ("/x", "apptainer", {"apptainer", "ch-run"}, "apptainer"),
    ],
)
def test_choice(name, asked, there, chosen):
    assert choose(name, asked, lambda program: program if program in there else None) == chosen


def test_runtimes_that_cannot_start_a_kind_of_image():
    assert candidates("/x.sif", "podman") == () and candidates("/x", "podman-hpc") == () and candidates("/x.sif", "charliecloud") == ()
