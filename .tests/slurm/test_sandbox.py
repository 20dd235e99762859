"""The sandbox behaves as other tests require."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from sandbox import Options, Sandbox, SandboxError, trees, why_unavailable
from sandbox.__main__ import CHECKOUT
from sandbox.configuration import gres_conf, slurm_conf
from sandbox.nodes import shared

from servemark.config.cluster import Site

_REASON = why_unavailable()
if _REASON and os.environ.get("SERVEMARK_REQUIRE_SLURM") == "1":
    pytest.fail(_REASON, pytrace=False)
needs_slurm = pytest.mark.skipif(_REASON is not None, reason=_REASON or "")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Start a cluster with every option."""
    options = Options(kill_wait=5, client_node=True, preemption=True, requeue_wait=5, qos=("urgent",))
    sandbox = Sandbox(tmp_path_factory.mktemp("cluster"), options)
    with sandbox:
        assert sandbox.started_in is not None
        print(f"started with accounting in {sandbox.started_in:.1f} s")
        yield sandbox
        begun = time.monotonic()
    assert time.monotonic() - begun < 5
    assert sandbox.leftovers() == []


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Start a cluster without accounting, with process-tree tracking and a short slurmd time-out."""
    options = Options(accounting=False, proctrack="linuxproc", kill_wait=5, slurmd_timeout=4)
    with Sandbox(tmp_path_factory.mktemp("plain"), options) as sandbox:
        yield sandbox
    assert sandbox.leftovers() == []


@pytest.fixture
def quiet(cluster: Sandbox) -> Iterator[Sandbox]:
    """Return the cluster; afterwards it has no jobs and all nodes are idle."""
    yield cluster
    cluster.run(["scancel", "--user=root"])
    cluster.wait_idle(30)


def submit(sandbox: Sandbox, script: str, *flags: str) -> str:
    """Submit a job and return its id."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", *flags]
    return sandbox.run(argv, input=f"#!/bin/bash\n{script}\n", check=True).stdout.strip()


def state(sandbox: Sandbox, job: str) -> str:
    return next(entry["state"] for entry in sandbox.jobs() if entry["job_id"] == job)


def wait_state(sandbox: Sandbox, job: str, *states: str, seconds: float = 40) -> str:
    return sandbox.wait(lambda: found if (found := state(sandbox, job)) in states else None, seconds, f"job {job} {'/'.join(states)}")


def reaches(sandbox: Sandbox, node: str, address: str) -> bool:
    """Return whether a node can connect to the Slurm daemon at an address."""
    port = 6817 if address == "login" else 6818
    return sandbox.run(["timeout", "1.5", "bash", "-c", f": </dev/tcp/{address}/{port}"], node=node).returncode == 0


def sleepers(sandbox: Sandbox, node: str, argument: str) -> list[int]:
    return [process.pid for process in sandbox.processes(node) if process.command == f"sleep {argument}"]


@needs_slurm
def test_nodes_are_idle(cluster: Sandbox) -> None:
    lines = cluster.run(["sinfo", "-hN", "-p", "mixed", "-o", "%N %T %G %c %m %f"]).stdout.split("\n")
    assert sorted(line for line in lines if line) == [
        "client1 idle (null) 16 64000 cpu",
        "node1 idle gpu:4 16 64000 gpu",
        "node2 idle gpu:4 16 64000 gpu",
    ]


@pytest.mark.full
@needs_slurm
@pytest.mark.parametrize("user", ["root", "nobody"])
def test_job_over_two_nodes(quiet: Sandbox, user: str) -> None:
    script = "echo $(hostname) $CUDA_VISIBLE_DEVICES $(id -un)"
    done = quiet.run(["srun", "-N2", "--gres=gpu:4", "bash", "-c", script], user=None if user == "root" else user)
    assert sorted(done.stdout.splitlines()) == [f"node1 0,1,2,3 {user}", f"node2 0,1,2,3 {user}"], done.stderr


