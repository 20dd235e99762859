"""The message for every end of a job."""

from __future__ import annotations

import pytest

from snakemake_executor_plugin_slurm_guarded.job_end import LOST, STUCK, End, clock, explain, minutes


@pytest.mark.parametrize(
    ("state", "facts", "said"),
    [
        ("CANCELLED", {"by": "root", "elapsed_s": 42.0}, "cancelled by user root after 0:42"),
        ("CANCELLED", {"elapsed_s": 42.0}, "cancelled after 0:42"),
        ("CANCELLED", {"by": "root", "elapsed_s": 0.0}, "cancelled by user root before it had started"),
        ("TIMEOUT", {"limit_min": 2.0, "nodes": "node1"}, "ran into its time limit of 2 min on node1"),
        ("TIMEOUT", {}, "ran into its time limit"),
        ("PREEMPTED", {"elapsed_s": 3725.0, "nodes": "node1"}, "preempted after 1:02:05 on node1"),
        ("NODE_FAIL", {"nodes": "node2", "elapsed_s": 61.0}, "node node2 failed after 1:01"),
        ("NODE_FAIL", {"nodes": "node[1-2]"}, "one of the nodes node[1-2] failed before"),
        ("NODE_FAIL", {}, "a node failed"),
        ("BOOT_FAIL", {"nodes": "node2"}, "could not start it on node2"),
        ("OUT_OF_MEMORY", {"nodes": "node2"}, "ran out of the node's memory"),
        ("DEADLINE", {}, "could not have ended before its deadline"),
        ("REVOKED", {}, "another cluster has started it"),
        ("FAILED", {"exit_code": 3, "elapsed_s": 5.0}, "failed with exit code 3 after 0:05"),
        ("FAILED", {"exit_code": 0, "signal": 9, "elapsed_s": 5.0}, "ended by signal 9 (SIGKILL) after 0:05"),
        ("FAILED", {"exit_code": 1, "reason": "NonZeroExitCode"}, "failed with exit code 1 before it had started."),
        ("FAILED", {"exit_code": 1, "reason": "RaisedSignal:53"}, "Slurm gives the reason RaisedSignal:53"),
        ("FAILED", {}, "failed with exit code unknown"),
        (LOST, {}, "does not know it any more"),
        (STUCK, {"nodes": "node2"}, "does not get it off the node on node2"),
        ("NEWWORD", {"reason": "Odd"}, "ended in state NEWWORD"),
    ],
)  # fmt: skip
def test_words(state: str, facts: dict[str, object], said: str) -> None:
    error = explain(End("123", "deployment x", state, success=False, log="results/r/slurm/123.log", **facts))  # type: ignore[arg-type]
    assert error.what.startswith("deployment x (job 123): ") and said in error.what, error.what
    assert error.look == "results/r/slurm/123.log" and error.do and error.reason == f"slurm_{state.lower()}"


def test_times_in_words() -> None:
    assert [clock(value) for value in (None, 0, 59.9, 60, 3600)] == ["0:00", "0:00", "0:59", "1:00", "1:00:00"]
    assert [minutes(value) for value in (0.4, 2, 60, 90, 1441)] == ["0 min", "2 min", "1 h", "1 h 30 min", "24 h 1 min"]
