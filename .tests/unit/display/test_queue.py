"""Jobs that wait in Slurm's queue: their position, from the journal and squeue."""

from __future__ import annotations

import json

import pytest

from servemark.display.queue import EVERY_S, Queue
from servemark.display.tail import Tail
from snakemake_executor_plugin_slurm_guarded import queries
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, Trouble
from snakemake_executor_plugin_slurm_guarded.queries import Pending


class Cluster:
    """A journal, and what Slurm lists."""

    def __init__(self, folder):
        self.file = folder / "jobs.jsonl"
        self.pending, self.calls = [], 0
        self.queue = Queue(Tail(self.file), self.ask)

    def ask(self):
        self.calls += 1
        if isinstance(self.pending, Exception):
            raise self.pending
        return self.pending

    def note(self, event, job, deployment=None, time=100.0):
        wildcards = {"wildcards": {"deployment": deployment}} if deployment else {}
        with self.file.open("a") as stream:
            stream.write(json.dumps({"event": event, "time": time, "job": job, **wildcards}) + "\n")

    def look(self, now):
        return self.queue.ended(), self.queue.lines(now)


@pytest.fixture
def cluster(tmp_path) -> Cluster:
    return Cluster(tmp_path)


def test_waiting_job_has_position_and_expected_start(cluster):
    cluster.note("submitted", "7", "plain")
    start = "2026-11-23T21:40:00"
    others = [Pending("5", "gpu", 90, "", ""), Pending("6", "gpu", 10, "", ""), Pending("8", "cpu", 99, "", "")]
    cluster.pending = [*others, Pending("7", "gpu", 50, start, "Priority")]
    _, (line,) = cluster.look(130.0)
    assert (line["subject"], line["stage"], line["waiting"]) == ("plain", "queue", 30.0)
    assert all(part in line["text"] for part in ("job 7", "number 2", "partition gpu", "2026-11-23 21:40:00", "Priority"))


def test_slurm_is_queried_once_a_minute_and_only_while_a_job_waits(cluster):
    assert cluster.look(0.0) == ([], []) and cluster.calls == 0
    cluster.note("submitted", "7", "plain")
    cluster.pending = [Pending("7", "gpu", 1, "", "")]
    for now in (100.0, 101.0, 100.0 + EVERY_S - 1):
        cluster.look(now)
    assert cluster.calls == 1
    cluster.look(100.0 + EVERY_S)
    assert cluster.calls == 2


def test_job_that_runs_is_not_listed_and_its_end_is_reported(cluster):
    cluster.note("submitted", "7", "plain")
    assert cluster.look(100.0) == ([], [])
    cluster.note("ended", "7")
    assert cluster.look(200.0) == (["plain"], [])
    assert cluster.calls == 1, "nothing waits any more"


def test_job_without_a_deployment_is_not_listed(cluster):
    cluster.note("submitted", "7")
    assert cluster.look(100.0) == ([], []) and cluster.calls == 0


def test_silent_slurm_gives_no_line_and_is_queried_again(cluster):
    cluster.note("submitted", "7", "plain")
    cluster.pending = CommandFailed(Trouble.UNREACHABLE, ["squeue"], "away")
    assert cluster.look(100.0) == ([], [])
    cluster.pending = [Pending("7", "gpu", 1, "", "")]
    assert len(cluster.look(100.0 + EVERY_S)[1]) == 1


def test_jobs_of_earlier_runs_are_not_read(tmp_path):
    cluster = Cluster(tmp_path)
    cluster.note("submitted", "7", "plain")
    cluster.queue = Queue(Tail(cluster.file), cluster.ask)
    assert cluster.look(100.0) == ([], [])


def test_pending_jobs_are_read_from_squeue(monkeypatch):
    text = "Welcome to the cluster\n7|gpu|4294901758|2026-11-23T21:40:00|Priority\n8_[1-4]|gpu,cpu|12|N/A|(null)\n"
    monkeypatch.setattr(queries.commands, "run", lambda argv, timeout_s: text)
    assert queries.pending() == [
        Pending("7", "gpu", 4294901758, "2026-11-23T21:40:00", "Priority"),
        Pending("8_[1-4]", "gpu,cpu", 12, "", ""),
    ]