@pytest.mark.full
@needs_slurm
def test_client_node_in_one_allocation_with_gpu_nodes(quiet: Sandbox) -> None:
    done = quiet.run(["srun", "-p", "mixed", "-N3", "--constraint=[gpu*2&cpu*1]", "hostname"])
    assert sorted(done.stdout.split()) == ["client1", "node1", "node2"], done.stderr
    # As different components of one job, each with its own request.
    parts = ["srun", "-p", "mixed", "-N2", "--gres=gpu:4", "hostname", ":", "-p", "mixed", "-C", "cpu", "hostname"]
    assert sorted(quiet.run(parts).stdout.split()) == ["client1", "node1", "node2"]


@needs_slurm
def test_nodes_have_separate_namespaces(cluster: Sandbox) -> None:
    cluster.run(["touch", "/tmp/mark", str(cluster.folder / "shared-mark")], node="node1", check=True)
    try:
        seen = cluster.run(["ls", "/tmp", str(cluster.folder)], node="node2").stdout.split()
        assert "mark" not in seen
        assert "shared-mark" in seen
        assert not Path("/tmp/mark").exists()
    finally:
        (cluster.folder / "shared-mark").unlink()
    assert sorted(cluster.run(["ls", "/sys/class/net"], node="node1").stdout.split()) == ["eth0", "hsn0", "lo"]
    assert reaches(cluster, "node1", "10.77.0.12")
    assert reaches(cluster, "node1", "10.78.0.11")
    assert not reaches(cluster, "node1", "10.78.0.12")
    commands = cluster.run(["ps", "-eo", "args"], node="node1").stdout
    assert "slurmd -N node1" in commands
    assert "slurmd -N node2" not in commands
    assert "slurmctld" not in commands


@needs_slurm
def test_cluster_file_is_valid_and_names_a_folder_that_all_nodes_see(cluster: Sandbox) -> None:
    site = Site.model_validate(yaml.safe_load(cluster.cluster_file.read_text()))
    assert site.gpus_per_node == cluster.options.gpus
    sockets = Path(site.variables["VLLM_RPC_BASE_PATH"])
    cluster.run(["touch", str(sockets / "mark")], node="node1", check=True)
    assert all(cluster.sees(sockets / "mark", node) for node in ("login", *cluster.nodes))


@needs_slurm
def test_shell_prints_three_commands_that_work_when_pasted(cluster: Sandbox) -> None:
    def typed(text: str) -> subprocess.CompletedProcess[str]:
        shell = [sys.executable, "-m", "sandbox", "shell", str(cluster.folder)]
        return subprocess.run(shell, cwd=Path(__file__).parent, input=text, capture_output=True, text=True, timeout=120)

    commands = [line.strip() for line in typed("").stdout.splitlines() if line.startswith("    ")]
    check, *runs = commands
    assert len(runs) == 2 and all(str(cluster.cluster_file) in command for command in commands)
    # Real vLLM would take minutes. A dry run plans the same jobs, and asks Slurm whether it would take them.
    done = typed("\n".join(["set -e", "pwd", check, *(f"{run} -n --quiet host" for run in runs), "echo all of them"]) + "\n")
    assert (done.returncode, done.stderr.count("Error")) == (0, 0), done.stdout + done.stderr
    assert str(CHECKOUT) in done.stdout.splitlines() and done.stdout.endswith("all of them\n")


@needs_slurm
def test_exit_codes_and_signals_are_the_commands(cluster: Sandbox) -> None:
    assert cluster.run(["bash", "-c", "exit 7"], node="node2").returncode == 7
    child = cluster.popen(["sleep", "1000"], node="node1")
    cluster.wait(lambda: sleepers(cluster, "node1", "1000"), 5, "sleep")
    child.send_signal(signal.SIGINT)
    assert child.wait(5) == -signal.SIGINT
    assert sleepers(cluster, "node1", "1000") == []


@pytest.mark.full
@needs_slurm
@pytest.mark.parametrize(("name", "survives"), [("cluster", False), ("plain", True)])
def test_daemon_of_a_job(request: pytest.FixtureRequest, name: str, survives: bool) -> None:
    sandbox: Sandbox = request.getfixturevalue(name)
    job = submit(sandbox, "setsid sleep 4321 </dev/null >/dev/null 2>&1 & sleep 3", "-w", "node1")
    sandbox.wait(lambda: sleepers(sandbox, "node1", "4321"), 30, "the daemon")
    wait_state(sandbox, job, "COMPLETED")
    sandbox.wait_idle(30)
    left = sleepers(sandbox, "node1", "4321")
    assert bool(left) == survives
    for pid in left:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.full
