"""Messages for every reason to wait and for every end of a job."""

from __future__ import annotations

from typing import Any

import pytest

from snakemake_executor_plugin_slurm_guarded import reasons
from snakemake_executor_plugin_slurm_guarded.errors import TERMS
from snakemake_executor_plugin_slurm_guarded.queries import Job
from snakemake_executor_plugin_slurm_guarded.reasons import LOST, STUCK, End, clock, explain, minutes
from snakemake_executor_plugin_slurm_guarded.states import State

# What ends the wait: nothing, a user or an administrator, or time.
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
    assert bool(row.do) or clears == ITSELF, "a remedy, if somebody must act"


@pytest.mark.parametrize("said", ["PartitionNodeLimit", "BadConstraints"])
def test_reason_that_dead_nodes_can_cause_names_sinfo(said: str) -> None:
    text = reasons.sentence("deployment x", "12", said)
    assert "sinfo -R" in text


def test_unlisted_reason_is_quoted() -> None:
    assert reasons.find("SomethingNew") is None and "SomethingNew" in reasons.sentence("x", "1", "SomethingNew")


def test_waiting_message_golden() -> None:
    assert reasons.sentence("deployment x", "12", "PartitionTimeLimit") == (
        "deployment x (job 12) waits in the queue: its time limit is longer than its partition allows "
        "(Slurm's reason: PartitionTimeLimit). With this request and these limits the job cannot start.\n"
        "  what to do: Interrupt this run (Ctrl-C), change runtime or slurm_partition in the rule's resources, "
        "and run the same command again. Finished work is kept."
    )


@pytest.mark.parametrize("row", reasons.TABLE, ids=lambda row: row.pattern)
def test_remedies_use_the_keys_of_terms(row: reasons.Reason, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TERMS:
        monkeypatch.setitem(TERMS, name, f"<{name}>")
    text = row.do.format(job="12", **TERMS)
    assert ("<place>" in text) == ("change" in row.do) and "slurm_" not in text


@pytest.mark.parametrize(
    ("state", "facts", "named"),
    [
        ("CANCELLED", {"by": "root", "elapsed_s": 42.0}, ["root", "0:42"]),
        ("CANCELLED", {"elapsed_s": 42.0}, ["0:42"]),
        ("CANCELLED", {"by": "root", "elapsed_s": 0.0}, ["root", "before"]),
        ("TIMEOUT", {"limit_min": 2.0, "nodes": "node1"}, ["2 min", "node1"]),
        ("TIMEOUT", {}, []),
        ("PREEMPTED", {"elapsed_s": 3725.0, "nodes": "node1"}, ["1:02:05", "node1"]),
        ("NODE_FAIL", {"nodes": "node2", "elapsed_s": 61.0}, ["node node2 ", "1:01"]),
        ("NODE_FAIL", {"nodes": "node[1-2]"}, ["nodes node[1-2] "]),
        ("NODE_FAIL", {}, []),
        ("BOOT_FAIL", {"nodes": "node2"}, ["BOOT_FAIL", "node2"]),
        ("OUT_OF_MEMORY", {"nodes": "node2"}, ["node2"]),
        ("DEADLINE", {}, []),
        ("REVOKED", {}, []),
        ("FAILED", {"exit": "3:0", "elapsed_s": 5.0}, ["code 3", "0:05"]),
        ("FAILED", {"exit": "0:9", "elapsed_s": 5.0}, ["signal 9 (SIGKILL)", "0:05"]),
        ("FAILED", {"exit": "0:99"}, ["signal 99 "]),
        ("FAILED", {"exit": "1:0", "reason": "NonZeroExitCode"}, ["code 1"]),
        ("FAILED", {"exit": "1:0", "reason": "RaisedSignal:53"}, ["RaisedSignal:53"]),
        ("FAILED", {}, ["unknown"]),
        (LOST, {}, []),
        (STUCK, {"nodes": "node2"}, ["node2"]),
        ("NEWWORD", {"reason": "Odd"}, ["NEWWORD", "Odd"]),
    ],
)
def test_message_of_every_end_has_its_facts(state: str, facts: dict[str, Any], named: list[str]) -> None:
    error = explain(end(state, **facts))
    assert error.what.startswith("deployment x (job 123): ") and all(text in error.what for text in named), error.what
    assert error.look == "results/r/slurm/123.log" and error.do and error.reason == f"slurm_{state.lower()}"
    assert ("NonZeroExitCode" in error.what) is False, "it only repeats the state"


def end(state: str, by: str | None = None, **facts: Any) -> End:
    return End("123", "deployment x", "results/r/slurm/123.log", state, success=False, view=Job("123", State(state), **facts), by=by)


def test_end_message_golden() -> None:
    assert explain(end("CANCELLED", by="root", elapsed_s=42.0)).message() == (
        "deployment x (job 123): cancelled by user root after 0:42.\n  look at: results/r/slurm/123.log\n"
        "  what to do: If you did not intend this, ask root. Run the same command again. Finished work is kept."
    )


def test_times_in_messages() -> None:
    assert [clock(value) for value in (None, 0, 59.9, 60, 3600)] == ["0:00", "0:00", "0:59", "1:00", "1:00:00"]
    assert [minutes(value) for value in (0.4, 2, 60, 90, 1441)] == ["0 min", "2 min", "1 h", "1 h 30 min", "24 h 1 min"]
