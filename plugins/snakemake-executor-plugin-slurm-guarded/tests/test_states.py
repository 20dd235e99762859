"""Slurm's state words."""

from __future__ import annotations

import pytest

from snakemake_executor_plugin_slurm_guarded.states import Meaning, State


@pytest.mark.parametrize(
    ("text", "word", "by", "meaning"),
    [
        ("COMPLETED", "COMPLETED", None, Meaning.SUCCESS),
        ("CANCELLED by 1000", "CANCELLED", 1000, Meaning.FAILURE),
        ("CANCELLED", "CANCELLED", None, Meaning.FAILURE),
        ("CANCELLED+", "CANCELLED", None, Meaning.FAILURE),
        (" cancelled ", "CANCELLED", None, Meaning.FAILURE),
        ("PREEMPTED", "PREEMPTED", None, Meaning.FAILURE),
        ("NODE_FAIL", "NODE_FAIL", None, Meaning.FAILURE),
        ("BOOT_FAIL", "BOOT_FAIL", None, Meaning.FAILURE),
        ("OUT_OF_ME+", "OUT_OF_ME", None, Meaning.UNKNOWN),
        ("OUT_OF_MEMORY", "OUT_OF_MEMORY", None, Meaning.FAILURE),
        ("TIMEOUT", "TIMEOUT", None, Meaning.FAILURE),
        ("DEADLINE", "DEADLINE", None, Meaning.FAILURE),
        ("REVOKED", "REVOKED", None, Meaning.FAILURE),
        ("FAILED", "FAILED", None, Meaning.FAILURE),
        ("LAUNCH_FAILED", "LAUNCH_FAILED", None, Meaning.FAILURE),
        ("PENDING", "PENDING", None, Meaning.WAITING),
        ("CONFIGURING", "CONFIGURING", None, Meaning.WAITING),
        ("REQUEUE_HOLD", "REQUEUE_HOLD", None, Meaning.WAITING),
        ("RUNNING", "RUNNING", None, Meaning.RUNNING),
        ("SUSPENDED", "SUSPENDED", None, Meaning.RUNNING),
        ("COMPLETING", "COMPLETING", None, Meaning.ENDING),
        ("UNKNOWN", "UNKNOWN", None, Meaning.UNKNOWN),
        ("", "", None, Meaning.UNKNOWN),
        ("\x00garbage", "\x00GARBAGE", None, Meaning.UNKNOWN),
    ],
)
def test_state_words(text: str, word: str, by: int | None, meaning: Meaning) -> None:
    state = State.parse(text)
    assert (state.word, state.by, state.meaning) == (word, by, meaning)
    assert state.ended == (meaning in (Meaning.SUCCESS, Meaning.FAILURE))