@needs_slurm
def test_accounting_records_the_end_of_a_job(quiet: Sandbox) -> None:
    job = submit(quiet, "exit 3")

    def ended() -> str | None:
        out = quiet.run(["sacct", "-nXP", "-j", job, "-o", "State,ExitCode,Account"]).stdout.strip()
        return out if out.startswith("FAILED") else None

    assert quiet.wait(ended, 30, "sacct's record") == "FAILED|3:0|research"


@pytest.mark.full
@needs_slurm
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--account=nosuch",), "Invalid account or account/partition combination"),
        (("--partition=nosuch",), "invalid partition specified"),
        (("--qos=nosuch",), "Invalid qos specification"),
        (("--partition=short", "--time=10"), "Requested time limit is invalid"),
        (("--nodes=3",), "Node count specification invalid|Requested node configuration is not available"),
    ],
)
def test_refused_at_submission(cluster: Sandbox, flags: tuple[str, ...], message: str) -> None:
    done = cluster.run(["sbatch", *flags], input="#!/bin/bash\ntrue\n")
    assert done.returncode == 1
    assert any(part in done.stderr for part in message.split("|")), done.stderr


@pytest.mark.full
@needs_slurm
def test_qos_other_than_normal(quiet: Sandbox) -> None:
    assert quiet.run(["srun", "--qos=urgent", "true"]).returncode == 0


@pytest.mark.full
@needs_slurm
def test_cut_between_nodes(cluster: Sandbox) -> None:
    assert reaches(cluster, "node1", "node2")
    cluster.cut_network("node1", "node2")
    try:
        assert not reaches(cluster, "node1", "node2")
        assert not reaches(cluster, "node2", "node1")
        for node in ("node1", "node2"):
            assert reaches(cluster, node, "login")
            assert reaches(cluster, "login", node)
            assert reaches(cluster, node, "client1")
            assert cluster.run(["srun", "-w", node, "hostname"]).stdout.strip() == node
    finally:
        cluster.restore_network()
    assert reaches(cluster, "node1", "node2")
    cluster.restore_network()  # undoing no cut is no error


@pytest.mark.full
@needs_slurm
def test_controller_away_and_back(quiet: Sandbox) -> None:
    job = submit(quiet, "sleep 600")
    wait_state(quiet, job, "RUNNING")
    quiet.stop_slurmctld()
    refused = quiet.run(["squeue"], timeout=60)
    assert refused.returncode != 0
    assert "Unable to contact slurm controller" in refused.stderr
    quiet.start_slurmctld()
    assert state(quiet, job) == "RUNNING"


@pytest.mark.full
@needs_slurm
def test_database_away_and_back(quiet: Sandbox) -> None:
    quiet.stop_slurmdbd()
    assert quiet.run(["sacct"]).returncode != 0
    assert quiet.run(["srun", "true"]).returncode == 0
    quiet.start_slurmdbd()
    assert quiet.run(["sacct"]).returncode == 0


@pytest.mark.full
@needs_slurm
@pytest.mark.parametrize(("partition", "ends"), [("low-requeue", "PENDING"), ("low-cancel", "PREEMPTED")])
def test_preemption(quiet: Sandbox, partition: str, ends: str) -> None:
    low = submit(quiet, "sleep 600", "-p", partition, "-N2", "--exclusive")
    wait_state(quiet, low, "RUNNING")
    submit(quiet, "sleep 600", "-p", "high", "-N2", "--exclusive")
    wait_state(quiet, low, ends)


@pytest.mark.full
@needs_slurm
def test_lost_node(plain: Sandbox) -> None:
    job = submit(plain, "sleep 4322", "-w", "node1", "--no-requeue")
    wait_state(plain, job, "RUNNING")
    plain.kill_slurmd("node1")
    assert plain.slurmd_pid("node1") is None
    assert wait_state(plain, job, "NODE_FAIL", seconds=60) == "NODE_FAIL"
    assert sleepers(plain, "node1", "4322"), "a job's processes outlive its slurmd"
    plain.start_slurmd("node1")
    plain.wait_idle(60)


