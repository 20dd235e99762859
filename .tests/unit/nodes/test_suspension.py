"""Slurm's record of a suspension since a time, and none if Slurm does not respond."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from slurm_tools import AWAY

from builders.standin_slurm import StandinSlurm
from servemark.nodes import allocation

CHANGED = datetime(2026, 11, 20, 18, 57, 30, tzinfo=UTC)


def change(slurm: StandinSlurm, moment: datetime) -> None:
    text = (slurm.folder / "job").read_text()
    slurm.job(text.replace("SuspendTime=None", f"SuspendTime={moment:%Y-%m-%dT%H:%M:%S}"))


@pytest.mark.parametrize(("after_s", "found"), [(-60.0, True), (0.0, True), (0.9, True), (1.0, False), (3600.0, False)])
def test_suspension_counts_from_second_of_points_begin(slurm, after_s, found):
    change(slurm, CHANGED)
    said = allocation.suspended_since(CHANGED + timedelta(seconds=after_s))
    assert (said is not None) is found
    assert said is None or ("job 1 " in said and "2026-11-20 18:57:30 UTC" in said)
    assert slurm.calls("scontrol") == ["show job -d 1"]


def test_latest_suspension_of_any_component_counts(slurm):
    slurm.heterogeneous("node1", "node2")
    first, _, second = (slurm.folder / "job").read_text().partition("SuspendTime=None")
    slurm.job(f"{first}SuspendTime=None{second.replace('SuspendTime=None', 'SuspendTime=2026-11-20T18:57:30')}")
    assert allocation.suspended_since(CHANGED) and not allocation.suspended_since(CHANGED + timedelta(seconds=5))


def test_a_job_that_was_never_suspended(slurm):
    assert allocation.suspended_since(datetime(1970, 1, 2, tzinfo=UTC)) is None


def test_outside_of_a_job_slurm_is_not_queried(slurm, monkeypatch):
    change(slurm, CHANGED)
    monkeypatch.delenv("SLURM_JOB_ID")
    assert allocation.suspended_since(CHANGED) is None and slurm.calls("scontrol") == []


@pytest.mark.parametrize("script", [AWAY, "exec sleep 60", "exit 0", None])
def test_a_controller_that_does_not_respond_costs_no_point(slurm, monkeypatch, script):
    tool = slurm.folder / "bin" / "scontrol"
    monkeypatch.setattr(allocation, "SUSPENSION_S", 0.5)
    tool.write_text(f"#!/bin/sh\n{script}\n") if script else tool.unlink()
    assert allocation.suspended_since(CHANGED) is None
