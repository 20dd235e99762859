"""The remote agent of a launcher, as a real process on a real pipe: its whole tree ends with the heartbeat pipe."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from builders.paths import LIBRARY
from servemark.processes import identity
from servemark.processes.identity import Identity
from servemark.supervisor import remote
from servemark.supervisor.process_request import VISIBLE, DaemonRequest

pytestmark = pytest.mark.live

# Prints the id of a child that ignores TERM in its own session, and its devices, node and mark. With `deaf` it ignores TERM itself.
TREE = """
import os, signal, subprocess, sys, time
deaf = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print("deaf", flush=True); time.sleep(300)'
child = subprocess.Popen([sys.executable, '-c', deaf], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
if 'deaf' in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
else: signal.signal(signal.SIGTERM, lambda *_: (print('TERM', flush=True), sys.exit(7)))
env = os.environ.get
print(child.pid, env('CUDA_VISIBLE_DEVICES'), env('SERVEMARK_NODE'), env('SERVEMARK_ATTEMPT'), env('SECRET'), flush=True)
time.sleep(300)
"""


class Beats:
    """Sends heartbeats to remote agents until :meth:`stop`, as a supervisor does, from the moment they start."""

    def __init__(self):
        self.agents: list[subprocess.Popen] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.2):
            for agent in tuple(self.agents):
                with contextlib.suppress(OSError, ValueError):  # it has ended, or the test has closed its pipe
                    os.write(agent.stdin.fileno(), b".")

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()


@pytest.fixture
def beats():
    made = Beats()
    yield made
    made.stop()


@pytest.fixture
def start(tmp_path, wait_for, beats):
    """Starts remote.py for a request, with heartbeats if it ends without them; returns the process and the path of its place file."""
    started = []

    def run(code: str = TREE, *arguments: str, variables: dict[str, str] | None = None, **changes):
        path = tmp_path / "requests" / f"{changes.get('name', 'server')}.json"
        path.parent.mkdir(exist_ok=True)
        values = {
            "name": "server",
            "argv": (sys.executable, "-c", code, *arguments),
            "env": {},
            "log": str(tmp_path / "log"),
        }
        path.write_text(DaemonRequest(**(values | {"grace_s": 0.5} | changes)).model_dump_json())
        env = {**os.environ, "PYTHONPATH": LIBRARY, **(variables or {})}
        argv = [sys.executable, "-m", "servemark.supervisor.remote", str(path)]
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, env=env, cwd=tmp_path)
        started.append(child)
        if changes.get("silence_s"):
            beats.agents.append(child)
        return child, path.with_suffix(".place.json")

    yield run
    for child in started:
        child.stdin.close()
        child.wait(60)


@pytest.fixture
def tree(start, tmp_path, wait_for):
    """Starts a request whose process has a tree; returns remote's process, the tree's identities, the output, and the place."""

    def run(*arguments: str, **more):
        child, place = start(TREE, *arguments, **more)
        log = tmp_path / "log"
        wait_for(lambda: log.exists() and log.read_text().endswith("\n") and place.exists())
        said = log.read_text().split()
        told = json.loads(place.read_text())
        return child, [Identity.of(told["pid"]), Identity.of(int(said[0]))], said[1:], told

    return run


def test_end_of_heartbeat_pipe_sends_term_then_kill(tree, tmp_path):
    child, members, _, _ = tree()
    child.stdin.close()
    assert child.wait(60) == 7, "it handled TERM"
    assert "TERM" in (tmp_path / "log").read_text()
    assert [member for member in members if member.alive] == []


def test_process_ignoring_term_is_killed_after_grace(tree):
    child, members, _, _ = tree("deaf")
    child.stdin.close()
    assert child.wait(60) == 128 + signal.SIGKILL
    assert [member for member in members if member.alive] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_to_the_remote_agent_ends_the_tree(tree, number):
    child, members, _, _ = tree()
    child.send_signal(number)
    assert child.wait(60) == 7
    assert [member for member in members if member.alive] == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("", 0),
        ("import sys; sys.exit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", 128 + 9),
        ("import os; os.kill(os.getpid(), 15)", 128 + 15),
    ],
)
def test_remote_agent_exits_with_the_code_of_its_process(start, code, expected):
    child, _ = start(code)
    assert child.wait(60) == expected


def test_a_process_that_ends_by_itself_leaves_nothing(start, tmp_path):
    code = (
        "import subprocess, sys; child = subprocess.Popen(['sleep', '300'], start_new_session=True);"
        "print(child.pid, flush=True); sys.exit(4)"
    )
    child, _ = start(code, grace_s=0.2)
    assert child.wait(60) == 4
    assert Identity.of(int((tmp_path / "log").read_text())) is None


def test_process_gets_devices_node_mark_and_secret(tree, tmp_path):
    secret = tmp_path / "key"
    secret.write_text("s3cr3t\n")
    variables = {
        VISIBLE: "GPU-a,GPU-b,GPU-c",
        "SLURMD_NODENAME": "node7",
        identity.MARK_VARIABLE: "/runs/attempts/001",
    }
    scratch = tmp_path / "new" / "scratch"
    _, _, said, told = tree(variables=variables, devices=(0, 2), secret_env={"SECRET": str(secret)}, scratch=str(scratch))
    assert said == ["GPU-a,GPU-c", "node7", "/runs/attempts/001", "s3cr3t"]
    assert scratch.is_dir() and scratch.stat().st_mode & 0o777 == 0o700
    assert told == {"host": identity.host(), "pid": told["pid"], "identity": str(Identity.of(told["pid"]))}


def test_without_a_scheduler_the_node_is_this_machine(start, tmp_path):
    child, _ = start("import os; print(os.environ['SERVEMARK_NODE'], 'SERVEMARK_ATTEMPT' in os.environ)")
    assert child.wait(60) == 0
    assert (tmp_path / "log").read_text().split() == [identity.here(), "False"]


def test_bytes_on_heartbeat_pipe_do_not_end_tree(tree):
    child, members, _, _ = tree()
    child.stdin.write(b"anything\n")
    child.stdin.flush()
    time.sleep(0.4)
    assert child.poll() is None and all(member.alive for member in members)


def test_missing_program_is_error_of_launcher(start, tmp_path):
    child, place = start(argv=("/no/such/program",))
    assert child.wait(60) == 1 and not place.exists()


def test_silent_heartbeat_pipe_ends_tree(tree, beats):
    child, members, _, _ = tree(silence_s=3.0)
    time.sleep(4.0)
    assert child.poll() is None, "heartbeats keep it alive"
    beats.stop()
    assert child.wait(60) == 7
    assert [member for member in members if member.alive] == []


def test_suspended_node_keeps_its_process(tree, beats):
    child, members, _, _ = tree(silence_s=3.0)
    beats.stop()
    time.sleep(0.2)  # it reads the last heartbeat
    child.send_signal(signal.SIGSTOP)
    time.sleep(3.5)
    child.send_signal(signal.SIGCONT)
    time.sleep(0.5)
    assert child.poll() is None and all(member.alive for member in members)


@pytest.mark.parametrize("how", ["signal", "silence", "let go"])
def test_last_remote_agent_removes_scratch_folder(start, tmp_path, wait_for, beats, how):
    scratch = tmp_path / "scratch"
    sleeper = "import time; time.sleep(300)"
    silence_s = 1.5 if how == "silence" else None
    first, second = (start(sleeper, scratch=str(scratch), name=name, silence_s=silence_s)[0] for name in ("one", "two"))
    wait_for(lambda: len(list(scratch.glob(f"{remote.USERS}/*"))) == 2)
    beats.stop()
    for child in (first, second):
        assert scratch.exists() or how == "silence", "the other one still uses it"
        if how == "signal":
            child.send_signal(signal.SIGTERM)
        elif how == "let go":
            child.stdin.close()
        child.wait(60)
    assert not scratch.exists()


def test_a_process_that_ends_by_itself_removes_nothing(start, tmp_path):
    scratch = tmp_path / "scratch"
    child, _ = start("pass", scratch=str(scratch))
    assert child.wait(60) == 0 and scratch.exists()


# Writes a log into the scratch folder of its first argument, then executes its second argument.
LOGGER = """
import os, sys, time
folder = os.path.join(sys.argv[1], 'session_1', 'logs')
os.makedirs(folder)
open(os.path.join(folder, 'raylet.out'), 'w').write('why\\n')
print('written', flush=True)
exec(sys.argv[2])
"""
KEEP = ("session_*/logs/raylet.*",)


@pytest.fixture
def logger(start, tmp_path):
    """Starts a process that leaves a log in its scratch folder; returns remote's process and the folder of kept logs."""

    def run(then: str, **more):
        scratch = tmp_path / "scratch"
        child, _ = start(LOGGER, str(scratch), then, scratch=str(scratch), **({"keep": KEEP} | more))
        return child, tmp_path / "server.kept"

    return run


@pytest.mark.parametrize(
    ("then", "code"),
    [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 128 + 9), ("pass", 0)],
    ids=["exit", "kill", "end"],
)
def test_logs_of_a_process_that_ends_by_itself_are_kept(logger, then, code):
    child, kept = logger(then)
    assert child.wait(60) == code
    assert [path.name for path in kept.iterdir()] == ["raylet.out"]
    assert (kept / "raylet.out").read_text() == "why\n"
    assert (kept / "raylet.out").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("how", ["signal", "let go", "nothing asked for"])
def test_no_logs_of_a_stopped_process_are_kept(logger, tmp_path, wait_for, how):
    if how == "nothing asked for":
        child, kept = logger("sys.exit(3)", keep=())
    else:
        child, kept = logger("time.sleep(300)")
        wait_for(lambda: (tmp_path / "log").exists() and "written" in (tmp_path / "log").read_text())
        child.send_signal(signal.SIGTERM) if how == "signal" else child.stdin.close()
    child.wait(60)
    assert not kept.exists()


def test_a_copy_that_fails_does_not_change_the_exit(logger, tmp_path):
    (tmp_path / "server.kept").write_text("in the way")
    child, _ = logger("sys.exit(3)")
    assert child.wait(60) == 3
