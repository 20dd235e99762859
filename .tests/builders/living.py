"""Attempts that are alive according to their files, for `servemark status` and `stop`; and a Slurm with given jobs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from servemark.cli.live import Jobs, Living, living
from servemark.deployment import attempts
from servemark.processes import identity as processes
from servemark.records import EndpointStatus, write_atomically
from servemark.supervisor import SupervisorSpec, SupervisorState
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, Trouble
from snakemake_executor_plugin_slurm_guarded.queries import Job
from snakemake_executor_plugin_slurm_guarded.records import Checkout
from snakemake_executor_plugin_slurm_guarded.states import State

NOW = 1_800_000_000.0
DEAD = processes.Identity(1, 1)
ELSEWHERE = processes.Identity(77, 5, "another-host")


def utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")


def slurm(**states: str):
    """Slurm with these jobs (``j7="RUNNING"``), and no other."""

    def ask(job_id: str) -> Job | None:
        word = states.get(f"j{job_id}")
        return Job(job_id, State.parse(word), reason="Priority") if word else None

    return Jobs(ask)


def no_slurm() -> Jobs:
    def ask(_: str) -> Job | None:
        raise CommandFailed(Trouble.MISSING, ["scontrol"], "no such program")

    return Jobs(ask)


class Results:
    """A results folder with one run, ``demo``."""

    def __init__(self, root: Path):
        self.root = root / "results"
        self.run = self.root / "demo"
        write_atomically(self.run / "config.json", "{}\n")

    def add(
        self,
        name: str = "plain",
        *,
        held: bool = False,
        state: str = "running",
        identity: processes.Identity | None = None,
        job: str | None = None,
        ends_at: float | None = None,
        beat: float | None = None,
        checkout: Checkout | None = None,
        **more: object,
    ) -> Path:
        folder = self.run / ("serving" if held else "deployments") / name
        attempt = attempts.new(folder)
        owner = f"job {job}" if job else "process 1:1@here"
        spec = SupervisorSpec(
            deployment=name, lifeline=str(DEAD), machine_lock=None, tokens=(), scratch="/nowhere", ends_at=ends_at,
            stop_grace_s=1.0, owner=owner, checkout=checkout,
        )  # fmt: skip
        write_atomically(attempt / "supervisor-spec.json", spec.model_dump_json())
        who = str(identity or processes.myself())
        word = SupervisorState(state=state, identity=who, deployment=name, owner=owner, **more)
        write_atomically(attempt / "supervisor.json", word.model_dump_json())
        if beat is not None:
            EndpointStatus(
                deployment=name, state="held", at=utc(beat), since=utc(beat - 60), url="http://10.0.0.1:20000",
                attempt=str(attempt), finished=12, running=3,
            ).write(folder / "status.json")  # fmt: skip
        return attempt

    def tell(self, name: str, text: str, moment: float) -> None:
        line = {"time": moment, "stage": "measure", "subject": name, "text": text, "log": ""}
        with open(self.run / "progress.jsonl", "a") as stream:
            stream.write(json.dumps(line) + "\n")

    def living(self, jobs: Jobs | None = None) -> list[Living]:
        return living(self.root, jobs or no_slurm(), NOW)
