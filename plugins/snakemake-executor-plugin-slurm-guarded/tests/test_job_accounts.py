"""Accounts of jobs are read from recorded output of Slurm and from the journal, and merged."""

from __future__ import annotations

import pytest
from recorded_slurm import DAY, JOURNAL, NO_ACCOUNTING, SACCT, SCONTROL, start

from snakemake_executor_plugin_slurm_guarded import job_accounts
from snakemake_executor_plugin_slurm_guarded.records import JobAccount


def one(job: str, start: int = -1) -> JobAccount:
    return job_accounts.parse_sacct(SACCT)[job][start]


def controller(job: int) -> JobAccount:
    found = job_accounts.parse_scontrol(SCONTROL[job - 1])
    assert found is not None
    return found


def test_job_on_two_nodes_is_read_whole():
    assert one("1") == JobAccount(
        job_id="1",
        source="sacct",
        state="COMPLETED",
        exit_code="0:0",
        partition="batch",
        account="research",
        qos="normal",
        nodes=("node1", "node2"),
        gpus=8,
        cpus=32,
        submitted_at=f"{DAY}37:55+00:00",
        started_at=f"{DAY}37:55+00:00",
        ended_at=f"{DAY}38:02+00:00",
        queue_wait_s=0.0,
        elapsed_s=7.0,
        limit_s=300.0,
    )


@pytest.mark.parametrize(
    ("job", "start", "state", "exit_code", "gpus", "wait", "elapsed", "limit", "restarts"),
    [
        ("2", 0, "FAILED", "3:0", 2, 7, 0, 300, 0),
        ("3", 0, "TIMEOUT", "0:0", 1, 7, 88, 60, 0),
        ("4", 0, "REQUEUED", "0:0", 1, 7, 7, 300, 0),
        ("4", 1, "COMPLETED", "0:0", 1, 16, 15, 300, 1),
        ("5", 0, "CANCELLED", "0:0", 0, None, 0, 300, 0),
        ("6", 0, "CANCELLED", "0:0", 0, 7, 9, 300, 0),
    ],
)
def test_sacct_starts(job, start, state, exit_code, gpus, wait, elapsed, limit, restarts):
    found = one(job, start)
    assert (found.state, found.exit_code, found.gpus) == (state, exit_code, gpus)
    assert (found.queue_wait_s, found.elapsed_s, found.limit_s, found.restarts) == (wait, elapsed, limit, restarts)


@pytest.mark.parametrize("job", [1, 2, 3, 4, 6])
def test_controller_and_accounting_agree_on_finished_job(job):
    differ = {"source", "exit_code", "reason"}
    assert controller(job).model_dump(exclude=differ) == one(str(job)).model_dump(exclude=differ)


def test_job_that_never_ran_has_no_start_and_no_gpus():
    found = controller(5)
    assert (found.state, found.started_at, found.nodes, found.gpus, found.cpus) == ("CANCELLED", None, (), 0, 0)
    assert (found.ended_at, found.queue_wait_s) == (f"{DAY}38:09+00:00", None)


def test_gpus_missing_in_accounting_come_from_scontrol():
    found = job_accounts.parse_scontrol(NO_ACCOUNTING)
    assert found is not None and (found.gpus, found.nodes, found.account, found.qos) == (
        8,
        ("node1", "node2"),
        None,
        None,
    )


def test_expected_end_of_running_job_is_ignored():
    running = SCONTROL[0].replace("JobState=COMPLETED", "JobState=RUNNING")
    found = job_accounts.parse_scontrol(running)
    assert found is not None and (found.ended_at, job_accounts.final([found])) == (None, False)


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("billing=32,cpu=32,gres/gpu=8,mem=125G,node=2", 8),
        ("cpu=72,gres/gpu:gh200=4,gres/gpu=4,node=1", 4),
        ("cpu=72,gres/gpu:h200=4,gres/gpu:l4=2", 6),
        ("cpu=4,gres/shard=2,node=1", 0),
        ("", 0),
    ],
)
def test_gpus_are_counted_once(tres, gpus):
    (line,) = (line for line in SACCT.splitlines() if line.startswith("1|"))
    text = line.replace("billing=32,cpu=32,gres/gpu=8,mem=125G,node=2", tres)
    assert job_accounts.parse_sacct(text)["1"][0].gpus == gpus


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ("node1",)),
        ("node[1-2],login", ("node1", "node2", "login")),
        ("nid[000998-001001,002000]", ("nid000998", "nid000999", "nid001000", "nid001001", "nid002000")),
        ("r[1-2]n[08-09]-ib", ("r1n08-ib", "r1n09-ib", "r2n08-ib", "r2n09-ib")),
        ("None assigned", ()),
        ("(null)", ()),
    ],
)
def test_node_lists_are_expanded(text, names):
    assert job_accounts.node_names(text) == names


