"""The survey of one node: leftovers, description, connection to the first node, and sweep."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders.places import site_packages
from servemark.containers.runtimes import RUNTIMES
from servemark.errors import ServemarkError
from servemark.files import private
from servemark.machine import hardware, network, visible_gpus
from servemark.nodes import survey
from servemark.nodes.survey import NodeResult, Spec
from servemark.processes import children, identity
from servemark.records import Container, Gpu, Interface
from servemark.supervisor import ownership, process_request


@pytest.fixture
def spec(tmp_path, standin, nowhere):
    """Makes a spec for this machine; its attempt is the second one of a deployment."""
    attempt = tmp_path / "attempts" / "002"
    attempt.mkdir(parents=True)

    def make(task="look", **changes) -> Spec:
        values = {
            "task": task,
            "attempt": str(attempt),
            "scratch": str(tmp_path / "runtime" / "abc"),
            "python": standin.python,
            "interface": "lo",
        }
        return Spec(**(values | changes))

    return make


@pytest.fixture
def sleeper(wait_for):
    """Starts a process that carries an attempt's mark."""
    started = []

    def start(attempt: Path) -> subprocess.Popen:
        child = subprocess.Popen(["sleep", "300"], env={**os.environ, **identity.mark(attempt)})
        started.append(child)
        wait_for(lambda: child.pid in [p.pid for p in identity.marked(attempt)])
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()


def test_node_is_described_with_the_devices_of_the_allocation(spec, monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    monkeypatch.setenv(process_request.VISIBLE, "GPU-a,GPU-b")
    asked = spec(job_id="7", jobs_alive=("7",), ports=19)
    node = survey.run_task(asked).node
    assert (node.name, node.host, node.address, node.interface) == ("node7", identity.host(), "127.0.0.1", "lo")
    assert (node.devices, node.vllm, node.ray) == (2, "0.0.0+standin", "0.0.0+standin")
    assert node.python == ".".join(map(str, sys.version_info[:3]))
    assert (node.torch, node.nccl) == ("0.0.0+standin", None) and len(node.packages or "") == 64
    assert len(set(node.ports)) == 19 and set(node.ports) <= set(network.PORTS)
    assert node.cpu_count == len(os.sched_getaffinity(0)) and node.memory_gib > 0 and node.kind
    scratch = Path(asked.scratch)
    assert scratch.stat().st_mode & 0o777 == 0o700 == scratch.parent.stat().st_mode & 0o777
    assert (scratch / ".job").read_text() == "7"


def test_packages_and_loaded_modules_of_a_node_are_recorded(spec, standin_copy, monkeypatch):
    monkeypatch.setenv("LOADEDMODULES", "gcc/12.3:brics/nccl/2.27")
    asked = spec(python=standin_copy.python)
    before = survey.run_task(asked)
    assert before.node and before.node.loaded_modules == ("gcc/12.3", "brics/nccl/2.27")
    assert set(before.distributions) == {"vllm", "torch", "ray"}
    info = site_packages(standin_copy) / "nvidia_nccl_cu13-2.29.7.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-nccl-cu13\nVersion: 2.29.7\n")
    after = survey.run_task(asked)
    assert after.node and after.node.nccl == "2.29.7" and after.node.packages != before.node.packages
    (info / "RECORD").write_text("nvidia/nccl/lib/libnccl.so.2,sha256=abc,1\n")
    patched = survey.run_task(asked)
    assert patched.node and patched.node.packages != after.node.packages
    assert patched.distributions["nvidia-nccl-cu13"] != after.distributions["nvidia-nccl-cu13"]


CPUS = len(os.sched_getaffinity(0))
H200 = tuple(Gpu(name="NVIDIA H200", memory_mib=143771, uuid=f"GPU-{n}") for n in range(2))


# Without nvidia-smi, the scheduler's variable gives the number of devices; without a variable, or with "none", CPUs are the devices.
@pytest.mark.parametrize(
    ("gpus", "visible", "devices"),
    [
        ((), None, CPUS),
        ((), "", CPUS),
        ((), "-1", CPUS),
        ((), "0", 1),
        ((), "0,1,2,3", 4),
        (H200, None, 2),
        (H200, "2,3", 2),
        (H200[:1], "1,9,0", 1),
    ],
)
def test_devices_are_the_visible_ones_of_the_step(spec, monkeypatch, gpus, visible, devices):
    if visible is not None:
        monkeypatch.setenv(process_request.VISIBLE, visible)
    found = hardware.probe().model_copy(update={"accelerator": "cuda" if gpus else "cpu", "gpus": gpus, "cuda_visible_devices": visible})
    monkeypatch.setattr(hardware, "probe", lambda: found)
    node = survey.run_task(spec(job_id="7")).node
    assert (node.devices, node.cuda_visible_devices) == (devices, visible)
    # Without a scheduler, a variable of the shell for missing GPUs is ignored.
    assert survey.devices(found, scheduled=False) == (devices if gpus else CPUS)


