"""Slurm's account of a deployment's jobs: bounded queries, GPU-hours, and no failure of the run."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from recorded_slurm import DAY, JOURNAL, NO_ACCOUNTING, SACCT, SCONTROL, start

from builders import report_data
from servemark.deployment import accounting
from servemark.deployment.accounting import Queries
from servemark.records import Accounting, DaemonState, ReplicaStartup, ServerPlace, Startup, Topology
from servemark.supervisor import SupervisorSpec
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, Trouble


class Slurm:
    """Slurm's tools with prepared outputs, the last one repeated; a clock that only sleep() advances."""

    def __init__(self, **answers: list[str | CommandFailed]):
        self.answers, self.asked, self.now = answers, [], 0.0

    def run(self, argv, *, env):
        assert env["TZ"] == "UTC"
        self.asked.append(argv[0])
        left = self.answers[argv[0]]
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, CommandFailed):
            raise answer
        return answer

    def sleep(self, seconds):
        self.now += seconds

    def asking(self):
        return Queries(patience_s=3.0, run=self.run, clock=lambda: self.now, sleep=self.sleep)


NONE = CommandFailed(Trouble.REFUSED, ["sacct"], "Slurm accounting storage is disabled")
AWAY = CommandFailed(Trouble.UNREACHABLE, ["scontrol"], "Unable to contact slurm controller (connect failure)")
FORGOTTEN = CommandFailed(Trouble.REFUSED, ["scontrol"], "slurm_load_jobs error: Invalid job id specified")
LATE = SACCT.replace("COMPLETED", "RUNNING")
SINCE = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("answers", "states", "trouble", "seconds"),
    [
        ({"sacct": [SACCT]}, [("COMPLETED", "sacct")], None, 0),
        ({"sacct": [LATE, LATE, SACCT]}, [("COMPLETED", "sacct")], None, 2 * accounting.PAUSE_S),
        ({"sacct": [LATE], "scontrol": [SCONTROL[0]]}, [("COMPLETED", "scontrol")], None, 3),
        ({"sacct": [LATE], "scontrol": [FORGOTTEN]}, [("RUNNING", "sacct")], None, 6),
        ({"sacct": [""], "scontrol": [FORGOTTEN]}, [], None, 3),
        (
            {"sacct": [NONE], "scontrol": [NO_ACCOUNTING]},
            [("COMPLETED", "scontrol")],
            "accounting storage is disabled",
            0,
        ),
        ({"sacct": [AWAY], "scontrol": [AWAY]}, [], "Unable to contact slurm controller", 0),
    ],
    ids=["at once", "late", "too late", "late and forgotten", "forgotten", "no accounting", "away"],
)
def test_queries_are_bounded_and_report_trouble(answers, states, trouble, seconds):
    slurm = Slurm(**answers)
    asking = slurm.asking()
    found = asking.all(["1"], SINCE).get("1", [])
    assert [(job.state, job.source) for job in found] == states
    assert (trouble or "") in (asking.trouble or "") and bool(trouble) == bool(asking.trouble)
    assert slurm.now == pytest.approx(seconds)


def test_forgotten_job_differs_from_silent_slurmctld():
    gone, away = Slurm(sacct=[NONE], scontrol=[FORGOTTEN]).asking(), Slurm(sacct=[NONE], scontrol=[AWAY]).asking()
    assert gone.all(["1"], SINCE) == {"1": []} and away.all(["1"], SINCE) == {}
    assert (gone.forgotten, away.forgotten) == ({"1"}, set())


def test_silent_slurmctld_is_queried_once_for_all_jobs():
    slurm = Slurm(sacct=[NONE], scontrol=[AWAY])
    assert slurm.asking().all(["1", "2", "3"], SINCE) == {}
    assert slurm.asked == ["sacct", "scontrol"]


