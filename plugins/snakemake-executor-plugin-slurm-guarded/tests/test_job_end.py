"""The message for every end of a job."""

from __future__ import annotations

from typing import Any

import pytest

from snakemake_executor_plugin_slurm_guarded.job_end import LOST, STUCK, End, clock, explain, minutes
from snakemake_executor_plugin_slurm_guarded.queries import Job
from snakemake_executor_plugin_slurm_guarded.states import State


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
def test_every_end_has_a_message_with_its_facts(state: str, facts: dict[str, Any], named: list[str]) -> None:
    error = explain(end(state, **facts))
    assert error.what.startswith("deployment x (job 123): ") and all(text in error.what for text in named), error.what
    assert error.look == "results/r/slurm/123.log" and error.do and error.reason == f"slurm_{state.lower()}"
    assert ("NonZeroExitCode" in error.what) is False, "it only repeats the state"


def end(state: str, by: str | None = None, **facts: Any) -> End:
    return End("123", "deployment x", "results/r/slurm/123.log", state, success=False, view=Job("123", State(state), **facts), by=by)


def test_message_golden() -> None:
    assert explain(end("CANCELLED", by="root", elapsed_s=42.0)).message() == (
        "deployment x (job 123): cancelled by user root after 0:42.\n  look at: results/r/slurm/123.log\n"
        "  what to do: If that was not meant, ask root. Run the same command again to go on; finished work is kept."
    )


def test_times_in_words() -> None:
    assert [clock(value) for value in (None, 0, 59.9, 60, 3600)] == ["0:00", "0:00", "0:59", "1:00", "1:00:00"]
    assert [minutes(value) for value in (0.4, 2, 60, 90, 1441)] == ["0 min", "2 min", "1 h", "1 h 30 min", "24 h 1 min"]
