"""The newest allocation works on a deployment; one that was given up for lost writes nothing more."""

from __future__ import annotations

import os

import pytest

from servemark import fence, processes


@pytest.fixture(autouse=True)
def own_variables(monkeypatch, nowhere):
    """What a test exports ends with it."""
    monkeypatch.setattr(os, "environ", dict(os.environ))


@pytest.mark.parametrize(
    ("job", "restarts", "known", "name"),
    [
        ("7", None, "", "job 7"),
        ("7", "0", "", "job 7"),
        ("7", "1", "", "job 7, start 2"),
        ("7", "2", "job 7, start 2", "job 7, start 3"),
        # Below the first Snakemake of a job the count is gone, and the name is there.
        ("7", None, "job 7, start 2", "job 7, start 2"),
        ("7", None, "job 6, start 2", "job 7"),
        ("71", None, "job 7", "job 71"),
        ("7", "", "", "job 7"),
    ],
)
def test_a_job_is_named_with_its_start(job, restarts, known, name):
    os.environ["SLURM_JOB_ID"] = job
    if restarts is not None:
        os.environ["SLURM_RESTART_COUNT"] = restarts
    if known:
        os.environ[fence.VARIABLE] = known
    fence.export_name()
    assert fence.mine() == os.environ[fence.VARIABLE] == name


def test_without_a_job_the_run_is_named_by_its_process(monkeypatch):
    os.environ[fence.VARIABLE] = "job 7"
    os.environ[processes.LIFELINE_VARIABLE] = str(processes.myself())
    fence.export_name()
    assert fence.VARIABLE not in os.environ and fence.mine() == f"process {processes.myself()}"


def test_who_takes_a_deployment_has_it_until_another_one_does(tmp_path):
    assert fence.owner(tmp_path) is None
    fence.check(tmp_path)
    os.environ[fence.VARIABLE] = "job 7"
    assert fence.take(tmp_path) == fence.owner(tmp_path) == "job 7"
    fence.check(tmp_path)
    os.environ[fence.VARIABLE] = "job 7, start 2"
    fence.take(tmp_path)
    os.environ[fence.VARIABLE] = "job 7"
    with pytest.raises(
        fence.TakenOver, match=r"worked on by job 7, start 2; this is job 7, which was given up"
    ) as refused:
        fence.check(tmp_path)
    assert refused.value.reason == "taken_over" and "the newer one goes on" in refused.value.do
