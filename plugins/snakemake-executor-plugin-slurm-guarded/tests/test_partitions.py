"""Limits of partitions are read as Slurm states them."""

from __future__ import annotations

import pytest

from snakemake_executor_plugin_slurm_guarded import partitions


@pytest.mark.parametrize(("partition", "minutes"), [("a", 60), ("b", 30), ("a,b", 30), ("c", None), ("a,c", 60), (None, 60)])
def test_of_several_partitions_the_shortest_limit_counts(
    monkeypatch: pytest.MonkeyPatch, partition: str | None, minutes: float | None
) -> None:
    told = "PartitionName=a Default=YES MaxTime=01:00:00\nPartitionName=b Default=NO MaxTime=00:30:00\n"
    monkeypatch.setattr(partitions.commands, "run", lambda argv: told)
    assert partitions.partition_limit(partition) == minutes


@pytest.mark.parametrize(("partition", "minutes"), [("short", 2), (None, 60), ("long", 2880), ("free", None), ("none", None)])
def test_partition_limit(monkeypatch: pytest.MonkeyPatch, partition: str | None, minutes: float | None) -> None:
    text = "\n".join(
        f"PartitionName={name} AllowGroups=ALL Default={default} MaxTime={limit} State=UP"
        for name, default, limit in (
            ("batch", "YES", "01:00:00"),
            ("short", "NO", "00:02:00"),
            ("long", "NO", "2-00:00:00"),
            ("free", "NO", "UNLIMITED"),
        )
    )
    monkeypatch.setattr(partitions.commands, "run", lambda argv: text)
    assert partitions.partition_limit(partition) == minutes
