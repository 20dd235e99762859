"""A heterogeneous job (servers with GPUs, client without) is read as one job."""

from __future__ import annotations

import pytest
from recorded_slurm import FIXTURES

from snakemake_executor_plugin_slurm_guarded import job_accounts, queries
from snakemake_executor_plugin_slurm_guarded.states import State

SCONTROL = (FIXTURES / "scontrol-22.05.8-job-heterogeneous.txt").read_text()
NODES = ("node1", "node2", "client1")


def listed(*lines: str) -> list[tuple[str, str, str]]:
    text = "\n".join(f"{line}|0:11|5:00|2026-11-21T19:51:39|2026-11-21T19:51:40|node1|None|run|tok|/w" for line in lines)
    return [(job.id, job.state.word, job.comment) for job in queries.parse_squeue(text)]


def test_components_in_squeue_are_read_as_the_first_one():
    assert listed("1+0|RUNNING", "1+1|RUNNING") == [("1", "RUNNING", "tok")]
    assert listed("1+1|RUNNING", "1+0|FAILED", "7|PENDING") == [("1", "FAILED", "tok"), ("7", "PENDING", "tok")]


def test_job_with_only_its_last_component_is_listed():
    assert listed("1+1|COMPLETING") == [("1", "COMPLETING", "tok")]


def test_first_component_in_scontrol_is_the_job():
    job = queries.parse_scontrol(SCONTROL)[0]
    assert (job.id, job.state, job.nodes) == ("1", State("RUNNING"), "node[1-2]")


def test_account_sums_up_all_components_once():
    found = job_accounts.parse_scontrol(SCONTROL)
    assert (found.job_id, found.nodes, found.gpus, found.cpus) == ("1", NODES, 8, 48)
    one_line = "\n".join(" ".join(part.split()) for part in SCONTROL.split("\n\n"))
    assert job_accounts.parse_scontrol(one_line) == found


def sacct(job: str, submit: str, nodes: str, gpus: int, cpus: int) -> str:
    values = {"JobID": job, "State": "COMPLETED", "Submit": submit, "NodeList": nodes, "AllocTRES": f"gres/gpu={gpus}",
              "AllocCPUS": str(cpus), "ElapsedRaw": "60"}  # fmt: skip
    return "|".join(values.get(field, "") for field in queries._SACCT.values())


@pytest.mark.parametrize("order", [1, -1])
def test_sacct_components_are_joined_for_each_start(order):
    lines = [
        sacct("9+0", "2026-11-21T19:00:00", "node1", 4, 16),
        sacct("9+1", "2026-11-21T19:00:00", "client1", 0, 16),
        sacct("9+0", "2026-11-21T20:00:00", "node2", 4, 16),
        sacct("9+1", "2026-11-21T20:00:00", "client1", 0, 16),
        sacct("8", "2026-11-21T20:00:00", "node3", 2, 1),
    ]
    found = job_accounts.parse_sacct("\n".join(lines[::order]))
    assert found.keys() == {"8", "9"}
    assert [(start.nodes, start.gpus, start.cpus, start.restarts) for start in found["9"]] == [
        (("node1", "client1"), 4, 32, 0),
        (("node2", "client1"), 4, 32, 1),
    ]
