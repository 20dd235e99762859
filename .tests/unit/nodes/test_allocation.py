"""The allocation: the nodes of a Slurm job, from outputs of Slurm 22.05.8, or this machine."""

from __future__ import annotations

from datetime import datetime

import pytest
from slurm_tools import on_path

from builders.standin_slurm import FIXTURES, JOB, NODES
from servemark.errors import StageFailed
from servemark.nodes import allocation
from servemark.nodes.allocation import Allocation
from servemark.processes import identity
from servemark.supervisor import process_request
from snakemake_executor_plugin_slurm_guarded import commands

# Output of scontrol (Slurm 22.05.8) with slurmctld down, 18 s after its start.
AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
SHARED = (FIXTURES / "scontrol-22.05.8-job-shared-nodes.txt").read_text()
PENDING = (FIXTURES / "scontrol-22.05.8-job-pending.txt").read_text()


def moment(text: str) -> float:
    """Slurm prints local time."""
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        (JOB, "NodeList", "node[1-2]"),
        (JOB, "EndTime", "2026-11-20T19:07:05"),
        (JOB, "JobId", "1"),
        (JOB, "BatchHost", "node1"),
        (PENDING, "NodeList", None),
        (PENDING, "BatchHost", None),
        (NODES.splitlines()[1], "NodeAddr", "10.77.0.12"),
        ("", "NodeList", None),
    ],
)
def test_a_field_is_read_by_its_whole_name(text, name, value):
    assert allocation._field(text, name) == value


def test_cpus_are_counted_by_node(slurm):
    assert allocation._cpus(SHARED) == {"node1": 4, "node2": 4}
    slurm.nodes("node1", "node2")
    assert allocation._cpus(JOB) == {"node1": 16, "node2": 16}
    assert slurm.calls("scontrol") == ["show hostnames node[1-2]"], "only names in brackets are resolved"
    assert allocation._cpus(PENDING) == {}


@pytest.mark.parametrize(("ids", "count"), [("0", 1), ("0-15", 16), ("0-1,6-7", 4), ("3,5,8-9", 4), ("0-143,288-431", 288)])
def test_ranges_of_cpus(ids, count):
    assert allocation._cpus(f"     Nodes=node1 CPU_IDs={ids} Mem=200 GRES=") == {"node1": count}


def test_slurm_addresses_are_resolved():
    assert allocation._addresses(NODES) == {"node1": "10.77.0.11", "node2": "10.77.0.12"}
    named = NODES.replace("10.77.0.11", "localhost").replace("10.77.0.12", "no-such-host.invalid")
    assert allocation._addresses(named) == {"node1": "127.0.0.1", "node2": "no-such-host.invalid"}
    assert allocation._addresses("") == {}


def test_allocation_of_the_job_of_this_process(slurm, monkeypatch):
    slurm.job(SHARED)
    slurm.described(NODES)
    monkeypatch.setenv("SLURMD_NODENAME", "node2")
    found = allocation.current()
    assert found == Allocation(
        "1",
        ("node2", "node1"),
        ends_at=moment("2026-11-20T19:17:14"),
        known_as={"node1": "10.77.0.11", "node2": "10.77.0.12"},
        cpus={"node1": 4, "node2": 4},
    )
    assert "show job -d 1" in slurm.calls("scontrol")


def test_a_job_without_a_limit_has_no_end(slurm):
    slurm.job(JOB.replace("EndTime=2026-11-20T19:07:05", "EndTime=Unknown"))
    assert allocation.current().ends_at is None


def test_allocation_without_job_or_slurm_is_this_machine(slurm, monkeypatch):
    here = Allocation(None, (identity.host(),))
    with monkeypatch.context() as patch:
        patch.delenv("SLURM_JOB_ID")
        assert allocation.current() == here
    monkeypatch.setenv("PATH", "/nowhere")
    assert allocation.current() == here
    assert here.srun(identity.host()) == ()


