"""The guard and the check before a run, against scripts in place of Slurm's tools. Against a real Slurm: .tests/slurm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from builders.paths import LIBRARY
from builders.slurm_tools import AWAY, MakeTool, on_path
from servemark.config.cluster import Cluster, SmallJobs
from servemark.errors import ConfigError
from servemark.processes.identity import Identity
from servemark.slurm import guard, journal, preflight
from servemark.slurm.request import Request
from servemark.slurm.submit import Outage
from servemark.slurm.tracking import Bounds, Tracked, Tracker
from snakemake_executor_plugin_slurm_guarded.watching import Watch

ROW = "echo '5|{state}|0:00|5:00|N/A|N/A||None|run-1|x|/w'"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTool:
    return on_path(tmp_path / "bin", monkeypatch)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_POLL_S", 0.02)
    monkeypatch.setattr(guard, "_SECOND_LOOK_S", 0.02)
    monkeypatch.setattr(preflight, "_PAUSE_S", 0.02)


def calls(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_sweep_cancels_by_name_until_nothing_is_left(tool: MakeTool) -> None:
    tool("squeue", f"[ $N -gt 3 ] || {ROW.format(state='RUNNING')}")
    cancelled = tool("scancel", "")
    tool("scontrol", "echo 'KillWait                = 30 sec'")
    said: list[str] = []
    assert guard.sweep("run-1", said.append)
    assert calls(cancelled) == [f"--quiet --user={os.getuid()} --name=run-1"]
    assert said == ["cancelling 5 (RUNNING)", "nothing of the run is in the queue"]


def test_sweep_takes_a_second_look(tool: MakeTool) -> None:
    """A submission that was cut off may arrive after the first look."""
    tool("squeue", f"[ $N -ne 2 ] && [ $N -ne 3 ] || {ROW.format(state='PENDING')}")
    cancelled = tool("scancel", "")
    assert guard.sweep("run-1", lambda _: None)
    assert len(calls(cancelled)) == 1


def test_sweep_waits_for_the_controller_and_says_it_once(tool: MakeTool) -> None:
    tool("squeue", f"[ $N -gt 3 ] || {{ {AWAY}; }}")
    said: list[str] = []
    assert guard.sweep("run-1", said.append, sleep=lambda _: None)
    assert len(said) == 3 and "does not answer" in said[0] and said[1] == "Slurm answers again"


def test_sweep_gives_up_and_says_what_to_do(tool: MakeTool) -> None:
    tool("squeue", AWAY)
    said: list[str] = []
    assert not guard.sweep("run-1", said.append, patience_s=0.1, sleep=lambda _: None)
    assert "scancel --name run-1" in said[-1]


@pytest.mark.parametrize(
    ("text", "seconds"), [("KillWait                = 30 sec", 60), ("KillWait = 120 sec", 150), ("", 60)]
)
def test_how_long_cancelled_jobs_may_take(tool: MakeTool, text: str, seconds: float) -> None:
    tool("scontrol", f"echo 'Other = 7'; echo '{text}'")
    assert guard.gone_within_s() == seconds


def gone(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while Identity.of(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    return Identity.of(pid) is None


@pytest.mark.parametrize("clear", [True, False])
def test_the_guard_outlives_its_parent_and_acts_only_when_needed(tool: MakeTool, tmp_path: Path, clear: bool) -> None:
    asked = tool("squeue", "")
    jobs, log = tmp_path / "jobs.jsonl", tmp_path / "guard.log"
    journal.append(jobs, "run", run="run-1")
    code = (
        "import sys; from pathlib import Path; from servemark.processes import identity as processes; from servemark.slurm import guard;"
        "guard.launch('run-1', processes.myself(), log=Path(sys.argv[2]), jobs_file=Path(sys.argv[1]));"
        "import psutil; assert not psutil.Process().children(recursive=True); input()"
    )
    env = dict(os.environ) | {"PYTHONPATH": str(LIBRARY)}
    main = subprocess.Popen([sys.executable, "-c", code, str(jobs), str(log)], stdin=subprocess.PIPE, env=env)
    found = 0
    for _ in range(200):
        mine = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and str(jobs) in _command(entry) and "guard" in _command(entry)
        ]
        found = next(
            (
                pid
                for pid in mine
                if pid != main.pid and os.getsid(pid) != os.getsid(main.pid) and _parent(pid) != main.pid
            ),
            0,
        )
        if found:
            break
        time.sleep(0.05)
    assert found and Identity.of(found) is not None
    if clear:
        journal.append(jobs, "run_ended", run="run-1")
    main.kill()
    main.wait()
    assert gone(found, 12)
    assert bool(calls(asked)) == (not clear) and log.exists() == (not clear)
    assert journal.closed(jobs, "run-1")


def _command(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


GPUS = ("gpus_per_node", "gpu_type")
MINUTES = ("max_minutes", "minutes_to_start", "minutes_per_point", "small_jobs.minutes")


@pytest.mark.parametrize(
    ("said", "keys"),
    [
        ("Batch job submission failed: Invalid account or account/partition combination specified", ("account", "partition")),
        ("invalid partition specified: nowhere", ("partition",)),
        ("Batch job submission failed: Invalid partition name specified", ("partition",)),
        ("Batch job submission failed: Invalid qos specification", ("qos",)),
        ("Batch job submission failed: Invalid feature specification", ("constraint",)),
        ("Batch job submission failed: Invalid generic resource (gres) specification", GPUS),
        ("Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)", MINUTES),
        ("Batch job submission failed: Node count specification invalid", ("topology.nodes",)),
        ("Batch job submission failed: More processors requested than permitted", ("topology.nodes",)),
        ("Batch job submission failed: Requested node configuration is not available", ("topology.nodes", *GPUS, "constraint")),
        ("sbatch: unrecognized option '--nonsense'", ("extra",)),
        ("Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
         ("qos", "account", *MINUTES, "topology.nodes")),
        ("something new", ()),
    ],
)  # fmt: skip
def test_which_key_a_refusal_is_about(said: str, keys: tuple[str, ...]) -> None:
    assert preflight.keys_for(said) == keys


def test_a_refusal_names_keys_that_a_user_can_write() -> None:
    theirs = {*Cluster.model_fields, *(f"small_jobs.{name}" for name in SmallJobs.model_fields), "topology.nodes"}
    assert {key for _, keys in preflight._ABOUT for key in keys} <= theirs


@pytest.fixture
def tools(tool: MakeTool) -> None:
    for name in ("scancel", "scontrol", "srun", "sinfo"):
        tool(name, "")


def test_preflight_names_every_refused_deployment(tool: MakeTool, tools: None) -> None:
    tool("squeue", "")
    asked = tool(
        "sbatch", 'case "$*" in *bad*) echo "sbatch: error: invalid partition specified: bad" >&2; exit 1;; esac'
    )
    requests = [
        Request("a", partition="ok"),
        Request("b", partition="bad"),
        Request("c", partition="bad"),
        Request("d", partition="ok"),
    ]
    with pytest.raises(ConfigError) as caught:
        preflight.check(requests, lambda _: None)
    assert caught.value.exit_code == 2
    assert "b, c: Slurm refuses the request (key partition): invalid partition specified: bad" in caught.value.what
    tested = [line for line in calls(asked) if line.startswith("--test-only --nodes=1")]
    assert len(tested) == 2 and len(calls(asked)) == 3, (
        "equal requests are tested once, a refused one is submitted empty"
    )


NO_NODE = "allocation failure: Requested node configuration is not available"
DRAINING = "allocation failure: Required partition not available (inactive or drain)"
NOT_BEGUN = "allocation failure: Invalid time specified"
FULL = "sbatch: error: QOSMaxSubmitJobPerUserLimit\\nallocation failure: Job violates accounting/QOS policy (job submit limit)"


# What a real Slurm 22.05.8 printed for --test-only, what sinfo printed then, and whether sbatch took the job.
@pytest.mark.parametrize(
    ("test_only", "nodes", "taken", "refused"),
    [
        (NO_NODE, "2 drained", True, False),
        (NO_NODE, "1 idle\\n1 drained", True, False),
        (NO_NODE, "2 down*", True, False),
        (NO_NODE, "2 unknown", True, False),
        (NO_NODE, "2 idle*", True, False),
        (NO_NODE, "2 maint", True, False),
        (NOT_BEGUN, "2 idle", True, False),
        (NO_NODE, "2 unknown", False, True),
        (NO_NODE, "1 idle\\n1 mixed", True, True),
        (NO_NODE, "", True, True),
        (DRAINING, "2 idle", False, True),
        (FULL, "2 idle", False, True),
    ],
)
def test_preflight_refuses_what_sbatch_refuses_and_queues_the_rest(
    tool: MakeTool, tools: None, test_only: str, nodes: str, taken: bool, refused: bool
) -> None:
    tool("squeue", "")
    asked = tool(
        "sbatch", f'case "$*" in *--begin=*) {"exit 0" if taken else ""};; esac; printf "{test_only}\\n" >&2; exit 1'
    )
    looked, ended = tool("sinfo", f"printf '{nodes}\\n'"), tool("scancel", "")
    said: list[str] = []
    if refused:
        with pytest.raises(ConfigError) as caught:
            preflight.check([Request("a", partition="p")], said.append)
        passing = test_only in (DRAINING, FULL)
        assert said == [] and caught.value.reason == "slurm_refused" and caught.value.exit_code == 2
        assert ("Fix these keys" in caught.value.message()) is not passing
    else:
        preflight.check([Request("a", partition="p")], said.append)
        assert len(said) == 1 and said[0].startswith("a: ") and "wait in the queue" in said[0]
        assert all(word in said[0] for word in nodes.split("\\n") if "idle" not in word or "*" in word)
    assert all("--partition=p" in line for line in calls(looked))
    submitted = [line for line in calls(asked) if "--begin=" in line]
    assert [re.search(r"--job-name=(\S+)", line)[1] for line in submitted] == [  # type: ignore[index]
        re.search(r"--name=(\S+)", line)[1]  # type: ignore[index]
        for line in (calls(ended) if submitted else [])
    ], "an empty job that decides is cancelled by its name"


@pytest.mark.parametrize("sinfo", [AWAY, "echo something"])
@pytest.mark.parametrize("taken", [True, False])
def test_preflight_lets_sbatch_decide_when_the_states_of_the_nodes_are_unknown(
    tool: MakeTool, tools: None, sinfo: str, taken: bool
) -> None:
    tool("squeue", "")
    empty = "exit 0" if taken else ""
    tool("sbatch", f'case "$*" in *--begin=*) {empty};; esac; echo "{NO_NODE}" >&2; exit 1')
    tool("sinfo", sinfo)
    said: list[str] = []
    with nullcontext() if taken else pytest.raises(ConfigError):
        preflight.check([Request("a")], said.append)
    assert ["wait in the queue" in words for words in said] == [True] * taken


def test_preflight_job_that_was_not_cancelled_is_left_to_the_next_run(
    tool: MakeTool, tools: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(journal.VARIABLE, str(tmp_path / "jobs.jsonl"))
    tool("squeue", "")
    tool("sbatch", f'case "$*" in *--begin=*) exit 0;; esac; echo "{NO_NODE}" >&2; exit 1')
    tool("sinfo", "echo 2 drained")
    preflight.check([Request("a")], lambda _: None)
    assert journal.open_runs(tmp_path / "jobs.jsonl") == {}
    tool("scancel", AWAY)
    preflight.check([Request("a")], lambda _: None)
    assert len(journal.open_runs(tmp_path / "jobs.jsonl")) == 1


@pytest.mark.parametrize(
    ("partition", "minutes"), [("a", 60), ("b", 30), ("a,b", 30), ("c", None), ("a,c", 60), (None, 60)]
)
def test_of_several_partitions_the_shortest_limit_counts(
    monkeypatch: pytest.MonkeyPatch, partition: str | None, minutes: float | None
) -> None:
    told = "PartitionName=a Default=YES MaxTime=01:00:00\nPartitionName=b Default=NO MaxTime=00:30:00\n"
    monkeypatch.setattr(preflight.commands, "run", lambda argv: told)
    assert preflight.partition_limit(partition) == minutes


def test_preflight_waits_for_the_controller(tool: MakeTool, tools: None) -> None:
    tool("squeue", f"[ $N -gt 2 ] || {{ {AWAY}; }}")
    tool("sbatch", "")
    said: list[str] = []
    preflight.check([Request("a")], said.append)
    assert len(said) == 1 and "does not answer" in said[0]


@pytest.mark.parametrize("missing", [True, False])
def test_preflight_without_slurm(
    tool: MakeTool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    if missing:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        for name in preflight.TOOLS:
            tool(name, AWAY)
    with pytest.raises(ConfigError) as caught:
        preflight.check([Request("a")], lambda _: None, patience_s=0.1)
    assert caught.value.reason == ("slurm_missing" if missing else "slurm_unreachable") and caught.value.do


def test_preflight_says_what_is_wrong_with_extra_options(tool: MakeTool, tools: None) -> None:
    tool("squeue", "")
    tool("sbatch", "")
    with pytest.raises(ConfigError, match="no command line"):
        preflight.check([Request("a", extra="--x='")], lambda _: None)


@pytest.mark.parametrize(
    ("partition", "minutes"), [("short", 2), (None, 60), ("long", 2880), ("free", None), ("none", None)]
)
def test_partition_limit(partition: str | None, minutes: float | None) -> None:
    text = "\n".join(
        f"PartitionName={name} AllowGroups=ALL Default={default} MaxTime={limit} State=UP"
        for name, default, limit in (
            ("batch", "YES", "01:00:00"),
            ("short", "NO", "00:02:00"),
            ("long", "NO", "2-00:00:00"),
            ("free", "NO", "UNLIMITED"),
        )
    )
    assert preflight.limit_of(text, partition) == minutes


def test_watch_says_why_a_job_waits_and_notes_it(tool: MakeTool, tmp_path: Path) -> None:
    said: list[str] = []
    path, tracker = tmp_path / "jobs.jsonl", Tracker(bounds=Bounds(waits_s=0))
    tracker.add(Tracked("7", "deployment x", "x #1", "", submitted=time.monotonic()))
    watch = Watch("run", path, tracker, threading.RLock(), Outage(said.append), threading.Event(), said.append)
    for reason in ("None", "Priority", "Priority", "JobHeldUser"):
        tool("squeue", f"echo '7|PENDING|0:00|5:00|N/A|N/A||{reason}|run|x #1|/work'")
        watch.look()
    assert [words.startswith("deployment x (job 7)") for words in said] == [True, True]
    assert "Priority" in said[0] and "scontrol release 7" in said[1]
    assert [entry["reason"] for entry in journal.read(path)] == ["", "Priority", "JobHeldUser"]
