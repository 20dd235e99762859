"""Interrupted runs, by any signal at any moment: no process survives, and a plain rerun completes.

Points measured before the interruption are not measured again.
"""

from __future__ import annotations

import platform
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration import local_index
from integration.harness import GONE_S, Checkout, Running
from integration.local_index import Index

# The signal, and whether it goes to the whole process group, as with Ctrl-C in a terminal, or only to the main process.
CTRL_C = (signal.SIGINT, True)
INT, TERM, HUP, KILL = ((number, False) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL))
NAMES = {CTRL_C: "ctrl-c", INT: "SIGINT", TERM: "SIGTERM", HUP: "SIGHUP", KILL: "SIGKILL"}
# A main process ends within this time after a signal, 12 s on an idle machine. Its children are gone at most GONE_S later.
ANSWER_S = 60.0


def end_run(checkout: Checkout, running: Running, end: tuple[signal.Signals, bool]) -> None:
    number, group = end
    running.interrupt(number, group=group)
    done = running.wait(ANSWER_S)
    checkout.assert_all_dead(GONE_S)
    if number == signal.SIGKILL:
        assert done.rc == -signal.SIGKILL
    else:
        assert done.rc not in (0, -number), f"an orderly end, not killed by the signal: {done.rc}\n{done.text}"
        assert f"servemark: {number.name}" in done.text and "Run the same command again" in done.text
        assert "Traceback" not in done.text, done.text
        assert checkout.secrets() == []


def assert_plain_rerun_completes(checkout: Checkout, **variables: str) -> None:
    again = checkout.run(**variables)
    assert again.rc == 0, again.text
    assert {row["verdict"] for row in checkout.rows().values()} <= {"VALID", "SUSPECT"}
    checkout.assert_all_dead()
    assert checkout.secrets() == []


@pytest.mark.parametrize(
    "end",
    [CTRL_C, *(pytest.param(end, marks=pytest.mark.full) for end in (INT, TERM, HUP)), KILL],
    ids=NAMES.get,
)
def test_interrupted_while_measuring(checkout: Checkout, end: tuple[signal.Signals, bool]):
    checkout.keep("a")
    checkout.inject("none")
    # Slow enough that the fault begins before the second point ends, also on a busy machine.
    running = checkout.start(STANDIN_TOKEN_S="0.2")
    checkout.wait_for_progress("chat-c2-r1: 6 requests")
    checkout.inject("hang")
    before = checkout.started_at("a")
    assert set(before) == {"chat-c1-r1"}

    end_run(checkout, running, end)

    checkout.inject("none")
    served = checkout.requests_served("a")
    assert_plain_rerun_completes(checkout)
    after = checkout.started_at("a")
    assert after["chat-c1-r1"] == before["chat-c1-r1"] and after["chat-c2-r1"] > before["chat-c1-r1"]
    # The readiness check, a warm-up and the six requests of the second point.
    assert checkout.requests_served("a") - served == 8


# test_next_run_removes_lock_of_killed_one_and_reports_it kills such a run in every `make test`.
@pytest.mark.full
@pytest.mark.parametrize("end", [CTRL_C, HUP, KILL], ids=NAMES.get)
def test_interrupted_while_server_loads(checkout: Checkout, end: tuple[signal.Signals, bool]):
    checkout.keep("a")
    running = checkout.start(STANDIN_START_S="60")
    checkout.wait_for_progress("waiting for vLLM")
    end_run(checkout, running, end)
    assert_plain_rerun_completes(checkout)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    wheel = tmp_path / local_index.WHEEL
    local_index.make_wheel(wheel)
    with local_index.serve(wheel) as served:
        yield served


@pytest.mark.skipif(sys.version_info[:2] != (3, 11) or platform.machine() != "x86_64", reason="the lock is for CPython 3.11 on x86_64")
@pytest.mark.parametrize("end", [*(pytest.param(end, marks=pytest.mark.full) for end in (INT, TERM)), KILL], ids=NAMES.get)
def test_interrupted_while_environment_is_built(checkout: Checkout, index: Index, tmp_path: Path, end: tuple[signal.Signals, bool]):
    checkout.keep("a")
    checkout.config["environments"] = {"standin": {"lock": "cpu"}}
    checkout.config["cache"] = str(tmp_path / "cache")
    local_index.lock(checkout.path, local_index.make_wheel(tmp_path / local_index.WHEEL))
    settings = {"PIP_INDEX_URL": index.url, "PIP_NO_INDEX": "", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null"}
    index.hanging.set()
    running = checkout.start(**settings)
    checkout.wait_for_progress("installing 1 locked packages", subject="standin")
    assert index.asked.wait(120)

    end_run(checkout, running, end)

    index.hanging.clear()
    assert_plain_rerun_completes(checkout, **settings)
    assert checkout.record("environments/standin/environment.json")["origin"] == "lock"
