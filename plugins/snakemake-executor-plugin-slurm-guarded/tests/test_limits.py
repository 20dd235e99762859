"""Limits that one job exceeds by itself, from the output of sacctmgr and scontrol."""

from __future__ import annotations

from pathlib import Path

import pytest

from snakemake_executor_plugin_slurm_guarded import limits, reasons
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, Trouble
from snakemake_executor_plugin_slurm_guarded.limits import Site
from snakemake_executor_plugin_slurm_guarded.request import Request

PARTITION = {"PartitionName": "gpu", "Default": "YES", "MaxTime": "1-00:00:00", "MaxNodes": "4", "QoS": "N/A", "OverSubscribe": "NO"}
USER = dict.fromkeys(limits._ASSOC_FIELDS, "") | {"DefaultAccount": "lab", "Account": "lab", "DefaultQOS": "normal"}
QOS = dict.fromkeys(limits._QOS_FIELDS, "")
JOB = Request(nodes=2, gres="gpu:h100:4", minutes=60, exclusive=True)
REASONS = Path(__file__).with_name("fixtures") / "reasons-26.05.5.txt"


def site(qos=None, user=None, partition=None, part_qos=None) -> Site:
    every = {"normal": QOS | {"Name": "normal"} | (qos or {})}
    if part_qos is not None:
        every["part"] = QOS | {"Name": "part"} | part_qos
        partition = (partition or {}) | {"QoS": "part"}
    return Site([PARTITION | (partition or {})], every, [USER | (user or {})])


@pytest.mark.parametrize(
    ("given", "job", "reason"),
    [
        ({"qos": {"MaxWall": "00:30:00"}}, {}, "QOSMaxWallDurationPerJobLimit"),
        ({"user": {"MaxWall": "00:30:00"}}, {}, "AssocMaxWallDurationPerJobLimit"),
        ({"partition": {"MaxTime": "00:30:00"}}, {}, "PartitionTimeLimit"),
        ({"partition": {"MaxNodes": "1"}}, {}, "PartitionNodeLimit"),
        ({"qos": {"MaxTRES": "cpu=8,node=1"}}, {}, "QOSMaxNodePerJobLimit"),
        ({"qos": {"MaxTRES": "gres/gpu=4"}}, {}, "QOSMaxGRESPerJob"),
        ({"qos": {"MaxTRESPerNode": "gres/gpu=2"}}, {}, "QOSMaxGRESPerNode"),
        ({"qos": {"MaxTRESPU": "node=1"}}, {}, "QOSMaxNodePerUserLimit"),
        ({"qos": {"MaxTRESPA": "gres/gpu=7"}}, {}, "MaxGRESPerAccount"),
        ({"qos": {"GrpTRES": "node=1"}}, {}, "QOSGrpNodeLimit"),
        ({"user": {"GrpTRES": "gres/gpu=4"}}, {}, "AssocGrpGRES"),
        ({"user": {"MaxTRES": "node=1"}}, {}, "AssocMaxNodePerJobLimit"),
        ({"qos": {"MinTRES": "gres/gpu=16"}}, {}, "QOSMinGRES"),
        ({"qos": {"MaxTRES": "cpu=8"}}, {"exclusive": False, "cpus": 8}, "QOSMaxCpuPerJobLimit"),
    ],
)
def test_limit_that_a_job_exceeds(given, job, reason):
    (said,) = limits.problems(Request(**(vars(JOB) | job)), site(**given))
    assert f"(reason {reason})" in said
    assert reasons.find(reason) is not None, "the same reason, if the job waits"


@pytest.mark.parametrize(
    ("given", "job"),
    [
        ({}, {}),
        ({"qos": {"MaxWall": "01:00:00", "MaxTRES": "node=2,gres/gpu=8", "MaxTRESPerNode": "gres/gpu=4"}}, {}),
        ({"qos": {"MaxTRES": "cpu=8"}}, {}),  # an exclusive job's cores are not known
        ({"qos": {"MaxWall": "00:30:00"}}, {"minutes": None}),
        ({"qos": {"MaxWall": "02:00:00"}, "user": {"MaxWall": "00:30:00"}}, {}),  # the QOS comes first
        ({"qos": {"MaxWall": "00:30:00"}, "part_qos": {"MaxWall": "02:00:00"}}, {}),  # the partition's QOS comes first
        ({"qos": {"MaxWall": "02:00:00", "Flags": "OverPartQOS"}, "part_qos": {"MaxWall": "00:30:00"}}, {}),
        ({"qos": {"Flags": "DenyOnLimit,PartitionTimeLimit"}, "partition": {"MaxTime": "00:30:00"}}, {}),
        ({"user": {"MaxWall": "00:30:00"}}, {"account": "other"}),
        ({"user": {"MaxWall": "00:30:00", "Partition": "cpu"}}, {}),
        ({"partition": {"MaxTime": "UNLIMITED", "MaxNodes": "UNLIMITED"}}, {}),
    ],
)
def test_job_within_its_limits(given, job):
    assert limits.problems(Request(**(vars(JOB) | job)), site(**given)) == []


def test_one_of_several_partitions_is_enough():
    long, short = PARTITION | {"PartitionName": "long"}, PARTITION | {"PartitionName": "short", "MaxTime": "00:10:00"}
    every = Site([short, long], {}, [])
    assert limits.problems(Request(partition="short,long", minutes=60), every) == []
    assert len(limits.problems(Request(partition="short", minutes=60), every)) == 1


def test_submit_limit_and_shared_partition_are_notes():
    asked = [Request(nodes=1), JOB, JOB]
    (submit,) = limits.notes(asked, site(qos={"MaxSubmitPU": "2"}))
    assert "--jobs 2" in submit and "QOSMaxSubmitJobPerUserLimit" in submit
    (submit,) = limits.notes(asked, site(user={"MaxSubmit": "1"}))
    assert "--jobs 1" in submit and "AssocMaxSubmitJobLimit" in submit
    (shared,) = limits.notes(asked, site(partition={"OverSubscribe": "FORCE:4"}))
    assert "exclusive" in shared
    assert limits.notes(asked, site(qos={"MaxSubmitPU": "3"})) == []


@pytest.mark.parametrize(("enforced", "read"), [("associations,limits,qos", True), ("associations,qos", False), ("none", False)])
def test_only_enforced_limits_are_read(enforced, read):
    def ask(argv):
        if "sacctmgr" in argv:
            names = limits._QOS_FIELDS if "qos" in argv else limits._ASSOC_FIELDS
            return "|".join(names) + "\n"
        return f"AccountingStorageEnforce = {enforced}\n" if "config" in argv else "PartitionName=gpu Default=YES MaxTime=1-00:00:00\n"

    found = limits.read(ask)
    assert [p["PartitionName"] for p in found.partitions] == ["gpu"]
    assert (bool(found.qos), bool(found.associations)) == (read, read)


def test_slurm_without_accounting_has_no_limits():
    def ask(argv):
        raise CommandFailed(Trouble.UNREACHABLE, argv, "no response")

    assert not any(limits.read(ask))


@pytest.mark.parametrize("name", REASONS.read_text().split())
def test_every_limit_in_slurms_library_has_a_row(name):
    row = reasons.find(name)
    assert row is not None and row.do
