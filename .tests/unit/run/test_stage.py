"""Log, exit code and progress of a rule's script, and the end of its deployment after a failure."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from builders.paths import LIBRARY
from servemark import supervisor
from servemark.deployment import attempts
from servemark.errors import ConfigError, StageFailed
from servemark.processes.identity import OWNER_PROCESS_VARIABLE, myself
from servemark.records import Cluster
from servemark.run import stage
from servemark.supervisor import ownership


@pytest.fixture
def own_output(monkeypatch):
    """Restore this process's output and its SIGTERM handler, which a stage replaces."""
    monkeypatch.setenv(OWNER_PROCESS_VARIABLE, str(myself()))
    monkeypatch.delenv(ownership.VARIABLE, raising=False)
    handler = signal.getsignal(signal.SIGTERM)
    kept = [os.dup(number) for number in (1, 2)]
    yield
    for number, copy in zip((1, 2), kept, strict=True):
        os.dup2(copy, number)
        os.close(copy)
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def attempt(tmp_path, monkeypatch, own_output):
    """A deployment's folder with a live attempt; its supervisor is recorded as this process."""
    folder = tmp_path / "results" / "demo" / "deployments" / "plain"
    new = attempts.new(folder)
    state = supervisor.SupervisorState(state="running", identity=str(myself()), deployment="plain")
    (new / "supervisor.json").write_text(state.model_dump_json())
    supervisor_spec(new, "machine.lock")
    return new


def supervisor_spec(attempt, machine_lock):
    spec = supervisor.SupervisorSpec(
        deployment="plain", lifeline="1:1", machine_lock=machine_lock, tokens=(), scratch="s", stop_grace_s=2.0
    )
    (attempt / "supervisor-spec.json").write_text(spec.model_dump_json())


