"""Command lines of the container runtimes.

podman-hpc and the options for GPUs do not run here. They stand as in their documentation: ``--nv`` (Apptainer user guide, "GPU Support"),
``--device nvidia.com/gpu=all`` (NVIDIA Container Toolkit, "Support for Container Device Interface"), ``--gpu`` (NERSC, "podman-hpc"),
``NVIDIA_VISIBLE_DEVICES`` (enroot 4.1, conf/hooks/98-nvidia.sh). The options of ``enroot start`` stand in its doc/cmd/start.md, the fields
of a mount in bin/enroot-mount.c.
"""

import dataclasses
import os
from pathlib import Path

import pytest

from servemark.containers import runtimes
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


def test_singularity_differs_from_apptainer_by_names_only():
    apptainer, singularity = RUNTIMES["apptainer"], RUNTIMES["singularity"]
    commands = [one.command(image("singularity", "/images/x.sif", **ASKED), INSIDE) for one in (apptainer, singularity)]
    assert commands[1] == ["singularity", *commands[0][1:]]
    given = {name.removeprefix("SINGULARITYENV_"): value for name, value in singularity.environment(HOST, INSIDE).items()}
    assert given["SERVEMARK_API_KEY"] == "sk-secret" and not any(name.startswith("APPTAINER") for name in given)


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


def test_enroot():
    enroot, script = RUNTIMES["enroot"], Path(runtimes.__file__).with_name("enroot-rc.sh")
    assert enroot.command(image("enroot", "/images/x.sqsh", **ASKED), INSIDE) == [
        *("enroot", "start", f"--rc={script}", "--env=HOME=/tmp/s/x", "--env=PATH=/opt/env/bin:/usr/bin", "--env=PYTHONPATH=/co/lib"),
        *("--env=SERVEMARK_API_KEY", "--env=TMPDIR=/tmp/s/x", "--env=NVIDIA_VISIBLE_DEVICES=all"),
        *("--env=NVIDIA_DRIVER_CAPABILITIES=compute,utility", "--mount=/co:/co:none:rbind,x-create=auto"),
        *("--mount=/tmp:/tmp:none:rbind,x-create=auto", "--mount=/data:/data:none:rbind,x-create=auto", "--own=1"),
        *("--", "/images/x.sqsh", "/co", *PROGRAM),
    ]
    assert "--env=NVIDIA_VISIBLE_DEVICES=void" in enroot.command(image("enroot", "/images/x.sqsh"), INSIDE)
    found = enroot.environment(HOST | {"SERVEMARK_API_KEY": "sk-secret", "NVIDIA_VISIBLE_DEVICES": "0", "ENROOT_MOUNT_HOME": "yes"}, INSIDE)
    assert found["SERVEMARK_API_KEY"] == "sk-secret" and found["PATH"] == "/host/bin"
    assert not {"LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES"} & set(found)
    # doc/configuration.md and doc/standard-hooks.md.
    off = (
        "MOUNT_HOME",
        "LOGIN_SHELL",
        "ROOTFS_WRITABLE",
        "REMAP_ROOT",
        "RESTRICT_DEV",
        *(f"UNSHARE_{n}" for n in ("IPC", "NET", "PID", "UTS")),
    )
    assert [found[f"ENROOT_{name}"] for name in off] == ["no"] * len(off)
    folders = [found[f"ENROOT_{name}_PATH"] for name in ("RUNTIME", "CONFIG", "CACHE", "DATA")]
    assert all(folder.startswith(f"/tmp/s/x/.enroot-{os.getuid()}/") for folder in folders)


@pytest.mark.parametrize(
    ("binds", "env"),
    [(("/my data",), {}), ((), {"A": "1\nB=2"}), ((), {"A": '"quoted"'}), ((), {"A": "'quoted' "})],
)
def test_enroot_refuses_what_it_would_change(binds, env):
    with pytest.raises(OSError, match="enroot cannot"):
        RUNTIMES["enroot"].prepare(image("enroot"), dataclasses.replace(INSIDE, binds=binds, env=env))
    RUNTIMES["enroot"].prepare(image("enroot"), dataclasses.replace(INSIDE, env={"A": '{"a": "b c"}'}))


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
        ("/x.sif", "auto", {"apptainer", "singularity"}, "apptainer"),
        ("/x.sif", "auto", {"singularity", "podman"}, "singularity"),
        ("docker://a/b:c", "auto", {"singularity", "podman"}, "podman"),
        ("docker://a/b:c", "auto", {"singularity"}, "singularity"),
        ("docker://a/b:c", "auto", {"enroot", "podman"}, "enroot"),
        ("/x.sif", "auto", {"ch-run", "podman"}, None),
        ("/x.sqsh", "auto", {"apptainer", "enroot"}, "enroot"),
        ("/x.squashfs", "enroot", {"enroot"}, "enroot"),
        ("/x", "auto", {"apptainer", "ch-run"}, "charliecloud"),
        ("/x", "apptainer", {"apptainer", "ch-run"}, "apptainer"),
    ],
)
def test_choice(name, asked, there, chosen):
    assert choose(name, asked, lambda program: program if program in there else None) == chosen


def test_runtimes_that_cannot_start_a_kind_of_image():
    assert candidates("/x.sqsh", "apptainer") == () and candidates("/x", "enroot") == () and candidates("/x.sif", "enroot") == ()
    assert candidates("/x.sif", "podman") == () and candidates("/x", "podman-hpc") == () and candidates("/x.sif", "charliecloud") == ()
