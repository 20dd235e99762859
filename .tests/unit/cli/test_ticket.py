"""The support ticket: a tar with everything about a run, bounded, and no secret in it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from servemark.cli import main as cli
from servemark.cli import ticket
from servemark.deployment import attempts
from servemark.records import DaemonState, Failure, write_atomically
from servemark.supervisor import SupervisorSpec, SupervisorState
from snakemake_executor_plugin_slurm_guarded import commands, journal
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, Trouble

TOKEN = "hf_" + "abcdefghijklmnopqrstuvwx1234"
PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\nmore\n-----END OPENSSH PRIVATE KEY-----"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    """A commit, and a Slurm with one job."""

    def run(argv, **_) -> str:
        if argv[0] == "sinfo":
            return "slurm 22.05.8\n"
        if argv[0] == "sacct":
            return "JobID|State|ExitCode\n77|NODE_FAIL|1:0\n"
        raise CommandFailed(Trouble.UNREACHABLE, argv, "Unable to contact slurm controller")

    monkeypatch.setattr(ticket.git_state, "words", lambda states: "0123456789ab")
    monkeypatch.setattr(commands, "run", run)


class Run:
    """The results of a run, ``demo``."""

    def __init__(self, root: Path):
        self.folder = root / "results" / "demo"
        self.config = {"run": "demo", "deployments": {"plain": {"model": "tiny", "variables": {"NCCL_DEBUG": "INFO"}}}}
        self.write("config.json", self.config)
        self.redacted: dict[str, int] = {}

    def write(self, name: str, data: object) -> None:
        write_atomically(self.folder / name, json.dumps(data))

    def attempt(self, name: str = "plain", part: str = "deployments", reason: str | None = None, log: str = "all is well\n") -> Path:
        attempt = attempts.new(self.folder / part / name)
        spec = SupervisorSpec(deployment=name, lifeline="1:1@h", machine_lock=None, tokens=(), scratch="/nowhere")
        write_atomically(attempt / "supervisor-spec.json", spec.model_dump_json())
        why = "daemon_ended:server" if reason else "stop_requested"
        state = SupervisorState(state="ended", identity="1:1@node07", deployment=name, owner="job 77", why=why)
        write_atomically(attempt / "supervisor.json", state.model_dump_json())
        daemon = DaemonState(name="server", pid=12, argv=("vllm", "serve"), log=str(attempt / "server.log"), exit_code=1, ended_at="x")
        write_atomically(attempt / "daemons" / "server.json", daemon.model_dump_json())
        (attempt / "server.log").write_text(log)
        if reason:
            failure = Failure(stage="await_ready", reason=reason, detail="It ended.", quote=("ValueError: no",), remedy="Mend it.")
            write_atomically(attempt / "failure.json", failure.model_dump_json())
        return attempt

    def ticket(self, **limits: int) -> dict[str, str]:
        """Write one; return the text of each of its files by name."""
        output = self.folder.parents[1] / "t.tar.gz"
        self.redacted = ticket.write(self.folder, output, **limits)
        assert output.stat().st_mode & 0o777 == 0o600
        with tarfile.open(output) as tar:
            members = {entry.name.removeprefix("servemark-ticket-demo/"): tar.extractfile(entry) for entry in tar}
            return {name: stream.read().decode() for name, stream in members.items()}


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path)


def test_summary_has_versions_failures_and_slurm_record(run):
    run.attempt(reason="server_exited")
    run.attempt("fine", "serving")
    journal.append(run.folder / "slurm" / "jobs.jsonl", "submitted", run="r", job="77", label="deployment plain")
    text = run.ticket()["summary.txt"]
    for fact in (
        "0123456789ab",
        "slurm 22.05.8",
        "deployments/plain, attempt 001",
        "serving/fine, attempt 001",
        "FAILED in await_ready: server_exited",
        "| ValueError: no",
        "Mend it.",
        "server (pid 12) exited with code 1",
        "1:1@node07, job 77: ended daemon_ended:server",
        "77|NODE_FAIL|1:0",
        "Unable to contact slurm controller",
    ):
        assert fact in text, fact


def test_ticket_has_records_and_logs_but_no_results_or_keys(run):
    attempt = run.attempt(reason="server_exited", log="why\n")
    attempts.secret(attempt, "api-key")
    for name in ("ray-n1.kept/raylet.out", "survey/look/n.json", "requests/server.json", "tools/client.json", "binary.bin"):
        write_atomically(attempt / name, name)
    run.write("deployments/plain/points/chat-c1-r1.json", {})
    run.write("slurm/deployment_plain/77.log", "node failure")
    (run.folder / "link.log").symlink_to("/etc/hostname")
    inside = "run/deployments/plain/attempts/001"
    assert set(run.ticket()) == {
        "summary.txt", "run/config.json", "run/slurm/deployment_plain/77.log",
        *(f"{inside}/{name}" for name in ("server.log", "supervisor.json", "supervisor-spec.json", "failure.json", "daemons/server.json",
                                          "survey/look/n.json", "ray-n1.kept/raylet.out")),
    }  # fmt: skip


def test_secrets_are_replaced_and_counted(run):
    attempt = run.attempt(reason="server_exited", log=f"token {TOKEN}\n{PRIVATE}\nend of it\n")
    key = attempts.secret(attempt, "api-key").read_text()
    run.write("config.json", run.config | {"proxy": "http://me:geheim@proxy:80", "DB_PASSWORD": "geheim2", "log": key})
    files = run.ticket()
    for secret in (TOKEN, "b3BlbnNzaC1rZXk", "geheim", "geheim2", key):
        assert not [name for name, text in files.items() if secret in text], secret
    log = files["run/deployments/plain/attempts/001/server.log"]
    assert log.endswith("\nend of it\n") and "NCCL_DEBUG" in files["run/config.json"]
    assert set(run.redacted) == {"Hugging Face token", "private key", "user and password", "key of this run"}
    assert all(kind in files["summary.txt"] for kind in run.redacted)


@pytest.mark.parametrize("before", [0, ticket._KEPT - 5, ticket._READ - 5, 2 * ticket._READ - 5])
def test_secret_is_replaced_before_a_long_log_is_cut(run, before):
    log = "x" * before + " " + TOKEN + " " + "y" * 3 * ticket._READ
    run.attempt(log=log)
    run.attempt(log=log[::-1].replace(TOKEN[::-1], TOKEN))
    for text in run.ticket().values():
        assert TOKEN[:8] not in text and TOKEN[-8:] not in text and len(text) < 3 * ticket._KEPT


def test_ticket_is_bounded_and_failed_attempts_come_first(run):
    for number in range(20):
        run.attempt(f"d{number:02}", reason="server_exited" if number == 7 else None, log=f"{number} " * 4000)
    files = run.ticket(longest=50_000)
    assert sum(len(text) for name, text in files.items() if name.startswith("run/")) <= 50_000
    log = "deployments/d{:02}/attempts/001/server.log"
    assert f"run/{log.format(7)}" in files and f"run/{log.format(0)}" not in files and log.format(0) in files["summary.txt"]


@pytest.mark.parametrize("broken", ["supervisor.json", "failure.json", "daemons/server.json", "server.log"])
def test_broken_file_does_not_stop_the_ticket(run, broken):
    attempt = run.attempt(reason="server_exited")
    run.attempt("other", reason="port_taken")
    (attempt / broken).write_bytes(b"{ half \xff")
    files = run.ticket()
    assert "port_taken" in files["summary.txt"] and f"run/deployments/plain/attempts/001/{broken}" in files


def test_command_writes_the_file_and_refuses_an_unknown_run(run, monkeypatch, capsys):
    monkeypatch.chdir(run.folder.parents[1])
    run.attempt(reason="server_exited", log=f"{TOKEN}\n")
    assert cli.main(["ticket", "demo"]) == 0
    printed = capsys.readouterr()
    assert Path("servemark-ticket-demo.tar.gz").exists() and "Hugging Face token" in printed.err and TOKEN not in printed.err
    assert cli.main(["ticket", "another"]) == 2
    assert "demo" in capsys.readouterr().err