def test_kind_of_a_node_has_the_devices_in_use(spec, monkeypatch):
    found = hardware.probe().model_copy(update={"accelerator": "cuda", "gpus": H200})
    monkeypatch.setattr(hardware, "probe", lambda: found)
    assert [len(survey.run_task(spec(devices=devices)).node.kind["gpus"]) for devices in (1, 2)] == [1, 2]


def test_value_without_a_gpu_in_cuda_visible_devices_is_refused(spec, monkeypatch):
    def probe():
        return visible_gpus.choose(H200, os.environ, "node7")

    monkeypatch.setenv(process_request.VISIBLE, "5")
    monkeypatch.setattr(hardware, "probe", probe)
    failure = survey.run_task(spec()).failure
    assert failure.reason == "gpus_hidden" and "is '5' on node7" in failure.detail and failure.remedy


def test_snakemake_of_ended_job_in_this_checkout_is_killed(spec, tmp_path, monkeypatch, wait_for):
    (tmp_path / "snakemake").write_text("import time; print(flush=True); time.sleep(300)")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)

    def snakemake(job: str, folder: Path = tmp_path, what: str = "--target-jobs") -> subprocess.Popen:
        argv = [sys.executable, str(tmp_path / "snakemake"), what]
        env = {**os.environ, "SLURM_JOB_ID": job}
        child = subprocess.Popen(argv, cwd=folder, env=env, stdout=subprocess.PIPE)
        child.stdout.readline()
        return child

    over, alive, elsewhere = snakemake("6"), snakemake("7"), snakemake("6", tmp_path / "elsewhere")
    # A main process may inherit the number of an ended job from its shell.
    main = snakemake("6", what="--profile")
    try:
        before = survey.run_task(spec(job_id="8", jobs_alive=("7", "8"), listed_at=time.time())).node
        assert before.leftovers == (), "a job that began after the listing is no leftover"
        listed = time.time() + ownership.CLOCKS_S + 1
        node = survey.run_task(spec(job_id="8", jobs_alive=("7", "8"), listed_at=listed)).node
        assert [int(words.split()[0]) for words in node.leftovers] == [over.pid]
        assert over.wait(60) == -9 and alive.poll() is elsewhere.poll() is main.poll() is None
        # Without a scheduler there are no jobs to compare with.
        assert survey.run_task(spec()).node.leftovers == () and alive.poll() is None
    finally:
        for child in (over, alive, elsewhere, main):
            child.kill()
            child.wait()
            child.stdout.close()


def test_only_processes_of_earlier_attempts_are_ended(spec, sleeper):
    asked = spec()
    mine, old = sleeper(Path(asked.attempt)), sleeper(Path(asked.attempt).with_name("001"))
    node = survey.run_task(asked).node
    assert len(node.leftovers) == 1 and node.leftovers[0].startswith(f"{old.pid} sleep 300")
    assert old.wait(60) == -9 and mine.poll() is None


def test_folders_of_ended_jobs_are_removed(spec):
    asked = spec(job_id="7", jobs_alive=("7", "8"), listed_at=time.time() + 60)
    root = Path(asked.scratch).parent
    for name, job in (("alive", "8"), ("new", "9"), ("over", "5"), ("no-job", None)):
        (root / name).mkdir(parents=True, mode=0o700)
        if job:
            (root / name / ".job").write_text(job)
    later = time.time() + 120
    os.utime(root / "new" / ".job", (later, later))
    root.chmod(0o700)
    survey.run_task(asked)
    assert sorted(path.name for path in root.iterdir()) == ["abc", "alive", "new", "no-job"]
    survey.run_task(spec(jobs_alive=None))
    assert (root / "alive").exists(), "without a list of jobs no job counts as ended"


def test_scratch_folder_writable_by_others_fails_with_node(spec):
    asked = spec()
    root = Path(asked.scratch).parent
    root.mkdir()
    root.chmod(0o777)
    failure = survey.run_task(asked).failure
    assert failure.reason == "runtime_folder_refused" and identity.host() in failure.detail
    with pytest.raises(ServemarkError, match=str(root)):
        private.private(root)


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"interface": "ib0"}, "wrong_interface", "expected an interface ib0"),
        ({"interface": None, "known_as": {}}, "wrong_interface", "with the address None"),
        (
            {"python": "/no/such/python"},
            "environment_broken",
            "expected the environment's interpreter /no/such/python to run",
        ),
        ({"python": "/bin/false"}, "environment_broken", "/bin/false"),
        ({"python": "/bin/true"}, "environment_broken", "/bin/true"),
    ],
    ids=["no such interface", "unknown address", "no interpreter", "broken interpreter", "silent interpreter"],
)
def test_unusable_node_has_a_failure_with_reason(spec, monkeypatch, changes, reason, words):
    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    told = survey.run_task(spec(**changes))
    assert (told.node, told.failure.reason, told.failure.stage) == (None, reason, "start_cluster")
    assert told.failure.detail.startswith("Node node7: ") and words in told.failure.detail and told.failure.remedy


