"""Slurm's reasons for a job that waits, in words."""

from __future__ import annotations

import pytest

from snakemake_executor_plugin_slurm_guarded import reasons
from snakemake_executor_plugin_slurm_guarded.terms import TERMS

# What ends the wait: nothing, an act of the user or of an administrator, or time.
NEVER, SOMEBODY, ITSELF = "never", "somebody", "itself"


@pytest.mark.parametrize(
    ("said", "clears"),
    [
        ("Resources", ITSELF),
        ("Priority", ITSELF),
        ("BeginTime", ITSELF),
        ("Dependency", ITSELF),
        ("Licenses", ITSELF),
        ("Reservation", ITSELF),
        ("ReqNodeNotAvail, Reserved for maintenance", ITSELF),
        ("ReqNodeNotAvail, UnavailableNodes:node[1-2]", SOMEBODY),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            SOMEBODY,
        ),
        ("PartitionDown", SOMEBODY),
        ("PartitionInactive", SOMEBODY),
        ("JobHeldUser", SOMEBODY),
        ("JobHeldAdmin", SOMEBODY),
        ("launch failed requeued held", SOMEBODY),
        ("QOSGrpNodeLimit", ITSELF),
        ("QOSGrpGRES", ITSELF),
        ("QOSMaxJobsPerUserLimit", ITSELF),
        ("QOSMaxGRESPerUser", ITSELF),
        ("MaxGRESPerAccount", ITSELF),
        ("AssocMaxJobsLimit", ITSELF),
        ("AssocGrpGRESMinutes", SOMEBODY),
        ("AssocGrpCPUMinutesLimit", SOMEBODY),
        ("QOSMaxGRESPerJob", NEVER),
        ("QOSMaxWallDurationPerJobLimit", NEVER),
        ("QOSMaxCpuPerNode", NEVER),
        ("QOSMinNode", NEVER),
        ("AssocMaxNodePerJobLimit", NEVER),
        ("AssocMaxCpuMinutesPerJobLimit", NEVER),
        ("PartitionTimeLimit", NEVER),
        ("PartitionNodeLimit", SOMEBODY),
        ("PartitionConfig", NEVER),
        ("DependencyNeverSatisfied", NEVER),
        ("InvalidAccount", NEVER),
        ("InvalidQOS", NEVER),
        ("BadConstraints", SOMEBODY),
        ("ReservationDeleted", NEVER),
    ],
)  # fmt: skip
def test_what_ends_a_wait(said: str, clears: str) -> None:
    row = reasons.find(said)
    assert row is not None and row.never is (clears == NEVER)
    text = reasons.sentence("deployment x", "12", said)
    assert text.startswith("deployment x (job 12)") and said in text and "{" not in text
    assert bool(row.do) or clears == ITSELF, "who has to act learns what to do"


@pytest.mark.parametrize("said", ["PartitionNodeLimit", "BadConstraints"])
def test_a_reason_that_nodes_out_of_service_can_cause_says_so(said: str) -> None:
    text = reasons.sentence("deployment x", "12", said)
    assert "sinfo -R" in text


def test_a_reason_that_the_table_lacks_is_quoted() -> None:
    assert reasons.find("SomethingNew") is None and "SomethingNew" in reasons.sentence("x", "1", "SomethingNew")


def test_sentence_golden() -> None:
    assert reasons.sentence("deployment x", "12", "PartitionTimeLimit") == (
        "deployment x (job 12) waits in the queue: its time limit is longer than its partition allows "
        "(Slurm's reason: PartitionTimeLimit). With this request and these limits the job cannot start.\n"
        "  what to do: Interrupt this run (Ctrl-C), change runtime or slurm_partition in the rule's resources, "
        "and run the same command again. Finished work is kept."
    )


@pytest.mark.parametrize("row", reasons.TABLE, ids=lambda row: row.pattern)
def test_every_remedy_names_what_the_workflow_calls_its_keys(row: reasons.Reason, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TERMS:
        monkeypatch.setitem(TERMS, name, f"<{name}>")
    text = row.do.format(job="12", **TERMS)
    assert ("<place>" in text) == ("change" in row.do) and "slurm_" not in text
