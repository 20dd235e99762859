"""What Slurm's tools print is read exactly, and a tool that fails, hangs or talks nonsense is said to be what it is."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from builders.slurm_tools import AWAY, MakeTool, on_path
from servemark.slurm import commands, journal, listings, submit
from servemark.slurm.commands import CommandFailed, Trouble
from servemark.slurm.request import Request
from servemark.slurm.states import State


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTool:
    return on_path(tmp_path / "bin", monkeypatch)


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
    jobs = listings.parse_squeue(SQUEUE)
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
def test_squeue_keeps_the_work_folder_whole(comment: str, workdir: str) -> None:
    (job,) = listings.parse_squeue(f"12|RUNNING|1:23|10:00|N/A|N/A|node1|None|run-1|{comment}|{workdir}\n")
    assert (job.comment, job.workdir) == ("" if comment == "(null)" else comment, workdir)


SCONTROL = """JobId=42 JobName=abc UserId=root(0) JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={exit} DerivedExitCode=0:0
   RunTime=00:00:12 TimeLimit=00:02:00 TimeMin=N/A SubmitTime=2026-11-20T18:00:00 EligibleTime=2026-11-20T18:00:00
   StartTime=2026-11-20T18:00:05 EndTime=2026-11-20T18:00:17 NodeList={nodes} BatchHost=node1
   Nodes=node1 CPU_IDs=0-15 Mem=64000 GRES=gpu:4(IDX:0-3)
   Comment=JobState=COMPLETED ExitCode=0:0
