"""The check before a run refuses requests that sbatch refuses, and reports jobs that would wait."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from slurm_tools import AWAY, MakeTool

from snakemake_executor_plugin_slurm_guarded import commands, journal, preflight
from snakemake_executor_plugin_slurm_guarded.errors import TERMS, GuardedError
from snakemake_executor_plugin_slurm_guarded.request import Request


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "PAUSE_S", 0.02)


def calls(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    ("said", "keys"),
    [
        ("Batch job submission failed: Invalid account or account/partition combination specified", ("account", "partition")),
        ("invalid partition specified: nowhere", ("partition",)),
        ("Batch job submission failed: Invalid partition name specified", ("partition",)),
        ("Batch job submission failed: Invalid qos specification", ("qos",)),
        ("Batch job submission failed: Invalid feature specification", ("constraint",)),
        ("Batch job submission failed: Invalid generic resource (gres) specification", ("gres",)),
        ("Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)", ("time",)),
        ("Batch job submission failed: Node count specification invalid", ("nodes",)),
        ("Batch job submission failed: More processors requested than permitted", ("nodes",)),
        ("Batch job submission failed: Requested node configuration is not available", ("nodes", "gres", "constraint")),
        ("sbatch: unrecognized option '--nonsense'", ("extra",)),
        ("Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
         ("qos", "account", "time", "nodes")),
        ("something new", ()),
    ],
)  # fmt: skip
def test_refusal_names_the_keys_to_check(said: str, keys: tuple[str, ...]) -> None:
    assert preflight.keys_for(said) == keys


def test_keys_of_refusals_are_terms() -> None:
    assert {key for _, keys in preflight._ABOUT for key in keys.split()} <= set(TERMS)


@pytest.fixture
def tools(tool: MakeTool) -> None:
    for name in ("scancel", "scontrol", "srun", "sinfo"):
        tool(name, "")


def test_every_refused_request_is_named(tool: MakeTool, tools: None) -> None:
    tool("squeue", "")
    asked = tool("sbatch", 'case "$*" in *bad*) echo "sbatch: error: invalid partition specified: bad" >&2; exit 1;; esac')
    requests = [
        Request("a", partition="ok"),
        Request("b", partition="bad"),
        Request("c", partition="bad"),
        Request("d", partition="ok"),
    ]
    with pytest.raises(GuardedError) as caught:
        preflight.check(requests, lambda _: None)
    assert (
        re.search(r"^b, c: .*\bslurm_partition\b.*: bad$", caught.value.what, re.MULTILINE) and "a" not in caught.value.what.split(":")[0]
    )
    tested = [line for line in calls(asked) if line.startswith("--test-only --nodes=1")]
    assert len(tested) == 2 and len(calls(asked)) == 3, "equal requests are tested once, a refused one is submitted as an empty job"


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
def test_refused_requests_fail_and_others_queue(
    tool: MakeTool, tools: None, test_only: str, nodes: str, taken: bool, refused: bool
) -> None:
    tool("squeue", "")
    asked = tool("sbatch", f'case "$*" in *--begin=*) {"exit 0" if taken else ""};; esac; printf "{test_only}\\n" >&2; exit 1')
    looked, ended = tool("sinfo", f"printf '{nodes}\\n'"), tool("scancel", "")
    said: list[str] = []
    if refused:
        with pytest.raises(GuardedError) as caught:
            preflight.check([Request("a", partition="p")], said.append)
        passing = test_only in (DRAINING, FULL)
        assert said == [] and caught.value.reason == "slurm_refused"
        assert (TERMS["place"] in caught.value.message()) is not passing
    else:
        preflight.check([Request("a", partition="p")], said.append)
        assert len(said) == 1 and said[0].startswith("a: ")
        assert all(word in said[0] for word in nodes.split("\\n") if "idle" not in word or "*" in word)
    assert all("--partition=p" in line for line in calls(looked))
    submitted = [line for line in calls(asked) if "--begin=" in line]
    assert [re.search(r"--job-name=(\S+)", line)[1] for line in submitted] == [  # type: ignore[index]
        re.search(r"--name=(\S+)", line)[1]  # type: ignore[index]
        for line in (calls(ended) if submitted else [])
    ], "the empty job is cancelled by its name"


@pytest.mark.parametrize("sinfo", [AWAY, "echo something"])
@pytest.mark.parametrize("taken", [True, False])
def test_sbatch_decides_if_node_states_are_unknown(tool: MakeTool, tools: None, sinfo: str, taken: bool) -> None:
    tool("squeue", "")
    empty = "exit 0" if taken else ""
    tool("sbatch", f'case "$*" in *--begin=*) {empty};; esac; echo "{NO_NODE}" >&2; exit 1')
    tool("sinfo", sinfo)
    said: list[str] = []
    with nullcontext() if taken else pytest.raises(GuardedError):
        preflight.check([Request("a")], said.append)
    assert [words.startswith("a: ") for words in said] == [True] * taken


def test_uncancelled_empty_job_is_left_to_the_next_run(
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


def test_preflight_waits_for_the_controller(tool: MakeTool, tools: None) -> None:
    tool("squeue", f"[ $N -gt 2 ] || {{ {AWAY}; }}")
    tool("sbatch", "")
    said: list[str] = []
    preflight.check([Request("a")], said.append)
    assert len(said) == 2, "the outage and its end"


@pytest.mark.parametrize("missing", [True, False])
def test_preflight_without_slurm(tool: MakeTool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: bool) -> None:
    if missing:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        for name in preflight.TOOLS:
            tool(name, AWAY)
    with pytest.raises(GuardedError) as caught:
        preflight.check([Request("a")], lambda _: None, patience_s=0.1)
    assert caught.value.reason == ("slurm_missing" if missing else "slurm_unreachable") and caught.value.do


def test_malformed_extra_options_are_refused(tool: MakeTool, tools: None) -> None:
    tool("squeue", "")
    tool("sbatch", "")
    with pytest.raises(GuardedError) as caught:
        preflight.check([Request("a", extra="--x='")], lambda _: None)
    assert caught.value.reason == "slurm_refused" and "--x='" in caught.value.what and TERMS["extra"] in caught.value.do
