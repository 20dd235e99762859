"""The support ticket: everything about a run in one bounded text, and no secret in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.paths import FIXTURES
from servemark.cli import main as cli
from servemark.cli import ticket
from servemark.cli.ticket import page
from servemark.deployment import attempts
from servemark.errors import ServemarkError
from servemark.records import DaemonState, Failure, write_atomically
from servemark.security.redaction import Quoting, Redactor
from servemark.supervisor import KeeperSpec, KeeperState
from snakemake_executor_plugin_slurm_guarded import commands, journal
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, Trouble

LOGS = FIXTURES / "logs"
TOKEN = "hf_" + "abcdefghijklmnopqrstuvwx1234"
PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\nmore\n-----END OPENSSH PRIVATE KEY-----"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    """A commit, and a Slurm that knows one job."""

    def run(argv, **_) -> str:
        if argv[0] == "sinfo" and "--version" in argv:
            return "slurm 22.05.8\n"
        if argv[0] == "sacct":
            return "JobID|State|ExitCode\n77|NODE_FAIL|1:0\n"
        raise CommandFailed(Trouble.UNREACHABLE, argv, "Unable to contact slurm controller")

    monkeypatch.setattr(page.git_state, "words", lambda states: "0123456789ab")
    monkeypatch.setattr(commands, "run", run)


class Run:
    """The results of a run, ``demo``."""

    def __init__(self, root: Path):
        self.folder = root / "results" / "demo"
        self.config = {"run": "demo", "deployments": {"plain": {"model": "tiny", "variables": {"NCCL_DEBUG": "INFO"}}}}
        self.write("config.json", self.config)

    def write(self, name: str, data: object) -> None:
        write_atomically(self.folder / name, json.dumps(data))

    def attempt(self, name: str = "plain", part: str = "deployments", reason: str | None = None, log: str = "all is well\n") -> Path:
        attempt = attempts.new(self.folder / part / name)
        spec = KeeperSpec(deployment=name, lifeline="1:1@h", machine_lock=None, tokens=(), scratch="/nowhere")
        write_atomically(attempt / "keeper-spec.json", spec.model_dump_json())
        why = "daemon_ended:server" if reason else "stop_requested"
        state = KeeperState(state="ended", identity="1:1@node07", deployment=name, owner="job 77", why=why)
        write_atomically(attempt / "keeper.json", state.model_dump_json())
        daemon = DaemonState(name="server", pid=12, argv=("vllm", "serve"), log=str(attempt / "server.log"), exit_code=1, ended_at="x")
        write_atomically(attempt / "daemons" / "server.json", daemon.model_dump_json())
        (attempt / "server.log").write_text(log)
        if reason:
            failure = Failure(
                stage="await_ready",
                reason=reason,
                detail=f"It ended: {reason}.",
                quote=("ValueError: no",),
                remedy="Mend it.",
            )
            write_atomically(attempt / "failure.json", failure.model_dump_json())
        return attempt

    @property
    def ticket(self) -> ticket.Ticket:
        return ticket.compile_ticket(self.folder)


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path)


def test_it_says_what_ran_on_what_and_why_it_failed(run):
    attempt = run.attempt(reason="server_exited", log=(LOGS / "vllm-0.25.1-spawn-guard-failure.log").read_text())
    answer = {
        "name": "node07",
        "node": {"name": "node07", "address": "10.0.0.7", "interface": "hsn0", "leftovers": ["9 old vllm"]},
    }
    write_atomically(attempt / "survey" / "look" / "node07.json", json.dumps(answer))
    nodes = {"nodes": [{"host": "node07", "address": "10.0.0.7", "devices": 4}], "missing": ["node08: nothing"]}
    write_atomically(attempt / "ray-head.nodes.json", json.dumps(nodes))
    (attempt / "fabric.log").write_text("node07:1 NCCL INFO Channel 00/0 : 3[3] -> 4[0] [send] via NET/Socket/0\nNCCL WARN slow\n")
    text = run.ticket.text
    for fact in (
        "commit 0123456789ab",
        "slurm 22.05.8",
        "deployment plain, attempt 001",
        "deployment plain: 1 attempt(s), 1 failed; the latest failed: server_exited in await_ready",
        "FAILED in await_ready: server_exited",
        "| ValueError: no",
        "remedy: Mend it.",
        "address 10.0.0.7, interface hsn0",
        "ended there before the start: 9 old vllm",
        "ray-head: host node07, address 10.0.0.7, devices 4",
        "MISSING: node08: nothing",
        "fabric.log: via NET/Socket/0",
        "fabric.log: NCCL WARN slow",
        "server (pid 12) exited with code 1",
        "keeper 1:1@node07, job 77: ended, why: daemon_ended:server",
        "cause: ",
        "first error:",
        "first lines:",
        "last lines:",
        '"NCCL_DEBUG": "INFO"',
        "No job was submitted",
    ):
        assert fact in text, fact
    assert text.startswith("servemark support ticket for run demo") and "none was found" in text


def test_what_the_scheduler_says(run):
    file = run.folder / "slurm" / "jobs.jsonl"
    journal.append(file, "submitted", run="r", job="77", label="deployment plain")
    (run.folder / "slurm" / "deployment_plain").mkdir()
    (run.folder / "slurm" / "deployment_plain" / "77.log").write_text("slurmstepd: error: node failure\n")
    text = run.ticket.text
    for fact in (
        "1 job(s): 77",
        '"event": "submitted"',
        "77|NODE_FAIL|1:0",
        "no answer: scontrol: Unable to contact",
        "> slurmstepd: error: node failure",
    ):
        assert fact in text, fact


def test_it_quotes_the_first_errors_of_what_was_kept_of_a_process(run):
    attempt = run.attempt(reason="server_died")
    where = attempt / "ray-n1.kept"
    where.mkdir()
    (where / "raylet.out").write_text("[2026-11-21 20:05:41,001 E 1 9] (raylet) agent.cc:87: it broke\n" + TOKEN + "\n")
    (where / "gcs_server.out").write_text("[state-dump] all is well\n")
    (where / "worker-1.err").write_text(f"OSError: [Errno 28] No space left on device: {TOKEN}\n")
    text = run.ticket.text
    for fact in (
        "ray-n1.kept (3 file(s) that ray-n1 left on its node)",
        "  first error in raylet.out:\n    | raylet.out: [2026-11-21 20:05:41,001 E 1 9] (raylet) agent.cc:87: it broke",
        "worker-1.err: cause: A file system of the node is full",
        "  first error in worker-1.err:\n    | OSError: [Errno 28] No space left on device: [REDACTED: Hugging Face token]",
    ):
        assert fact in text, fact
    assert "gcs_server.out" not in text and TOKEN not in text


def test_attempts_that_failed_are_told_newest_first_and_only_some(run):
    for number in range(6):
        run.attempt(reason=f"reason_{number}")
    run.attempt()
    run.attempt("fine", "serving")
    text = run.ticket.text
    told = [line for line in text.splitlines() if line.startswith("FAILED in")]
    assert told == [f"FAILED in await_ready: reason_{number}" for number in (5, 4, 3)]
    assert "deployment plain, attempt 007" in text and "endpoint fine, attempt 001" in text


def test_deployments_that_failed_come_first(run):
    run.attempt("a")
    run.attempt("b", reason="server_exited")
    text = run.ticket.text
    assert text.index("deployment b, attempt") < text.index("deployment a, attempt")


def test_secrets_are_replaced_and_told(run):
    attempt = run.attempt(reason="server_exited", log=f"token {TOKEN}\n{PRIVATE}\nend of it\n")
    key = attempts.secret(attempt, "api-key").read_text()
    run.write("config.json", run.config | {"proxy": "http://me:geheim@proxy:80", "DB_PASSWORD": "geheim2", "log": key})
    made = run.ticket
    for secret in (TOKEN, "b3BlbnNzaC1rZXk", "geheim", "geheim2", key):
        assert secret not in made.text, secret
    assert "end of it" in made.text and "http://[REDACTED: user and password]@proxy:80" in made.text
    assert {"Hugging Face token", "private key", "user and password", "key of this run"} <= set(made.redacted)
    assert "Hugging Face token" in made.text.split("=" * 100)[0], "said at its top"


@pytest.mark.parametrize("before", [0, 150, 280, 297])
def test_a_secret_is_replaced_before_a_line_is_cut(before):
    (line,) = Quoting(Redactor()).lines(["x" * before + " " + TOKEN + "y" * 400], 5)
    assert TOKEN[:8] not in line


def test_it_is_bounded_whatever_there_is(run):
    log = "".join(f"{'an error: of many words ' * 100} {number}\n" for number in range(200))
    for number in range(20):
        run.attempt(f"d{number:02}", reason="server_exited", log=log)
    made = ticket.compile_ticket(run.folder, longest=60_000)
    assert 40_000 < len(made.text) < 63_000
    left_out = made.text.splitlines()[-1]
    assert left_out.startswith("Left out, because") and left_out.endswith("deployment d19, attempt 001")
    assert "deployment d19: 1 attempt(s), 1 failed" in made.text, "each is in the overview all the same"


def test_long_quotations_keep_both_ends():
    lines = Quoting(Redactor()).lines((f"line {number}" for number in range(100)), 6, "")
    assert lines == ["line 0", "line 1", "line 2", "[94 lines left out]", "line 97", "line 98", "line 99"]


@pytest.mark.parametrize("broken", ["keeper.json", "failure.json", "daemons/server.json", "survey/look/n.json", "x.nodes.json"])
def test_a_broken_file_does_not_keep_the_rest_back(run, broken):
    attempt = run.attempt(reason="server_exited")
    (attempt / broken).parent.mkdir(parents=True, exist_ok=True)
    (attempt / broken).write_text("{ half")
    assert "deployment plain, attempt 001" in run.ticket.text


def test_the_command_writes_one_private_file(run, monkeypatch, capsys):
    monkeypatch.chdir(run.folder.parents[1])
    run.attempt(reason="server_exited", log=f"{TOKEN}\n")
    assert cli.main(["ticket", "demo", "-o", "t.txt"]) == 0
    said = capsys.readouterr()
    assert "wrote t.txt" in said.out and "Hugging Face token" in said.err and TOKEN not in said.err
    assert Path("t.txt").stat().st_mode & 0o777 == 0o600
    assert cli.main(["ticket", "another"]) == 2
    assert "there are: demo" in capsys.readouterr().err


def test_a_run_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ServemarkError, match="There is no run 'x' here; there are: none"):
        ticket.compile_ticket(tmp_path / "x")
