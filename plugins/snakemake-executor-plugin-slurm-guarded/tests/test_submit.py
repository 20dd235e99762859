"""A job is submitted exactly once and gets no variable with the name of a secret."""

from __future__ import annotations

import os
import threading
import time

import pytest
from slurm_tools import AWAY, MakeTool, on_path

from snakemake_executor_plugin_slurm_guarded import submit
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, Trouble

SECRETS = (
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "VLLM_API_KEY",
    "OPENAI_API_KEY",
    "WANDB_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "DB_PASSWORD",
    "db_passwd",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "MY_SECRETS",
    "APIKEY",
)
# Variables that jobs may need: the name decides, not the value.
NEEDED = {
    "PATH": "/usr/bin",
    "HOME": "/home/me",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
    "SERVEMARK_SCHEDULED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MAX_TOKENS": "5",
    "KEYBOARD": "us",
    "MONKEYS": "2",
    "EMPTY": "",
    "LOOKS": "hf_abcdefghijklmnopqrstuvwx1234",
    "LINES_OF_IT": "one\ntwo 'three' $four",
}


@pytest.mark.parametrize("name", SECRETS)
def test_job_gets_no_variable_with_name_of_a_secret(name):
    assert submit.exported({name: "s3cr3t", "PATH": "/usr/bin"}) == {"PATH": "/usr/bin"}


def test_job_gets_all_other_variables_unchanged():
    assert submit.exported(NEEDED) == NEEDED


def test_own_environment_is_unchanged():
    env = {"HF_TOKEN": "s3cr3t", "PATH": "/usr/bin"}
    found = submit.exported(env)
    found["MORE"] = "1"
    assert env == {"HF_TOKEN": "s3cr3t", "PATH": "/usr/bin"}
    assert submit.exported({}) == {}


def test_sbatch_runs_without_the_secrets(tmp_path, monkeypatch):
    seen = tmp_path / "seen"
    on_path(tmp_path / "bin", monkeypatch)("sbatch", f"env > {seen}; cat > {seen}.script; echo 42")
    monkeypatch.setenv("HF_TOKEN", "s3cr3t")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    job = submit.submit(
        ["--nodes=1"],
        "#!/bin/sh\n",
        name="demo",
        token="demo-1",
        patience_s=5.0,
        stop=threading.Event(),
        outage=submit.Outage(lambda words: None),
    )
    given = seen.read_text().splitlines()
    assert job == "42" and "TOKENIZERS_PARALLELISM=false" in given
    assert "s3cr3t" not in seen.read_text()
    assert os.environ["HF_TOKEN"] == "s3cr3t", "the main process keeps its own"


@pytest.mark.parametrize(
    ("printed", "job"),
    [
        ("123\n", "123"),
        ("123;cluster\n", "123"),
        ("Welcome to 42 nodes\n123;c\n", "123"),
        ("", None),
        ("Submitted batch job 5", None),
    ],
)
def test_job_id(printed: str, job: str | None) -> None:
    assert submit.job_id_of(printed) == job


def submitted(patience_s: float = 60.0, stop: threading.Event | None = None) -> tuple[str | CommandFailed, list[str]]:
    said: list[str] = []
    try:
        outcome = submit.submit(
            ["--nodes=1"],
            "#!/bin/sh\n",
            name="run",
            token="x #1",
            patience_s=patience_s,
            stop=stop or threading.Event(),
            outage=submit.Outage(said.append),
        )
    except CommandFailed as error:
        return error, said
    return outcome, said


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "_FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(submit, "_SETTLE_S", 0.05)


def test_submission_waits_for_the_controller(tool: MakeTool, quick: None) -> None:
    calls = tool("sbatch", f"[ $N -gt 2 ] || {{ {AWAY}; }}; cat > /dev/null; echo 77")
    tool("squeue", "")
    outcome, said = submitted()
    assert outcome == "77" and len(calls.read_text().splitlines()) == 3
    assert len(said) == 2, "the outage and its end"
    assert "--comment=x #1" in calls.read_text()


def test_submission_with_lost_response_is_not_repeated(tool: MakeTool, quick: None) -> None:
    calls = tool("sbatch", "echo Socket timed out >&2; exit 1")
    tool("squeue", f"[ $N -gt 1 ] || {{ {AWAY}; }}; echo '88|PENDING|0:00|5:00|N/A|N/A||Priority|run-1|x #1|/w'")
    outcome, _ = submitted()
    assert outcome == "88" and len(calls.read_text().splitlines()) == 1


def test_refused_submission_is_not_repeated(tool: MakeTool, quick: None) -> None:
    calls = tool("sbatch", "echo 'invalid partition specified: x' >&2; exit 1")
    outcome, said = submitted()
    assert isinstance(outcome, CommandFailed) and outcome.trouble is Trouble.REFUSED and said == []
    assert len(calls.read_text().splitlines()) == 1


class Clock(threading.Event):
    """A clock that advances by the pauses only, so that slow processes of a busy machine do not use up the patience."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return self.is_set()


def test_submission_gives_up_after_its_patience(tool: MakeTool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = tool("sbatch", AWAY)
    tool("squeue", "")
    clock = Clock()
    monkeypatch.setattr(submit, "time", clock)
    outcome, said = submitted(patience_s=20.0, stop=clock)
    assert isinstance(outcome, CommandFailed) and outcome.trouble is Trouble.UNREACHABLE and len(said) == 1
    assert len(calls.read_text().splitlines()) == 4, "at 0, 3, 9 and 21 s"


def test_waiting_submission_can_be_stopped(tool: MakeTool) -> None:
    tool("sbatch", AWAY)
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    begin = time.monotonic()
    outcome, _ = submitted(stop=stop)
    assert isinstance(outcome, CommandFailed) and outcome.trouble is Trouble.STOPPED and time.monotonic() - begin < 50
