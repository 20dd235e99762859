"""A command that fails, hangs or prints nonsense raises CommandFailed with its cause."""

from __future__ import annotations

import threading
import time

import pytest
from slurm_tools import MakeTool

from snakemake_executor_plugin_slurm_guarded import commands, queries
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, Trouble


@pytest.mark.parametrize(
    ("said", "trouble"),
    [
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", Trouble.UNREACHABLE),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", Trouble.UNREACHABLE),
        ("slurm_load_jobs error: Zero Bytes were transmitted or received", Trouble.UNREACHABLE),
        ("sbatch: error: slurm_receive_msg: something", Trouble.UNREACHABLE),
        ("Connection refused", Trouble.UNREACHABLE),
        ("sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection", Trouble.UNREACHABLE),
        ("sbatch: error: Munge encode failed: Failed to access \"/run/munge/munge.socket.2\"", Trouble.UNREACHABLE),
        ("sbatch: error: invalid partition specified: x", Trouble.REFUSED),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified", Trouble.REFUSED),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", Trouble.REFUSED),
        ("ended with exit code 1", Trouble.REFUSED),
    ],
)  # fmt: skip
def test_output_tells_no_response_from_refusal(said: str, trouble: Trouble) -> None:
    assert commands.trouble_of(said) is trouble


@pytest.mark.parametrize(
    ("body", "trouble", "said"),
    [
        ("sleep 30", Trouble.UNREACHABLE, " 1 s"),
        ("echo Connection refused >&2; exit 1", Trouble.UNREACHABLE, "Connection refused"),
        ("echo no such thing; exit 1", Trouble.REFUSED, "no such thing"),
        ("exit 4", Trouble.REFUSED, "exit code 4"),
        ("printf '\\377\\376 nonsense'", Trouble.UNREACHABLE, "unexpected"),
    ],
)
def test_failing_query_raises_its_trouble(tool: MakeTool, body: str, trouble: Trouble, said: str) -> None:
    tool("squeue", body)
    begin = time.monotonic()
    with pytest.raises(CommandFailed) as caught:
        queries.squeue(["name"], finished=True, timeout_s=1 if body == "sleep 30" else 20)
    assert caught.value.trouble is trouble and said in caught.value.said
    assert time.monotonic() - begin < 25


def test_users_variables_do_not_change_a_query(tool: MakeTool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    tool("squeue", 'echo "[$SQUEUE_STATES$SLURM_TIME_FORMAT]" >&2; exit 1')
    with pytest.raises(CommandFailed, match=r"\[\]"):
        queries.squeue(["name"], finished=False)


def test_empty_list_is_no_error(tool: MakeTool) -> None:
    tool("squeue", "")
    assert queries.squeue(["name"], finished=True) == []


def test_missing_command() -> None:
    with pytest.raises(CommandFailed) as caught:
        commands.run(["no-such-slurm-tool"])
    assert caught.value.trouble is Trouble.MISSING


def test_stop_event_ends_a_query(tool: MakeTool) -> None:
    tool("squeue", "sleep 30")
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    begin = time.monotonic()
    with pytest.raises(CommandFailed) as caught:
        queries.squeue(["name"], finished=True, stop=stop)
    assert caught.value.trouble is Trouble.STOPPED and time.monotonic() - begin < 25