@pytest.mark.full
@needs_slurm
def test_power_cut(plain: Sandbox) -> None:
    plain.kill_node("node2")
    assert plain.run(["srun", "-w", "node1", "hostname"]).stdout == "node1\n"
    with pytest.raises(SandboxError, match="not up"):
        plain.run(["true"], node="node2")
    plain.start_node("node2")
    plain.wait_idle(60)
    assert plain.run(["srun", "-w", "node2", "hostname"]).stdout == "node2\n"


@needs_slurm
def test_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log/mine").touch()
    with pytest.raises(SandboxError, match="not empty"):
        Sandbox(tmp_path, Options(accounting=False)).start()
    assert (tmp_path / "log/mine").exists()


@pytest.mark.full
@needs_slurm
def test_stop_after_the_starting_process_was_killed(tmp_path: Path) -> None:
    here = Path(__file__).parent
    argv = [sys.executable, "-m", "sandbox", "start", str(tmp_path), "--no-accounting"]
    starter = subprocess.Popen(argv, cwd=here, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not (tmp_path / "log/slurmctld.log").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    starter.kill()
    starter.wait()
    sandbox = Sandbox(tmp_path)
    assert sandbox.alive
    assert any(line.startswith("process") for line in sandbox.leftovers())
    with pytest.raises(SandboxError, match="already"):
        Sandbox(tmp_path).start()
    stopped = subprocess.run([*argv[:3], "stop", str(tmp_path)], cwd=here, capture_output=True, text=True)
    assert stopped.returncode == 0, stopped.stderr
    assert sandbox.leftovers() == []
    assert not Sandbox(tmp_path).alive


@needs_slurm
def test_failed_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object) -> None:
        raise SandboxError("munged would not start")

    monkeypatch.setattr("sandbox.daemons.Daemons.start_munged", refuse)
    sandbox = Sandbox(tmp_path, Options())
    with pytest.raises(SandboxError, match="would not start"):
        sandbox.start()
    assert sandbox.leftovers() == []
    assert not sandbox.alive


def test_missing_programs_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    absent: Callable[..., str | None] = lambda name, path=None: None if name in ("slurmd", "nft") else f"/bin/{name}"  # noqa: E731
    monkeypatch.setattr("shutil.which", absent)
    assert why_unavailable(Options(proctrack="linuxproc", release="")) == (
        "The Slurm sandbox lacks slurmd, nft. Install with: apt-get install nftables slurmd"
    )
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "needs root" in (why_unavailable() or "")


def test_release_without_tree_names_the_command_that_makes_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(trees, "FOLDER", tmp_path)
    reason = why_unavailable(Options(release="24.11"))
    assert reason and "make slurm-tree SLURM=24.11" in reason and str(tmp_path) in reason
    with pytest.raises(SandboxError, match="newest"):
        why_unavailable(Options(release="9.99"))


@pytest.mark.parametrize(
    ("options", "has", "lacks"),
    [
        (Options(), ["AccountingStorageEnforce=associations,limits,qos,safe", "KillWait=30"], ["low-", "client1"]),
        (Options(accounting=False, kill_wait=5), ["AccountingStorageType=accounting_storage/none", "KillWait=5"], []),
        (Options(preemption=True), ["PartitionName=low-cancel", "PreemptType=preempt/partition_prio"], ["mixed"]),
        (Options(client_node=True), ["PartitionName=mixed Nodes=node1,node2,client1"], ["low-"]),
        (Options(proctrack="linuxproc"), ["ProctrackType=proctrack/linuxproc"], ["proctrack/cgroup"]),
    ],
)
def test_slurm_conf(options: Options, has: list[str], lacks: list[str]) -> None:
    text = slurm_conf(options, Path("/x"))
    assert [part for part in has if part not in text] == []
    assert [part for part in lacks if part in text] == []
    assert gres_conf(options, Path("/x")) == "NodeName=node1,node2 Name=gpu File=/x/devices/nvidia[0-3]\n"


def test_shared_paths() -> None:
    assert shared(Path("/tmp/a/b"), ["/tmp/a", "/home/x", "/run/user/0/x", "/tmp/ab"]) == [
        "/run/user/0/x",
        "/tmp/a",
        "/tmp/ab",
    ]
    with pytest.raises(SandboxError, match="cannot be shared"):
        shared(Path("/srv/x"), ["/tmp"])