def test_the_launcher_shares_the_nodes_and_gives_all_cpus():
    found = Allocation("7", ("node1", "node2"), cpus={"node1": 16})
    common = ["srun", "--jobid=7", "--overlap"]
    shape = ["--mem=0", "--cpu-bind=none", "--mpi=none", "--export=ALL"]
    assert list(found.srun("node1")) == [
        *common, "--nodelist=node1", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--cpus-per-task=16", *shape
    ]  # fmt: skip
    assert not any(word.startswith("--cpus-per-task") for word in found.srun("node2"))
    assert list(found.srun("node1", "node2")) == [
        *common, "--nodelist=node1,node2", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", *shape
    ]  # fmt: skip


HETEROGENEOUS = (FIXTURES / "scontrol-22.05.8-job-heterogeneous.txt").read_text()


def test_first_component_of_heterogeneous_job_holds_servers(slurm, monkeypatch):
    assert allocation._components(HETEROGENEOUS) == ["node[1-2]", "client1"]
    slurm.heterogeneous("node1,node2", "client1")
    monkeypatch.setenv("SLURMD_NODENAME", "node2")
    found = allocation.current()
    assert found.nodes == ("node2", "node1", "client1")
    assert found.by_component(["node1", "client1", "node2"]) == [["node1", "node2"], ["client1"]]
    assert found.srun("client1")[:3] == ("srun", "--jobid=1", "--het-group=1")
    assert "--het-group=0" in found.srun("node1", "node2")


def test_jobs_that_have_not_ended_are_listed(slurm):
    slurm.alive("5", "3", "4")
    assert allocation.jobs_alive() == ("5", "3", "4", "1"), "our own job is always alive"
    slurm.alive("5", "1")
    assert allocation.jobs_alive() == ("5", "1")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", "Invalid job id specified"),
        ("sleep 30", "0 s"),
        (f"echo '{AWAY}' >&2; exit 1", "Unable to contact slurm controller"),
    ],
)
def test_failed_query_of_the_job_names_its_error(slurm, monkeypatch, body, words):
    script = slurm.folder / "bin" / "scontrol"
    script.write_text(f"#!/bin/sh\n{body}\n")
    monkeypatch.setattr(allocation, "TOOL_S", 0.3)
    monkeypatch.setattr(commands, "PATIENCE_S", 0.0)
    with pytest.raises(StageFailed) as failed:
        allocation.current()
    assert failed.value.reason == "slurm_unreachable" and words in failed.value.what
    assert "scontrol" in failed.value.what and failed.value.do


def test_query_is_repeated_until_slurmctld_responds(slurm, monkeypatch):
    monkeypatch.setattr(commands, "PAUSE_S", 0.05)
    script = slurm.folder / "bin" / "squeue"
    script.write_text(
        f"#!/bin/sh\ncd {slurm.folder}; echo x >> tries\n[ $(wc -l < tries) = 3 ] && exec cat alive\necho '{AWAY}' >&2; exit 1\n"
    )
    assert allocation.jobs_alive() == ("1",)
    assert (slurm.folder / "tries").read_text().split() == ["x"] * 3


def test_slurms_tools_get_no_variables_of_our_step(slurm, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_ID", "3")
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    monkeypatch.setenv(process_request.VISIBLE, "0")
    script = slurm.folder / "bin" / "squeue"
    script.write_text("#!/bin/sh\nenv | grep -E '^(SLURM_STEP_ID|SQUEUE_STATES|CUDA_VISIBLE_DEVICES|SLURM_JOB_ID)=' | cut -d= -f1\n")
    assert allocation.jobs_alive() == ("SLURM_JOB_ID", "1")


def test_own_node_returns_slurms_description_and_cpus(tmp_path, monkeypatch):
    described = "NodeName=n1 NodeAddr=127.0.0.1 CPUTot=128 Gres=gpu:4"
    on_path(tmp_path / "bin", monkeypatch)(
        "scontrol",
        'case "$*" in *" job "*) printf "JobId=7 NodeList=n1 EndTime=Unknown\\n  Nodes=n1 CPU_IDs=0-1 Mem=2048\\n";; '
        f'*hostnames*) echo n1;; *) echo "{described}";; esac',
    )
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert allocation.own_node() == (described + "\n", 2)
