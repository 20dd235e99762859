"""The client's processes: started, sampled and ended together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from servemark.environments import build
from servemark.processes.identity import Identity

SCRIPT = build.IN_MODEL_ENV / "run_clients.py"
# Writes its process id and time to a file, then follows its second argument.
FAKE = """
import os, subprocess, sys, time
from pathlib import Path
path, what = Path(sys.argv[1]), sys.argv[2]
if what == "family":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    path.with_suffix(".child").write_text(str(child.pid))
if what == "deaf":
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
path.with_suffix(".draft").write_text(f"{os.getpid()} {time.perf_counter()}")
path.with_suffix(".draft").rename(path)
if what == "busy":
    while time.process_time() < 2.3:
        pass
elif what == "fails":
    time.sleep(0.3)
    sys.exit(7)
elif what == "killed":
    time.sleep(0.3)
    os.kill(os.getpid(), 9)
elif what == "idle":
    time.sleep(2.3)
elif what != "ends":
    time.sleep(300)
"""


class Clients:
    """A started run_clients.py with one fake client for each word."""

    def __init__(self, folder: Path, *whats: str):
        self.files = [folder / f"client-{index}" for index in range(len(whats))]
        self.file = folder / "samples.json"
        order = folder / "order.json"
        processes = [[sys.executable, "-c", FAKE, str(file), what] for file, what in zip(self.files, whats, strict=True)]
        order.write_text(json.dumps({"processes": processes, "samples": str(self.file)}))
        self.process = subprocess.Popen([sys.executable, str(SCRIPT), str(order)])

    @property
    def begun(self) -> bool:
        return all(file.exists() for file in self.files)

    def identities(self) -> list[Identity | None]:
        return [Identity.of(int(file.read_text().split()[0])) for file in self.files]

    def samples(self) -> list[list[tuple[float, float]]]:
        return json.loads(self.file.read_text())["cpu"]


@pytest.fixture
def clients(tmp_path, killed_at_the_end):
    def start(*whats: str) -> Clients:
        return killed_at_the_end(Clients(tmp_path, *whats))

    return start


def test_exit_code_is_0_after_the_last_process(clients):
    three = clients("ends", "ends", "ends")
    assert three.process.wait(60) == 0
    assert len(three.samples()) == 3 and three.begun


def test_cpu_time_of_each_process_is_sampled_once_a_second(clients):
    pair = clients("busy", "idle")
    assert pair.process.wait(60) == 0
    busy, idle = pair.samples()
    for file, taken in zip(pair.files, (busy, idle), strict=True):
        said = float(file.read_text().split()[1])
        assert abs(taken[0][0] - said) < 30.0 and said < taken[-1][0]
        assert taken[-1][0] - taken[-2][0] >= 1.0
    # The busy one works until it has had 2.3 s of a core. The idle one starts.
    assert max(used for _, used in busy) > 1.0 and max(used for _, used in busy) > 2 * max(used for _, used in idle)


@pytest.mark.parametrize(("what", "code"), [("fails", 7), ("killed", 128 + signal.SIGKILL)])
def test_failed_process_ends_the_others_and_gives_its_exit_code(clients, wait_for, what, code):
    pair = clients("hangs", what, "deaf")
    wait_for(lambda: pair.begun)
    others = [pair.identities()[0], pair.identities()[2]]
    begin = time.monotonic()
    assert pair.process.wait(60) == code
    assert time.monotonic() - begin < 60
    assert not any(other.alive for other in others)
    assert len(pair.samples()) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_processes_with_their_children(clients, wait_for, number):
    pair = clients("hangs", "family")
    wait_for(lambda: pair.begun)
    child = Identity.of(int(pair.files[1].with_suffix(".child").read_text()))
    everyone = [*pair.identities(), child]
    pair.process.send_signal(number)
    assert pair.process.wait(60) == 128 + number
    wait_for(lambda: not any(one.alive for one in everyone))


def test_processes_end_if_run_clients_is_killed(clients, wait_for):
    pair = clients("hangs", "deaf")
    wait_for(lambda: pair.begun)
    both = pair.identities()
    os.kill(pair.process.pid, signal.SIGKILL)
    pair.process.wait()
    wait_for(lambda: not any(one.alive for one in both))
