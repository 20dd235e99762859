"""What Slurm prints about partitions, nodes and accounts, read; each source may be missing."""

from __future__ import annotations

import getpass

import pytest

from builders.recorded_site import ASSOC_MGR, BODIES, NODES, PARTITIONS, SACCTMGR, SILENT, only
from servemark.init import slurm
from servemark.init.slurm import Account, NodeKind


def test_partitions_have_limits_nodes_and_kinds():
    batch, short, client, mixed = slurm.parse_partitions(PARTITIONS, NODES)
    assert (batch.name, batch.default, batch.up, batch.limit_min, batch.groups) == ("batch", True, True, 60.0, ())
    assert (short.default, short.limit_min) == (False, 2.0)
    assert batch.kinds == {NodeKind(4, None, 16, 64000): 2} and batch.nodes == {"node1", "node2"}
    assert (client.gpus, mixed.gpus, len(mixed.kinds)) == (0, 4, 2)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:4", (4, None)),
        ("gpu:h100:4(S:0-1)", (4, "h100")),
        ("gpu:nvidia_a100-sxm4-80gb:8(S:0,2)", (8, "nvidia_a100-sxm4-80gb")),
        ("gpu:a100:2,gpu:v100:6,mps:400", (6, "v100")),
        ("gpu:h100:no_consume:2", (2, "h100")),
        ("shard:8", (0, None)),
        ("(null)", (0, None)),
    ],
)
def test_gpus_and_type_are_read_from_gres(text, gpus):
    assert slurm.parse_gres(text) == gpus


def test_restrictions_of_a_partition_are_read():
    line = "PartitionName=x AllowGroups=physics,chem DenyAccounts=guest RootOnly=YES MaxTime=UNLIMITED State=DOWN AllowAccounts=a,b"
    (found,) = slurm.parse_partitions(line, "x|n1|gpu:h100:4|64|515000+\n")
    assert (found.groups, found.accounts, found.denied) == (("physics", "chem"), ("a", "b"), ("guest",))
    assert (found.root_only, found.up, found.limit_min) == (True, False, None)
    assert found.kind == NodeKind(4, "h100", 64, 515000)


def test_kind_of_a_mixed_partition_is_one_with_gpus():
    nodes = "".join(f"x|cpu{n}|(null)|16|64000\n" for n in range(9)) + "x|g1|gpu:2|16|64000\nx|g2|gpu:2|16|64000\nx|g3|gpu:8|16|64000\n"
    (found,) = slurm.parse_partitions("PartitionName=x State=UP", nodes)
    assert found.gpus == 2


def test_accounts_come_with_the_default_one_first():
    assert slurm.parse_sacctmgr(SACCTMGR) == (
        Account("research", "", ("long", "normal", "short"), default=True),
        Account("root", "", ("normal",)),
        Account("teaching", "", ("long", "normal", "short")),
    )
    assert [(one.name, one.default) for one in slurm.parse_assoc_mgr(ASSOC_MGR, "root")] == [
        ("research", True),
        ("root", False),
        ("teaching", False),
    ]
    assert slurm.parse_assoc_mgr(ASSOC_MGR, "somebody") == ()


def test_machine_without_sbatch_has_no_slurm(tmp_path, monkeypatch):
    only(tmp_path / "bin", monkeypatch, {})
    assert slurm.find() is None


def test_every_source_is_read(tmp_path, monkeypatch):
    only(tmp_path / "bin", monkeypatch, BODIES)
    found = slurm.find()
    assert found and (found.cluster, len(found.partitions), len(found.accounts), found.unknown) == ("sandbox", 4, 3, ())


def test_accounts_come_from_scontrol_where_sacctmgr_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "root")
    only(tmp_path / "bin", monkeypatch, BODIES | {"sacctmgr": "echo 'sacctmgr: error: Access/permission denied' >&2; exit 1"})
    found = slurm.find()
    assert found and [one.name for one in found.accounts] == ["research", "root", "teaching"]
    assert len(found.unknown) == 1 and "denied" in found.unknown[0] and found.responds


def test_silent_controller_is_queried_once(tmp_path, monkeypatch):
    calls = tmp_path / "calls"
    only(tmp_path / "bin", monkeypatch, dict.fromkeys(BODIES, f"echo x >> {calls}; {SILENT}"))
    found = slurm.find()
    assert found and not found.responds and found.partitions == () and len(found.unknown) == 1
    assert calls.read_text() == "x\n"