@pytest.mark.parametrize("modules", [(), ("tools",)])
def test_missing_runtime_of_an_image_is_named_with_its_node(spec, tmp_path, monkeypatch, modules):
    (tmp_path / ".bash_profile").write_text("module() { return 0; }\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    monkeypatch.setattr(RUNTIMES["enroot"], "program", "no-enroot", raising=False)
    image = Container(image="/x.sqsh", runtime="enroot", place="/x.sqsh", digest="sha256:" + "0" * 64)
    failure = survey.run_task(spec(python="/usr/bin/python3", container=image, modules=modules)).failure
    assert failure.reason == "runtime_missing" and failure.detail.startswith("Node node7: no-enroot")


def test_failed_module_of_a_runtime_is_reported(spec, tmp_path, monkeypatch):
    (tmp_path / ".bash_profile").write_text("module() { return 1; }\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    image = Container(image="/x.sqsh", runtime="enroot", place="/x.sqsh", digest="sha256:" + "0" * 64)
    failure = survey.run_task(spec(python="/usr/bin/python3", container=image, modules=("enroot/4",))).failure
    assert failure.reason == "environment_broken" and "enroot/4" in failure.detail


def test_versions_are_read_after_loading_the_modules(spec, tmp_path, monkeypatch):
    (tmp_path / ".bash_profile").write_text("module() { return 1; }\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    failure = survey.run_task(spec(modules=("cuda/13",))).failure
    assert failure.reason == "environment_broken" and "cuda/13" in failure.detail


def test_sweep_ends_processes_and_removes_scratch_folder(spec, sleeper):
    asked = spec("sweep")
    left = sleeper(Path(asked.attempt))
    other = sleeper(Path(asked.attempt).with_name("003"))
    scratch = Path(asked.scratch)
    (scratch / "session").mkdir(parents=True)
    told = survey.run_task(asked)
    assert len(told.ended) == 1 and told.ended[0].startswith(f"{left.pid} sleep 300")
    assert left.wait(60) == -9 and other.poll() is None and not scratch.exists()
    assert survey.run_task(asked).ended == (), "nothing is left to end"


def test_node_that_reaches_the_first_one_reports_no_failure(spec):
    with socket.create_server(("127.0.0.1", 0)) as first:
        assert survey.run_task(spec("reach", reach=first.getsockname())) == NodeResult(name=identity.here())


def test_refused_connection_to_the_first_node_is_named(spec):
    with socket.socket() as silent:
        # Bound, so that no other program gets the port, but not listening.
        silent.bind(("127.0.0.1", 0))
        failure = survey.run_task(spec("reach", reach=silent.getsockname())).failure
    assert failure.reason == "wrong_interface" and "127.0.0.1 (lo)" in failure.detail
    assert "refused" in failure.detail and "`interface`" in failure.remedy


def test_the_connection_leaves_from_the_chosen_address(spec, monkeypatch):
    # An address that this machine does not have, in place of an interface that cannot reach the first node.
    monkeypatch.setattr(hardware, "interfaces", lambda: (Interface(name="hsn0", address="192.0.2.1"),))
    failure = survey.run_task(spec("reach", reach=("127.0.0.1", 9), interface="hsn0")).failure
    assert failure.reason == "wrong_interface" and "192.0.2.1 (hsn0)" in failure.detail


def test_node_writes_its_result_into_a_file_of_its_name(spec, tmp_path):
    path = tmp_path / "survey" / "spec"
    path.parent.mkdir()
    path.write_text(spec().model_dump_json())
    env = {**os.environ, **children.python_path(), "SLURMD_NODENAME": "node7"}
    subprocess.run(survey.command(path), env=env, check=True, timeout=120)
    told = NodeResult.model_validate_json((path.parent / "node7.json").read_text())
    assert told.name == "node7" and told.node.address == "127.0.0.1" and told.failure is None


@pytest.mark.parametrize(("code", "reason"), [(errno.ENOSPC, "disk_full"), (errno.EROFS, "read_only")])
def test_node_with_full_scratch_disk_is_named(spec, monkeypatch, code, reason):
    def refuse(_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    monkeypatch.setattr(survey, "private", refuse)
    failure = survey.run_task(spec()).failure
    assert failure.reason == reason and "node7" in failure.detail and failure.remedy
