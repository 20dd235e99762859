"""A signal ends the main process in order and in bounded time; a second signal kills all processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders.paths import LIBRARY
from servemark.processes import identity
from servemark.processes.identity import Identity
from servemark.run import signals

# A main process with one rule's script. The script prints the signal; a stubborn one does not end, so the main process waits for it.
MAIN = """
import os, signal, subprocess, sys, time; from servemark.run import signals
signals.BOUND_S = float(sys.argv[1])
ready, told = os.pipe()
script = subprocess.Popen([sys.executable, '-c', '''
import os, signal, sys, time
def got(number, _):
    os.write(1, b"script got " + signal.Signals(number).name.encode() + bytes([10]))
    if sys.argv[1] != "stubborn": sys.exit(0)
signal.signal(signal.SIGINT, got)
print("script", flush=True)
os.close(int(sys.argv[2]))
while True: time.sleep(1)
''', sys.argv[2], str(told)], pass_fds=[told])
os.close(told)
os.read(ready, 1)  # until the script can handle a signal
if 'UNDER_NOHUP' in os.environ: signal.signal(signal.SIGHUP, signal.SIG_IGN)
signals.install()
if 'ENDS_IN_S' in os.environ: signals.at(time.time() + float(os.environ['ENDS_IN_S']), "its time is nearly over.")
try:
    print("main", script.pid, flush=True)
    while sys.argv[3:]: print("x" * 1000, file=sys.stderr)
    script.wait()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    script.wait()
    print("locks removed", flush=True)
    sys.exit(1)
"""


class Run:
    def __init__(self, bound_s: float, *words: str, **variables: str):
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, str(bound_s), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": LIBRARY, **variables},
            start_new_session=True,
        )
        first = [self.process.stdout.readline().split() for _ in range(2)]
        (pid,) = [line[1] for line in first if line[0] == "main"]
        self.script = Identity.of(int(pid))

    def line(self) -> str:
        return self.process.stdout.readline().strip()

    def end(self, seconds: float) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err


@pytest.fixture
def run():
    started = []

    def start(*arguments, **variables):
        started.append(Run(*arguments, **variables))
        return started[-1]

    yield start
    for one in started:
        one.script.signal(signal.SIGKILL)
        one.process.kill()
        one.process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_interrupts_scripts_and_main_process_cleans_up(run, number):
    one = run(30, "obedient")
    one.process.send_signal(number)
    code, out, err = one.end(60)
    assert code == 1
    assert set(out.splitlines()) == {"script got SIGINT", "interrupted", "locks removed"}
    assert f"servemark: {number.name}: " in err
    assert identity.wait_for_end(one.script, 60)


def test_sighup_under_nohup_is_ignored(run):
    one = run(30, "obedient", UNDER_NOHUP="1")
    one.process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        one.process.wait(0.5)
    one.process.send_signal(signal.SIGTERM)
    one.process.send_signal(signal.SIGHUP)
    code, _, err = one.end(60)
    assert code == 1 and "SIGTERM" in err and "SIGHUP" not in err and err.count("servemark: ") == 1


def test_script_that_does_not_end_is_killed_in_time(run):
    one = run(0.5, "stubborn")
    one.process.send_signal(signal.SIGTERM)
    code, _, err = one.end(60)
    assert code == 130
    assert " 0 s" in err
    assert identity.wait_for_end(one.script, 60)


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_second_signal_kills_all_processes(run, second):
    one = run(30, "stubborn")
    one.process.send_signal(signal.SIGINT)
    assert {one.line(), one.line()} == {"script got SIGINT", "interrupted"}
    one.process.send_signal(second)
    code, _, err = one.end(60)
    assert code == 130
    assert err.count("servemark: ") == 2
    assert identity.wait_for_end(one.script, 60)


def test_main_process_ends_at_its_moment_with_reason(run):
    begin = time.monotonic()
    one = run(30, "obedient", ENDS_IN_S="1.0")
    code, out, err = one.end(60)
    assert time.monotonic() - begin >= 1.0
    assert code == 1
    assert set(out.splitlines()) == {"script got SIGINT", "interrupted", "locks removed"}
    why, then = [line for line in err.splitlines() if line.startswith("servemark: ")]
    assert why.endswith(" over.") and then.startswith("servemark: SIGTERM: ")
    assert identity.wait_for_end(one.script, 60)


def test_distant_moment_does_not_delay_the_end(run):
    # Longer than the longest wait (threading.TIMEOUT_MAX).
    one = run(30, "obedient", ENDS_IN_S="1e15")
    one.script.signal(signal.SIGKILL)
    code, _, err = one.end(60)
    assert (code, err) == (0, "")


def test_past_moment_counts_as_now(monkeypatch, capfd, wait_for):
    done = []
    monkeypatch.setattr(signals.os, "kill", lambda pid, number: done.append((pid, number)))
    signals.at(time.time() - 3600, "late.")
    wait_for(lambda: done)
    assert done == [(os.getpid(), signal.SIGTERM)]
    assert capfd.readouterr().err == "servemark: late.\n"


def test_signal_works_during_a_blocked_message(run, wait_for):
    one = run(30, "obedient", "chatty")
    wait_for(lambda: stuck(one.process.pid))
    one.process.send_signal(signal.SIGTERM)
    assert {one.line(), one.line(), one.line()} == {"script got SIGINT", "interrupted", "locks removed"}
    assert identity.wait_for_end(one.script, 60)


def stuck(pid: int) -> bool:
    """Return whether a process sleeps, here because the pipe is full."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


@pytest.fixture
def handlers(monkeypatch):
    """The handlers in this process; their effects are recorded, not executed."""
    done = []
    monkeypatch.setattr(signals.os, "_exit", lambda code: done.append(("exit", code)))
    monkeypatch.setattr(identity, "signal_all", lambda found, number: done.append(("signal", number)))
    monkeypatch.setattr(signals, "BOUND_S", 0.05)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield done
    for number, handler in before.items():
        signal.signal(number, handler)


def test_order_of_events_after_a_signal(handlers, capfd, wait_for):
    signals.install()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGHUP)
    assert handlers[0] == ("signal", signal.SIGINT)
    wait_for(lambda: ("exit", 130) in handlers)
    assert handlers[1:] == [("signal", signal.SIGKILL), ("exit", 130)]
    os.kill(os.getpid(), signal.SIGTERM)
    assert handlers[3:] == [("signal", signal.SIGKILL), ("exit", 130)]
    assert capfd.readouterr().err.count("servemark: ") == 3
