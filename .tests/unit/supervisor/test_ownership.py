"""The newest allocation owns a deployment; a superseded one writes nothing."""

from __future__ import annotations

import os

import pytest

from servemark.processes import identity
from servemark.supervisor import ownership


@pytest.fixture(autouse=True)
def own_variables(monkeypatch, nowhere):
    """Undo what a test exports."""
    monkeypatch.setattr(os, "environ", dict(os.environ))


@pytest.mark.parametrize(
    ("job", "restarts", "known", "name"),
    [
        ("7", None, "", "job 7"),
        ("7", "0", "", "job 7"),
        ("7", "1", "", "job 7, start 2"),
        ("7", "2", "job 7, start 2", "job 7, start 3"),
        # Processes of the first Snakemake of a job have no restart count, but the exported name.
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
        os.environ[ownership.VARIABLE] = known
    ownership.export_name()
    assert ownership.mine() == os.environ[ownership.VARIABLE] == name


def test_without_a_job_the_run_is_named_by_its_process(monkeypatch):
    os.environ[ownership.VARIABLE] = "job 7"
    os.environ[identity.OWNER_PROCESS_VARIABLE] = str(identity.myself())
    ownership.export_name()
    assert ownership.VARIABLE not in os.environ and ownership.mine() == f"process {identity.myself()}"


def test_owner_keeps_deployment_until_superseded(tmp_path):
    assert ownership.owner(tmp_path) is None
    ownership.check(tmp_path)
    os.environ[ownership.VARIABLE] = "job 7"
    assert ownership.take(tmp_path) == ownership.owner(tmp_path) == "job 7"
    ownership.check(tmp_path)
    os.environ[ownership.VARIABLE] = "job 7, start 2"
    ownership.take(tmp_path)
    os.environ[ownership.VARIABLE] = "job 7"
    with pytest.raises(ownership.TakenOver, match=r"job 7, start 2; .* job 7, ") as refused:
        ownership.check(tmp_path)
    assert refused.value.reason == "taken_over" and refused.value.do