def test_other_lines_are_skipped():
    assert job_accounts.parse_sacct("sacct: error\n1|RUNNING\n\n") == {}
    assert job_accounts.parse_scontrol("slurm_load_jobs error") is None


SUBMITTED = {"event": "submitted", "time": 100.0, "run": "r", "job": "7"}
WAITS = {"event": "state", "time": 101.0, "run": "r", "job": "7", "state": "PENDING", "reason": "Priority"}
RUNS = {"event": "state", "time": 110.0, "run": "r", "job": "7", "state": "RUNNING", "reason": "", "nodes": "node1"}
ENDED = {"event": "ended", "time": 200.0, "run": "r", "job": "7", "state": "COMPLETED", "reason": ""}
CANCELLED = {"event": "cancelled", "time": 150.0, "run": "r", "jobs": ["7", "8"], "taken": True}
ON_ITS_WAY = CANCELLED | {"taken": False}
RUN_ENDED = {"event": "run_ended", "time": 160.0, "run": "r"}


@pytest.mark.parametrize(
    ("entries", "state", "ended"),
    [
        ([SUBMITTED, RUNS], "RUNNING", None),
        ([SUBMITTED, RUNS, CANCELLED], "CANCELLED", 150),
        ([SUBMITTED, WAITS, CANCELLED], "CANCELLED", 150),
        ([SUBMITTED, CANCELLED], "CANCELLED", 150),
        ([SUBMITTED, RUNS, ON_ITS_WAY], "RUNNING", None),
        ([SUBMITTED, RUNS, ON_ITS_WAY, RUN_ENDED], "CANCELLED", 150),
        ([SUBMITTED, RUNS, RUN_ENDED], "UNKNOWN", None),
        ([SUBMITTED, RUNS, CANCELLED | {"jobs": ["8"]}], "RUNNING", None),
        ([SUBMITTED, RUNS, RUN_ENDED | {"run": "other"}], "RUNNING", None),
        ([SUBMITTED, WAITS, RUNS, ENDED, CANCELLED], "COMPLETED", 200),
    ],
)
def test_cancelled_job_in_journal(entries, state, ended):
    found = job_accounts.from_journal(entries, "7")
    assert (found.state, found.ended_at) == (state, job_accounts._stamp(ended))
    assert found.reason is None, "a reason to wait does not explain an end"


def test_forgotten_job_does_not_stay_running():
    running = job_accounts.from_journal([SUBMITTED, RUNS], "7")
    cancelled = job_accounts.from_journal([SUBMITTED, RUNS, CANCELLED], "7")
    (still,) = job_accounts.when_forgotten([running], running, forgotten=False)
    (unknown,) = job_accounts.when_forgotten([running], running, forgotten=True)
    (ended,) = job_accounts.when_forgotten([running], cancelled, forgotten=False)
    assert (still.state, unknown.state, ended.state) == ("RUNNING", "UNKNOWN", "CANCELLED")
    assert ended.ended_at and ended.nodes == ("node1",)
    assert job_accounts.when_forgotten([cancelled], running, forgotten=True) == [cancelled]
    assert job_accounts.when_forgotten([], running, forgotten=True) == []


def test_ended_job_in_journal():
    found = job_accounts.from_journal(JOURNAL, "7")
    assert (found.source, found.state, found.exit_code, found.reason) == ("journal", "TIMEOUT", "0:15", "TimeLimit")
    assert (found.nodes, found.queue_wait_s, found.elapsed_s, found.gpus) == (("node1", "node2"), 5.0, 80.0, None)
    assert found.started_at == "1970-01-01T00:16:45+00:00"
    unknown = job_accounts.from_journal(JOURNAL, "99")
    assert (unknown.source, unknown.state, unknown.ended_at) == ("none", "UNKNOWN", None)


@pytest.mark.parametrize(
    ("accounted", "controller", "expected"),
    [
        ([], None, []),
        ([start()], None, [start()]),
        ([start()], start(source="scontrol"), [start()]),
        ([], start(source="scontrol"), [start(source="scontrol")]),
        ([start("RUNNING")], start(source="scontrol"), [start(source="scontrol")]),
        (
            [start("REQUEUED")],
            start(restarts=1, source="scontrol"),
            [start("REQUEUED"), start(restarts=1, source="scontrol")],
        ),
        ([start(gpus=0)], start(gpus=8, source="scontrol"), [start(gpus=8)]),
    ],
    ids=["no source", "accounting", "both", "controller", "end not arrived", "start not arrived", "gpus not accounted"],
)
def test_controller_completes_accounting(accounted, controller, expected):
    assert job_accounts.merge(accounted, controller) == expected


def test_journal_entry_without_time_is_no_error():
    assert job_accounts.from_journal([SUBMITTED, {"event": "state", "job": "7", "run": "r"}], "7").job_id == "7"