def run(tmp_path, folder, work, **given):
    """Run one stage in this process; return (exit code or None, its log, the last line of its progress)."""
    log = tmp_path / "results" / "demo" / "logs" / "measure" / "plain.log"
    code = None
    # pytest's own streams do not write to 1 and 2
    with (
        open(1, "w", closefd=False) as out,
        open(2, "w", closefd=False) as err,
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            with stage.stage("measure", "plain", str(log), folder, **given) as here:
                work(here)
        except SystemExit as end:
            code = end.code
    words = tmp_path / "results" / "demo" / "progress.jsonl"
    return code, log.read_text(), words.read_text() if words.exists() else ""


def fail(error):
    def work(_):
        raise error

    return work


def test_successful_stage_leaves_deployment_running(tmp_path, attempt):
    def work(here):
        print("logged")
        subprocess.run(["echo", "a tool's word"], check=True)
        here.progress.say("done")
        assert here.log.name == "plain.log"

    code, log, words = run(tmp_path, attempt.parents[1], work)
    assert code is None
    assert set(log.splitlines()) == {"logged", "a tool's word"}
    assert '"stage": "measure"' in words and '"text": "done"' in words
    assert not (attempt / "stop").exists()


def test_log_contains_only_the_last_try(tmp_path, own_output):
    run(tmp_path, None, lambda _: print("first"))
    assert run(tmp_path, None, lambda _: print("second"))[1] == "second\n"


@pytest.mark.parametrize(
    ("error", "code", "log", "word"),
    [
        (
            StageFailed("It broke.\nBadly.", look="a.log", do="Mend it."),
            1,
            "It broke.\nBadly.\n  look at: a.log\n  what to do: Mend it.\n",
            "failed: It broke.",
        ),
        (ConfigError("Bad."), 2, "servemark: measure plain: Bad.\n", "failed: Bad."),
        (KeyboardInterrupt(), 130, "servemark: measure plain: interrupted\n", ""),
        (
            ZeroDivisionError("oops"),
            1,
            "ZeroDivisionError: oops\n",
            "defect",
        ),
    ],
)
def test_failed_stage_reports_and_stops_the_deployment(tmp_path, attempt, error, code, log, word):
    found, said, words = run(tmp_path, attempt.parents[1], fail(error))
    assert found == code
    assert said.endswith(log)
    assert ("Traceback" in said) is isinstance(error, ZeroDivisionError)
    assert word in words
    assert ("Mend it." in words) is ("Mend it." in log), "the user gets the remedy, not only the log"
    assert ("Badly." in words) is ("Badly." in log), "every reason, not only the first line"
    assert (attempt / "stop").exists()


def test_failed_stage_in_allocation_waits_for_end_of_deployment(tmp_path, attempt, monkeypatch):
    supervisor_spec(attempt, None)
    waited = []

    def stop(where, timeout_s):
        waited.append((where, timeout_s))
        raise supervisor.SupervisorStuck("still there")

    monkeypatch.setattr(supervisor, "stop", stop)
    assert run(tmp_path, attempt.parents[1], fail(StageFailed("x")))[0] == 1
    assert waited == [(attempt, 17.0)] and (attempt / "stop").exists()


def test_ended_attempt_is_not_touched(tmp_path, attempt):
    state = supervisor.SupervisorState(state="ended", identity=str(myself()), deployment="plain")
    (attempt / "supervisor.json").write_text(state.model_dump_json())
    assert run(tmp_path, attempt.parents[1], fail(StageFailed("x")))[0] == 1
    assert not (attempt / "stop").exists()


def test_a_stage_without_a_deployment_has_nothing_to_stop(tmp_path, own_output):
    assert run(tmp_path, None, fail(StageFailed("x")))[0] == 1


RECORD = Cluster(deployment="plain")


def test_record_is_written_while_the_job_owns_the_deployment(tmp_path, attempt):
    path = tmp_path / "cluster.json"
    assert run(tmp_path, attempt.parents[1], lambda here: here.write(RECORD, str(path)))[0] is None
    assert Cluster.read(path) == RECORD
    assert run(tmp_path, None, lambda here: here.write(RECORD, str(tmp_path / "other.json")))[0] is None
    assert Cluster.read(tmp_path / "other.json") == RECORD, "a folder without deployment has no owner"


def test_superseded_stage_writes_no_record(tmp_path, attempt):
    folder, path = attempt.parents[1], tmp_path / "cluster.json"

    def work(here):
        (folder / ownership.FILE).write_text("job 7, start 2\n")
        here.write(RECORD, str(path))

    code, log, words = run(tmp_path, folder, work)
    assert code == 1 and not path.exists()
    assert "job 7, start 2" in log and "Traceback" not in log and words == ""
    assert not (attempt / "stop").exists(), "the newer job's attempt may be the latest"


def test_stage_of_superseded_job_does_no_work(tmp_path, attempt):
    (attempt.parents[1] / ownership.FILE).write_text("job 7\n")
    worked = []
    assert run(tmp_path, attempt.parents[1], worked.append)[0] == 1
    assert worked == []


def test_the_first_stage_takes_the_deployment(tmp_path, attempt):
    folder = attempt.parents[1]
    (folder / ownership.FILE).write_text("job 7\n")
    worked = []
    assert run(tmp_path, folder, worked.append, begins=True)[0] is None
    assert len(worked) == 1 and ownership.owner(folder) == ownership.mine()


def test_worker_file_exists_while_the_stage_works(tmp_path, attempt):
    file = supervisor.worker_file(attempt.parents[1])
    seen = []
    run(tmp_path, attempt.parents[1], lambda _: seen.append(file.read_text()))
    assert seen == [str(myself())] and not file.exists()


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_script_with_a_message_in_its_log(tmp_path, number, ignored):
    """SIGINT may be ignored before: a shell script does so for its background processes."""
    log = tmp_path / "results" / "demo" / "logs" / "measure.log"
    code = (
        "import sys, time; from servemark.run.stage import stage\n"
        "with stage('measure', 'plain', sys.argv[1]): print('up', flush=True); time.sleep(300)"
    )
    env = {"PYTHONPATH": LIBRARY, OWNER_PROCESS_VARIABLE: str(myself())}
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    try:
        script = subprocess.Popen([sys.executable, "-c", code, str(log)], env=env)
    finally:
        signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 60
    while not (log.exists() and "up" in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    script.send_signal(number)
    assert script.wait(60) == 130
    up, message = log.read_text().splitlines()
    assert up == "up" and message.startswith("servemark: measure plain")


def test_parent_snakemakes_of_a_superseded_stage_are_killed(tmp_path, attempt):
    """They would remove outputs of the failed rule, which now belong to the newer job. Processes outside the job stay alive."""
    folder = attempt.parents[1]
    (folder / ownership.FILE).write_text("job 8\n")
    stage_code = (
        "import sys; from pathlib import Path; from servemark.run.stage import stage\n"
        "with stage('measure', 'plain', sys.argv[1], Path(sys.argv[2])): pass"
    )
    log = str(tmp_path / "results" / "demo" / "logs" / "measure.log")
    chain = ["-c", stage_code, log, str(folder)]
    for where, name in (("inner", "snakemake"), ("outer", "snakemake"), ("job", "batch-script")):
        script = tmp_path / where / name
        script.parent.mkdir()
        goes_on = f"open({str(tmp_path / 'goes-on')!r}, 'a').write({where!r})"
        script.write_text(f"import subprocess, sys; subprocess.call([sys.executable, *sys.argv[1:]]); {goes_on}\n")
        chain = [str(script), *chain]
    env = {"PYTHONPATH": LIBRARY, OWNER_PROCESS_VARIABLE: str(myself()), "SLURM_JOB_ID": "7", "SERVEMARK_OWNER": "job 7"}
    subprocess.run([sys.executable, *chain], env=env, timeout=120, check=True)
    assert "job 8" in Path(log).read_text()
    assert (tmp_path / "goes-on").read_text() == "job"


@pytest.mark.parametrize(("code", "word"), [(errno.ENOSPC, "No space"), (errno.EROFS, "read-only")])
def test_stage_on_full_disk_ends_with_message_after_traceback(tmp_path, attempt, code, word):
    refused = OSError(code, os.strerror(code), str(tmp_path / "x"))
    found, said, words = run(tmp_path, attempt.parents[1], fail(refused))
    assert found == 1 and (attempt / "stop").exists()
    assert word in said and word in words and str(tmp_path / "x") in said
    assert said.index("Traceback") < said.index("servemark: measure") and "defect" not in words


def test_permission_error_without_file_name_has_a_traceback(tmp_path, attempt):
    found, said, words = run(tmp_path, attempt.parents[1], fail(PermissionError(errno.EPERM, "Operation not permitted")))
    assert found == 1 and "Traceback" in said and "servemark:" not in said and "defect" in words


def test_unwritable_stop_file_does_not_hide_the_stages_error(tmp_path, attempt, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "stop")

    monkeypatch.setattr(supervisor, "ask_to_end", refuse)
    found, said, _ = run(tmp_path, attempt.parents[1], fail(StageFailed("It broke.")))
    assert found == 1 and "It broke." in said and str(attempt.parents[1]) in said and "Traceback" not in said


def test_stage_on_full_disk_writes_to_the_terminal(tmp_path, own_output, capfd, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    monkeypatch.setattr("servemark.progress.open", refuse, raising=False)
    with pytest.raises(SystemExit) as end, stage.stage("measure", "plain", str(tmp_path / "demo/logs/plain.log")):
        raise AssertionError("the work began")
    assert end.value.code == 1
    said = capfd.readouterr().err
    assert said.count("servemark:") == 1 and "Traceback" not in said


def test_supervisor_gets_signal_if_no_stop_file_is_possible(attempt, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    told = []
    monkeypatch.setattr(supervisor.Identity, "signal", lambda self, number: told.append(self))
    monkeypatch.setattr(Path, "touch", refuse)
    supervisor.ask_to_end(attempt)
    assert told == [myself()]


@pytest.mark.parametrize(
    ("module", "unused"),
    [
        ("servemark.run.stage", ("numpy", "pandas", "httpx", "asyncio", "fsspec", "yaml", "packaging", "servemark.config")),
        ("servemark.deployment.cluster", ("numpy", "packaging")),
        ("servemark.deployment.server", ("numpy", "tokenizers", "packaging")),
        ("servemark.supervisor.__main__", ("numpy", "yaml", "servemark.config", "servemark.deployment")),
        ("servemark.run.main_process", ("pandas", "servemark.report")),
    ],
)
def test_start_of_a_job_imports_no_library_that_it_does_not_use(module: str, unused: tuple[str, ...]):
    """A run starts about 30 jobs, and each of these libraries takes between 0.02 s and 0.5 s to import."""
    code = f"import sys, {module}; sys.exit(', '.join(name for name in {unused} if name in sys.modules) or None)"
    found = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(LIBRARY)}, text=True, capture_output=True)
    assert found.returncode == 0, found.stderr
