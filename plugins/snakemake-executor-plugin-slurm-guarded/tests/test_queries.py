"""Output of squeue, scontrol, sacct and sinfo is read exactly."""

from __future__ import annotations

from datetime import datetime

import pytest
from slurm_tools import MakeTool

from snakemake_executor_plugin_slurm_guarded import queries
from snakemake_executor_plugin_slurm_guarded.states import State

SQUEUE = """\
12|RUNNING|1:23|10:00|2026-11-20T18:00:00|2026-11-20T18:00:30|node[1-2]|None|run-1|deployment x #1|/disk/check out
13|PENDING|0:00|UNLIMITED|2026-11-20T18:00:00|N/A||Priority|run-1|(null)|/w
14_3|COMPLETED|1-02:03:04|2-00:00:00|2026-11-20T18:00:00|2026-11-20T18:00:00|node1|None|run-1|a|b|/w
15|CANCELLED|0:00|5:00|N/A|N/A||None|run-1||/w
slurm_load_jobs error: something
|RUNNING||||||||
16|||||||||
"""


def test_squeue() -> None:
    jobs = queries.parse_squeue(SQUEUE)
    assert [job.id for job in jobs] == ["12", "13", "14_3", "15"]
    running, pending, done, cancelled = jobs
    assert (running.state, running.elapsed_s, running.limit_min, running.queue_wait_s) == (State("RUNNING"), 83, 10, 30)
    assert (running.nodes, running.reason, running.comment) == ("node[1-2]", "", "deployment x #1")
    assert (running.name, running.workdir) == ("run-1", "/disk/check out")
    assert (pending.reason, pending.comment, pending.limit_min, pending.queue_wait_s) == ("Priority", "", None, None)
    assert (done.elapsed_s, done.limit_min, done.comment) == (93784, 2880, "a|b")
    assert cancelled.state.ended


@pytest.mark.parametrize("workdir", ["/a|b", "/a|/b", "/ends with a space ", "/"])
@pytest.mark.parametrize("comment", ["(null)", "", "x #1", "a|b"])
def test_squeue_keeps_the_workdir_whole(comment: str, workdir: str) -> None:
    (job,) = queries.parse_squeue(f"12|RUNNING|1:23|10:00|N/A|N/A|node1|None|run-1|{comment}|{workdir}\n")
    assert (job.comment, job.workdir) == ("" if comment == "(null)" else comment, workdir)


SCONTROL = """JobId=42 JobName=abc UserId=root(0) JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={exit} DerivedExitCode=0:0
   RunTime=00:00:12 TimeLimit=00:02:00 TimeMin=N/A SubmitTime=2026-11-20T18:00:00 EligibleTime=2026-11-20T18:00:00
   StartTime=2026-11-20T18:00:05 EndTime=2026-11-20T18:00:17 NodeList={nodes} BatchHost=node1
   Nodes=node1 CPU_IDs=0-15 Mem=64000 GRES=gpu:4(IDX:0-3)
   Comment=JobState=COMPLETED ExitCode=0:0
"""


@pytest.mark.parametrize("one_line", [True, False])
def test_scontrol(one_line: bool) -> None:
    text = SCONTROL.format(state="FAILED", reason="NonZeroExitCode", exit="3:9", nodes="node[1-2]")
    (job,) = queries.parse_scontrol(" ".join(text.split()) if one_line else text)
    assert (job.id, job.state, job.reason, job.nodes) == ("42", State("FAILED"), "NonZeroExitCode", "node[1-2]")
    assert (job.elapsed_s, job.queue_wait_s, job.limit_min, job.requeue, job.name) == (12, 5, 2, True, "abc")
    assert (job.exit, job.exit_code, job.signal) == ("3:9", 3, 9)


def test_scontrol_without_nodes_or_job() -> None:
    (job,) = queries.parse_scontrol(SCONTROL.format(state="PENDING", reason="None", exit="0:0", nodes="(null)"))
    assert (job.nodes, job.reason, job.exit_code, job.signal, job.queue_wait_s) == ("", "", 0, None, None)
    for text in ("", "No jobs in the system", "JobId=x JobState=RUNNING", "JobId=5 JobName=abc"):
        assert queries.parse_scontrol(text) == []


