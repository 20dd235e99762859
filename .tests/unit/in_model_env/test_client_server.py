"""The client's processes: forked from one process, sampled and ended together."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from builders.client_processes import ClientServer, Point
from servemark.deployment.client_server import GONE
from servemark.processes.identity import Identity

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
elif what in ("fails", "killed"):
    while not Path("go").exists():
        time.sleep(0.02)
    sys.exit(7) if what == "fails" else os.kill(os.getpid(), 9)
elif what == "idle":
    time.sleep(2.3)
elif what == "tells":
    links = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
    barrier = os.environ.get("SERVEMARK_START_BARRIER")
    told = {"sockets": sum(link.startswith("socket:") for link in links), "barrier": barrier, "name": open("/proc/self/comm").read()}
    told["own"] = barrier is not None and os.readlink(f"/proc/self/fd/{barrier}").startswith("socket:")
    told["extra"] = os.environ.get("EXTRA")
    os.write(1, (str(told) + chr(10)).encode())
elif what != "ends":
    time.sleep(300)
"""


class Clients(Point):
    """A started load point with one fake client for each word."""

    def __init__(self, server: ClientServer, *whats: str, samples: str | None = None, **variables: str):
        number = next(server.numbers)
        self.files = [server.folder / f"client-{number}-{index}" for index in range(len(whats))]
        commands = [["fake", str(file), what] for file, what in zip(self.files, whats, strict=True)]
        super().__init__(server, *commands, samples=samples, **variables)

    @property
    def begun(self) -> bool:
        return all(file.exists() for file in self.files)

    def identities(self) -> list[Identity | None]:
        return [Identity.of(int(file.read_text().split()[0])) for file in self.files]

    def samples(self) -> list[list[tuple[float, float]]]:
        return json.loads(self.samples_file.read_text())["cpu"]

    def told(self) -> list[dict]:
        return [eval(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def server(tmp_path, killed_at_the_end) -> ClientServer:
    return killed_at_the_end(ClientServer(tmp_path, FAKE))


@pytest.fixture
def clients(server, killed_at_the_end):
    return lambda *whats, **variables: killed_at_the_end(Clients(server, *whats, **variables))


def test_exit_code_is_0_after_the_last_process(clients):
    three = clients("ends", "ends", "ends")
    assert three.process.wait(60) == 0, three.log.read_text()
    assert len(three.samples()) == 3 and three.begun


def test_cpu_time_of_each_process_is_sampled_once_a_second(clients):
    pair = clients("busy", "idle")
    assert pair.process.wait(60) == 0
    busy, idle = pair.samples()
    for file, taken in zip(pair.files, (busy, idle), strict=True):
        said = float(file.read_text().split()[1])
        assert abs(taken[0][0] - said) < 30.0 and said < taken[-1][0]
        assert taken[-1][0] - taken[-2][0] >= 1.0
    # The busy one works until it has had 2.3 s of a core. The other one sleeps.
    assert max(used for _, used in busy) > 1.0 and max(used for _, used in busy) > 2 * max(used for _, used in idle)


@pytest.mark.parametrize(("what", "code"), [("fails", 7), ("killed", 128 + signal.SIGKILL)])
def test_failed_process_ends_the_others_and_gives_its_exit_code(clients, wait_for, tmp_path, what, code):
    pair = clients("hangs", what, "deaf")
    wait_for(lambda: pair.begun)
    others = [pair.identities()[0], pair.identities()[2]]
    (tmp_path / "go").touch()
    assert pair.process.wait(60) == code
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


def test_processes_end_with_client_server_and_run_clients_then_exits_with_75(clients, server, wait_for):
    pair = clients("hangs", "deaf")
    wait_for(lambda: pair.begun)
    both = pair.identities()
    server.process.kill()
    assert pair.process.wait(60) == 1
    wait_for(lambda: not any(one.alive for one in both))
    later = clients("ends")
    assert later.process.wait(60) == GONE and not later.begun
    assert str(server.log) in later.log.read_text()


def test_point_after_a_killed_one_succeeds(clients, wait_for):
    pair = clients("hangs", "deaf")
    wait_for(lambda: pair.begun)
    both = pair.identities()
    psutil.Process(both[0].pid).parent().kill()
    assert pair.process.wait(60) == 1
    wait_for(lambda: not any(one.alive for one in both))
    assert clients("ends").process.wait(60) == 0


def test_next_point_begins_after_the_end_of_a_killed_one(clients, wait_for):
    pair = clients("hangs", "deaf")
    wait_for(lambda: pair.begun)
    both = pair.identities()
    pair.process.kill()
    later = clients("ends")
    wait_for(lambda: later.begun)
    assert not any(one.alive for one in both)
    assert later.process.wait(60) == 0


def test_exit_code_does_not_depend_on_the_samples(clients):
    full = clients("ends", samples="/dev/full")
    assert full.process.wait(60) == 0, full.log.read_text()


def test_points_follow_each_other_in_one_client_server(clients, server, tmp_path):
    first = clients("tells", EXTRA="1")
    assert first.process.wait(60) == 0, first.log.read_text()
    (tmp_path / "go").touch()
    assert clients("fails").process.wait(60) == 7
    second = clients("tells", "tells", "tells")
    assert second.process.wait(60) == 0, second.log.read_text()
    (alone,) = first.told()
    assert (alone["extra"], alone["barrier"], alone["sockets"]) == ("1", None, 0)
    assert {each["extra"] for each in second.told()} == {None}, "a variable of the first point"
    # With the socket of another process, client_server.py would not detect that process's end.
    assert [(each["own"], each["sockets"]) for each in second.told()] == [(True, 1)] * 3
    assert {each["name"].strip() for each in second.told()} == {"bench-client"}
    assert server.process.poll() is None and server.log.read_text() == ""


def test_failed_import_is_reported_in_the_points_log(tmp_path, killed_at_the_end):
    server = killed_at_the_end(ClientServer(tmp_path, "no script: a syntax error"))
    point = killed_at_the_end(Clients(server, "ends"))
    assert point.process.wait(60) == 1
    assert "SyntaxError" in point.log.read_text() and "SyntaxError" in server.log.read_text()
    assert server.process.wait(60) == 1


@pytest.fixture
def lost_server(tmp_path, killed_at_the_end) -> ClientServer:
    """A client_server.py that ended before it had its socket."""
    server = killed_at_the_end(ClientServer(tmp_path, FAKE))
    server.process.kill()
    server.process.wait()
    Path(server.socket).unlink(missing_ok=True)
    return server


def test_signal_ends_the_wait_for_the_socket(lost_server, killed_at_the_end, wait_for):
    point = killed_at_the_end(Clients(lost_server, "ends"))
    wait_for(lambda: handles_sigterm(point.process.pid))
    point.process.terminate()
    assert point.process.wait(60) == 128 + signal.SIGTERM


def test_signal_during_the_import_ends_the_wait_and_no_client_starts(tmp_path, killed_at_the_end, wait_for):
    server = killed_at_the_end(ClientServer(tmp_path, FAKE, slow_load=tmp_path / "go"))
    point = killed_at_the_end(Clients(server, "ends"))
    wait_for(lambda: Path(server.socket).exists() and handles_sigterm(point.process.pid))
    time.sleep(0.2)  # it connects
    point.process.terminate()
    assert point.process.wait(60) == 128 + signal.SIGTERM
    (tmp_path / "go").touch()
    later = killed_at_the_end(Clients(server, "ends"))
    assert later.process.wait(60) == 0
    assert not point.begun and not point.samples_file.exists()


def handles_sigterm(pid: int) -> bool:
    (caught,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt:")]
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_end_before_its_socket_is_reported(lost_server, killed_at_the_end):
    lost_server.note(ended_at="2026-01-02T03:04:05Z")
    point = killed_at_the_end(Clients(lost_server, "ends"))
    assert point.process.wait(60) == GONE
    assert str(lost_server.log) in point.log.read_text() and not point.begun