"""


@pytest.mark.parametrize("one_line", [True, False])
def test_scontrol_job(one_line: bool) -> None:
    text = SCONTROL.format(state="FAILED", reason="NonZeroExitCode", exit="3:9", nodes="node[1-2]")
    job = listings.parse_scontrol_job(" ".join(text.split()) if one_line else text)
    assert job == listings.Job(
        "42",
        State("FAILED"),
        "NonZeroExitCode",
        "node[1-2]",
        elapsed_s=12,
        queue_wait_s=5,
        limit_min=2,
        exit_code=3,
        signal=9,
        requeue=True,
        name="abc",
    )


def test_scontrol_job_without_nodes_or_at_all() -> None:
    job = listings.parse_scontrol_job(SCONTROL.format(state="PENDING", reason="None", exit="0:0", nodes="(null)"))
    assert job and (job.nodes, job.reason, job.exit_code, job.signal) == ("", "", 0, None)
    for text in ("", "No jobs in the system", "JobId=x JobState=RUNNING", "JobId=5 JobName=abc"):
        assert listings.parse_scontrol_job(text) is None


def test_sacct() -> None:
    text = (
        "42|NODE_FAIL|1:0|60|2026-11-20T18:00:00|2026-11-20T18:00:05|node2\n"
        "42|CANCELLED by 1000|0:15|12|2026-11-20T18:00:00|2026-11-20T18:00:07|node1\n"
        "43|PENDING|0:0|0|2026-11-20T18:00:00|Unknown|None assigned\nSlurm accounting storage is disabled\n44\n"
    )
    jobs = listings.parse_sacct(text)
    assert sorted(jobs) == ["42", "43"]
    assert (jobs["42"].state, jobs["42"].signal, jobs["42"].elapsed_s, jobs["42"].queue_wait_s) == (
        State("CANCELLED", 1000),
        15,
        12,
        7,
    )
    assert (jobs["43"].nodes, jobs["43"].queue_wait_s) == ("", None)


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
    assert listings.duration_s(text) == seconds


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
def test_no_answer_is_told_from_a_refusal(said: str, trouble: Trouble) -> None:
    assert commands.trouble_of(said) is trouble


@pytest.mark.parametrize(
    ("body", "trouble", "said"),
    [
        ("sleep 30", Trouble.UNREACHABLE, "no answer within 1 s"),
        ("echo Connection refused >&2; exit 1", Trouble.UNREACHABLE, "Connection refused"),
        ("echo no such thing; exit 1", Trouble.REFUSED, "no such thing"),
        ("exit 4", Trouble.REFUSED, "exit code 4"),
        ("printf '\\377\\376 nonsense'", Trouble.UNREACHABLE, "unexpected"),
    ],
)
def test_a_question_that_fails(tool: MakeTool, body: str, trouble: Trouble, said: str) -> None:
    tool("squeue", body)
    begin = time.monotonic()
    with pytest.raises(CommandFailed) as caught:
        listings.squeue(["name"], finished=True, timeout_s=1)
    assert caught.value.trouble is trouble and said in caught.value.said
    assert time.monotonic() - begin < 3


def test_a_question_is_not_changed_by_the_users_variables(tool: MakeTool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    tool("squeue", 'echo "[$SQUEUE_STATES$SLURM_TIME_FORMAT]" >&2; exit 1')
    with pytest.raises(CommandFailed, match=r"\[\]"):
        listings.squeue(["name"], finished=False)


def test_nothing_listed_is_an_answer(tool: MakeTool) -> None:
    tool("squeue", "")
    assert listings.squeue(["name"], finished=True) == []


def test_a_missing_tool() -> None:
    with pytest.raises(CommandFailed) as caught:
        commands.run(["no-such-slurm-tool"])
    assert caught.value.trouble is Trouble.MISSING


def test_a_question_ends_when_it_is_stopped(tool: MakeTool) -> None:
    tool("squeue", "sleep 30")
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    begin = time.monotonic()
    with pytest.raises(CommandFailed) as caught:
        listings.squeue(["name"], finished=True, stop=stop)
    assert caught.value.trouble is Trouble.STOPPED and time.monotonic() - begin < 2


def test_a_job_that_the_controller_forgot(tool: MakeTool) -> None:
    tool("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert listings.scontrol_job("5") is None


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
    assert len(said) == 2 and "does not answer" in said[0] and "answers again" in said[1]
    assert "--comment=x #1" in calls.read_text()


def test_submission_that_arrived_without_an_answer_is_not_repeated(tool: MakeTool, quick: None) -> None:
    calls = tool("sbatch", "echo Socket timed out >&2; exit 1")
    tool("squeue", f"[ $N -gt 1 ] || {{ {AWAY}; }}; echo '88|PENDING|0:00|5:00|N/A|N/A||Priority|run-1|x #1|/w'")
    outcome, _ = submitted()
    assert outcome == "88" and len(calls.read_text().splitlines()) == 1


def test_refused_submission_is_not_repeated(tool: MakeTool, quick: None) -> None:
    calls = tool("sbatch", "echo 'invalid partition specified: x' >&2; exit 1")
    outcome, said = submitted()
    assert isinstance(outcome, CommandFailed) and outcome.trouble is Trouble.REFUSED and said == []
    assert len(calls.read_text().splitlines()) == 1


def test_submission_gives_up_in_the_end(tool: MakeTool, quick: None) -> None:
    tool("sbatch", AWAY)
    tool("squeue", AWAY)
    begin = time.monotonic()
    outcome, said = submitted(patience_s=0.5)
    assert isinstance(outcome, CommandFailed) and outcome.trouble is Trouble.UNREACHABLE and len(said) == 1
    assert time.monotonic() - begin < 5


def test_submission_is_stopped_while_it_waits(tool: MakeTool) -> None:
    tool("sbatch", AWAY)
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    begin = time.monotonic()
    outcome, _ = submitted(stop=stop)
    assert isinstance(outcome, CommandFailed) and outcome.trouble is Trouble.STOPPED and time.monotonic() - begin < 2


@pytest.mark.parametrize(
    ("request_", "flags"),
    [
        (Request(), ["--nodes=1", "--ntasks-per-node=1"]),
        (Request(cpus=4, memory_mb=512), ["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=4", "--mem=512M"]),
        (
            Request("x", "acc", "batch", "normal", "a100&nvme", 2, "gpu:4", 90, True, "--nice=5 -X 'two words'", cpus=4, memory_mb=5),
            ["--nodes=2", "--ntasks-per-node=1", "--account=acc", "--partition=batch", "--qos=normal", "--constraint=a100&nvme",
             "--gres=gpu:4", "--time=90", "--exclusive", "--mem=0", "--nice=5", "-X", "two words"],
        ),
        (Request(account="a; rm -rf $HOME"), ["--nodes=1", "--ntasks-per-node=1", "--account=a; rm -rf $HOME"]),
    ],
)  # fmt: skip
def test_flags(request_: Request, flags: list[str]) -> None:
    assert request_.flags() == flags


@pytest.mark.parametrize(
    "request_",
    [
        Request("x", cpus=1),
        Request("x", "acc", "batch", "normal", "gpu", 2, "gpu:4", 90, True, "--nice=5"),
        Request("x", partition="short", nodes=1, minutes=5, cpus=8, memory_mb=4000),
    ],
)
def test_resources_and_back(request_: Request) -> None:
    assert Request.of(request_.resources(), name="x") == request_


def test_an_open_quote_is_said() -> None:
    with pytest.raises(ValueError, match="quotation"):
        Request(extra="--x='").flags()


def test_journal(tmp_path: Path) -> None:
    path = tmp_path / "slurm" / "jobs.jsonl"
    assert list(journal.read(path)) == [] and journal.open_runs(path) == {} and not journal.closed(path, "a")
    for name in "abc":
        journal.append(path, "run", run=name)
    journal.append(path, "run_ended", run="b")
    with open(path, "a") as stream:
        stream.write('{"event": "run", "run": "d"')  # cut off by a full disk
    assert list(journal.open_runs(path)) == ["a", "c"] and journal.closed(path, "b") and not journal.closed(path, "a")
    journal.append(None, "run", run="e")
    journal.append(Path("/proc/no/such"), "run", run="f")
