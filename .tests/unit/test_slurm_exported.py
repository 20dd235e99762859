"""What of our environment a job gets: Slurm keeps it on the controller's disk, and in accounting for good where a site asks for it."""

from __future__ import annotations

import os
import threading

import pytest

from builders.slurm_tools import on_path
from servemark.slurm import submit

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
# What the stages, Slurm's tools and the user's site need: no secret by its name, whatever its value looks like.
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
def test_a_job_gets_no_variable_that_is_a_secret_by_its_name(name):
    assert submit.exported({name: "s3cr3t", "PATH": "/usr/bin"}) == {"PATH": "/usr/bin"}


def test_a_job_gets_everything_else_as_it_is():
    assert submit.exported(NEEDED) == NEEDED


def test_our_own_environment_is_left_alone():
    env = {"HF_TOKEN": "s3cr3t", "PATH": "/usr/bin"}
    found = submit.exported(env)
    found["MORE"] = "1"
    assert env == {"HF_TOKEN": "s3cr3t", "PATH": "/usr/bin"}
    assert submit.exported({}) == {}


def test_sbatch_is_started_without_the_secrets(tmp_path, monkeypatch):
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