def test_own_jobs_end_is_not_waited_for(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    slurm = Slurm(sacct=[LATE], scontrol=[SCONTROL[0].replace("COMPLETED", "RUNNING")])
    (found,) = slurm.asking().all(["1"], SINCE)["1"]
    assert found.state == "RUNNING" and slurm.now == 0


@pytest.mark.parametrize(
    ("jobs", "hours"),
    [
        ([], None),
        ([start(elapsed_s=1800.0)], 2.0),
        ([start("REQUEUED", elapsed_s=900.0), start(restarts=1, elapsed_s=2700.0)], 4.0),
        ([start(elapsed_s=1800.0), start(elapsed_s=60.0, gpus=None)], None),
        ([start(elapsed_s=None)], None),
        ([start(elapsed_s=60.0, gpus=0)], 0.0),
    ],
)
def test_allocated_gpu_hours_need_all_jobs(jobs, hours):
    assert accounting.allocated_hours(jobs) == hours


def daemon(name="server", started="00:00", ended: str | None = "10:00"):
    times = {"started_at": f"{DAY}{started}+00:00", "ended_at": f"{DAY}{ended}+00:00" if ended else None}
    return DaemonState(name=name, argv=("vllm",), log=f"{name}.log", **times)


def served(*replicas: float, first_token: float = 60.0) -> Startup:
    names = [f"r{number}" for number in range(len(replicas))]
    return Startup(
        deployment="x",
        seconds_to_first_token=first_token,
        servers=tuple(ServerPlace(replica=name, daemon=f"server-{name}", node="n", url="u") for name in names),
        replicas=tuple(
            ReplicaStartup(replica=name, node="n", seconds_to_first_token=seconds, log="l")
            for name, seconds in zip(names, replicas, strict=True)
        ),
    )


@pytest.mark.parametrize(
    ("startup", "daemons", "killed_at", "seconds"),
    [
        (served(), [daemon()], None, 540),
        (served(), [daemon("ray-node1", ended="01:00"), daemon()], None, 540),
        (
            served(50, 90, first_token=90),
            [daemon("server-r0", ended="09:00"), daemon("server-r1", started="00:10"), daemon("router")],
            None,
            440,
        ),
        (served(), [daemon(ended=None)], None, 0),
        (served(), [daemon(ended=None)], f"{DAY}05:00+00:00", 240),
        (served(), [daemon(ended="00:30")], None, 0),
        (served(), [], None, 0),
        (Startup(deployment="x"), [daemon()], None, 0),
    ],
    ids=[
        "one",
        "Ray is no server",
        "last ready to first end",
        "no end",
        "killed with its job",
        "died",
        "none",
        "unready",
    ],
)
def test_serving_is_from_the_last_first_token_to_the_first_end(startup, daemons, killed_at, seconds):
    assert accounting.serving_seconds(startup, daemons, killed_at) == seconds


@pytest.fixture
def deployment(tmp_path):
    """``make(owner, ...)`` adds an attempt to a deployment's folder; with ``served`` it served two ranks for an hour."""
    folder = tmp_path / "results" / "run" / "deployments" / "x"

    def make(owner: str, served: bool = True) -> Path:
        attempt = folder / "attempts" / f"{len(list(folder.glob('attempts/*'))) + 1:03d}"
        (attempt / "daemons").mkdir(parents=True)
        spec = SupervisorSpec(deployment="x", lifeline="1", machine_lock=None, tokens=(), scratch="/s", owner=owner, attempt_id=owner)
        (attempt / "supervisor-spec.json").write_text(spec.model_dump_json())
        if served:
            Startup(deployment="x", seconds_to_first_token=60.0).write(attempt / "startup.json")
            state = DaemonState(name="server", argv=(), log="l", started_at=f"{DAY}00:00+00:00", ended_at="2026-11-20T19:01:00+00:00")
            (attempt / "daemons" / "server.json").write_text(state.model_dump_json())
        return attempt

    make.folder = folder
    return make


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """``slurm(sacct, scontrol)`` puts tools on the PATH that print these texts. ``calls`` holds their command lines."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    def put(**tools: str | None) -> Path:
        for name, text in tools.items():
            (folder / f"{name}.txt").write_text(text or "")
            fails = "" if text is not None else 'echo "Unable to contact slurm controller" >&2; exit 1\n'
            (folder / name).write_text(f'#!/bin/sh\necho "$0 $*" >> {folder}/calls\n{fails}cat "$0.txt"\n')
            (folder / name).chmod(0o755)
        return folder / "calls"

    return put


def plan(**topology):
    return report_data.plan("x", topology=Topology(tensor_parallel=2, **topology))


def account(deployment, told, **more):
    return accounting.account(plan(), deployment.folder, deployment.folder / "jobs.jsonl", progress=told, patience_s=0.0, **more)


def test_without_a_scheduler_no_tool_is_called(deployment, slurm, told):
    calls = slurm(sacct="", scontrol="")
    deployment(f"process {os.getpid()}")
    assert account(deployment, told) == Accounting(deployment="x", scheduler="none", gpu_hours_used=2.0)
    assert account(deployment, told).jobs == () and told.words == [] and not calls.exists()


def test_a_deployment_that_was_never_started_has_no_job(deployment, told):
    assert account(deployment, told) == Accounting(deployment="x", scheduler="none")


def test_jobs_of_all_attempts_and_requeues_are_accounted(deployment, slurm, told):
    slurm(sacct=SACCT, scontrol=None)
    attempts = [deployment(owner) for owner in ("job 1", "job 4", "job 4, start 2")]
    record = account(deployment, told)
    assert (record.scheduler, record.source, record.trouble) == ("slurm", "sacct", None)
    assert [(job.job_id, job.state, job.restarts, job.attempts) for job in record.jobs] == [
        ("1", "COMPLETED", 0, (str(attempts[0]),)),
        ("4", "REQUEUED", 0, (str(attempts[1]),)),
        ("4", "COMPLETED", 1, (str(attempts[2]),)),
    ]
    assert [job.attempt_ids for job in record.jobs] == [("job 1",), ("job 4",), ("job 4, start 2",)]
    assert record.gpu_hours_allocated == round((7 * 8 + 7 + 15) / 3600, 6)
    assert record.gpu_hours_used == 6.0
    (words,) = told.words
    assert all(part in words for part in ("job 1 COMPLETED", "job 4 REQUEUED", "job 4 COMPLETED", "0.02", "6.00"))


def test_replay_keeps_the_record_without_queries(deployment, slurm, told):
    calls = slurm(sacct=SACCT, scontrol=None)
    deployment("job 1")
    first = account(deployment, told)
    asked = calls.read_text()
    slurm(sacct="", scontrol=None)
    assert account(deployment, told) == first
    assert calls.read_text() == asked


def test_only_new_or_unfinished_jobs_are_queried(deployment, slurm, told):
    calls = slurm(sacct=SACCT, scontrol=None)
    deployment("job 1")
    deployment("job 4")
    account(deployment, told)
    calls.unlink()
    deployment("job 4, start 2")
    deployment("job 3", served=False)
    record = account(deployment, told)
    assert [job.job_id for job in record.jobs] == ["1", "4", "4", "3"]
    assert "--jobs=4,3" in calls.read_text()


def test_silent_slurm_is_recorded_and_does_not_fail_the_run(deployment, slurm, told):
    slurm(sacct=None, scontrol=None)
    deployment("job 7")
    jobs_file = deployment.folder / "jobs.jsonl"
    jobs_file.write_text("".join(json.dumps(entry) + "\n" for entry in JOURNAL))
    record = account(deployment, told)
    assert (record.source, record.gpu_hours_allocated, record.gpu_hours_used) == ("journal", None, 2.0)
    assert (record.jobs[0].state, record.jobs[0].elapsed_s) == ("TIMEOUT", 80.0)
    assert record.trouble and record.trouble in told.words[0] and f"{record.gpu_hours_used:.2f}" in told.words[0]
    slurm(sacct=SACCT.replace("1|COMPLETED", "7|COMPLETED"), scontrol=None)
    assert account(deployment, told).source == "sacct", "queried again when Slurm responds"


def test_missing_slurm_tools_do_not_fail_the_run(deployment, tmp_path, monkeypatch, told):
    monkeypatch.setenv("PATH", str(tmp_path))
    deployment("job 7")
    record = account(deployment, told)
    assert (record.scheduler, record.source, record.jobs[0].state) == ("slurm", "none", "UNKNOWN")
    assert record.gpu_hours_allocated is None and "sacct" in record.trouble