def sacct(job: str, state: str, exit_text: str, elapsed: str, start: str, nodes: str) -> str:
    given = {
        "JobID": job,
        "State": state,
        "ExitCode": exit_text,
        "ElapsedRaw": elapsed,
        "Start": start,
        "NodeList": nodes,
    }
    values = {"Submit": "2026-11-20T18:00:00"} | given
    return "|".join(values.get(field, "") for field in queries._SACCT.values())


def test_sacct(tool: MakeTool) -> None:
    lines = [
        sacct("42", "NODE_FAIL", "1:0", "60", "2026-11-20T18:00:05", "node2"),
        sacct("42", "CANCELLED by 1000", "0:15", "12", "2026-11-20T18:00:07", "node1"),
        sacct("43", "PENDING", "0:0", "0", "Unknown", "None assigned"),
        sacct("44+0", "COMPLETED", "0:0", "5", "2026-11-20T18:00:07", "node1"),
        sacct("44+1", "FAILED", "0:0", "5", "2026-11-20T18:00:07", "node2"),
        "Slurm accounting storage is disabled",
        "45",
    ]
    asked = tool("sacct", "".join(f"echo '{line}'\n" for line in lines))
    last = queries.sacct_job("42")
    assert last and (last.state, last.signal, last.elapsed_s, last.queue_wait_s) == (
        State("CANCELLED", 1000),
        15,
        12,
        7,
    )
    waits, several = queries.sacct_job("43"), queries.sacct_job("44")
    assert waits and (waits.nodes, waits.queue_wait_s) == ("", None)
    assert several and several.state == State("COMPLETED"), "the first component runs the script"
    assert queries.sacct_job("45") is None
    assert "--jobs=42" in asked.read_text().splitlines()[0] and "--duplicates" not in asked.read_text()


def test_sacct_start_time_is_utc() -> None:
    argv = queries.sacct_argv(["7", "9"], datetime.fromisoformat("2026-11-20T19:00:00+01:00"))
    assert argv[0] == "sacct" and "--duplicates" in argv and "--jobs=7,9" in argv
    assert "--starttime=2026-11-20T18:00:00" in argv


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:42", 42),
        ("1:02:03", 3723),
        ("2-00:00:00", 172800),
        ("10:00", 600),
        ("INVALID", None),
        ("UNLIMITED", None),
        ("", None),
        ("5", None),
    ],
)
def test_duration(text: str, seconds: float | None) -> None:
    assert queries.duration_s(text) == seconds


def test_job_unknown_to_the_controller_is_none(tool: MakeTool) -> None:
    tool("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert queries.scontrol_job("5") is None


@pytest.mark.parametrize(("partition", "minutes"), [("a", 60), ("b", 30), ("a,b", 30), ("c", None), ("a,c", 60), (None, 60)])
def test_shortest_limit_of_several_partitions_counts(monkeypatch: pytest.MonkeyPatch, partition: str | None, minutes: float | None) -> None:
    printed = "PartitionName=a Default=YES MaxTime=01:00:00\nPartitionName=b Default=NO MaxTime=00:30:00\n"
    monkeypatch.setattr(queries.commands, "run", lambda argv: printed)
    assert queries.partition_limit(partition) == minutes


@pytest.mark.parametrize(("partition", "minutes"), [("short", 2), (None, 60), ("long", 2880), ("free", None), ("none", None)])
def test_partition_limit(monkeypatch: pytest.MonkeyPatch, partition: str | None, minutes: float | None) -> None:
    text = "\n".join(
        f"PartitionName={name} AllowGroups=ALL Default={default} MaxTime={limit} State=UP"
        for name, default, limit in (
            ("batch", "YES", "01:00:00"),
            ("short", "NO", "00:02:00"),
            ("long", "NO", "2-00:00:00"),
            ("free", "NO", "UNLIMITED"),
        )
    )
    monkeypatch.setattr(queries.commands, "run", lambda argv: text)
    assert queries.partition_limit(partition) == minutes
