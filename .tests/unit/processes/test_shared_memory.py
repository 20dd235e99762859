"""Segments in /dev/shm of a killed process: recorded while it runs, removed after its end."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from servemark.processes import identity, shared_memory
from servemark.processes.shared_memory import FOLDER, Segments

HOLD = """
import sys, time
from multiprocessing import resource_tracker, shared_memory
kept = []
for name in sys.argv[1:]:
    segment = shared_memory.SharedMemory(name, create=True, size=4096)
    kept.append(segment)
    # Like a segment of C++ code, without a tracker.
    resource_tracker.unregister(segment._name, "shared_memory")
print("made", flush=True)
time.sleep(300)
"""


@pytest.fixture
def holder():
    """Start a process with segments of these names."""
    started = []

    def start(*names: str) -> subprocess.Popen[str]:
        child = subprocess.Popen([sys.executable, "-c", HOLD, *names], stdout=subprocess.PIPE, text=True)
        started.append((child, names))
        assert child.stdout.readline() == "made\n"
        return child

    yield start
    for child, names in started:
        child.kill()
        child.wait()
        child.stdout.close()
        for name in names:
            Path(FOLDER, name).unlink(missing_ok=True)


@pytest.fixture
def names():
    return [f"servemark-test-{os.getpid()}-{number} with a space" for number in range(2)]


def kill(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGKILL)
    child.wait()


def test_segment_of_killed_process_is_removed(holder, names, tmp_path):
    child, stranger = holder(names[0]), f"servemark-test-{os.getpid()}-stranger"
    Path(FOLDER, stranger).touch()
    try:
        segments = Segments(tmp_path)
        segments.look()
        kill(child)
        assert Path(FOLDER, names[0]).exists()
        assert segments.remove() == (names[0],)
        assert not Path(FOLDER, names[0]).exists() and Path(FOLDER, stranger).exists()
        assert segments.remove() == ()
    finally:
        Path(FOLDER, stranger).unlink()


def test_newer_file_of_the_same_name_is_kept(holder, names, tmp_path):
    child = holder(names[0])
    segments = Segments(tmp_path)
    segments.look()
    kill(child)
    # The first stays open, so that its inode cannot be the second's.
    with Path(FOLDER, names[0]).open():
        Path(FOLDER, names[0]).unlink()
        Path(FOLDER, names[0]).touch()
        assert segments.remove() == () and Path(FOLDER, names[0]).exists()


def test_second_call_within_the_interval_is_skipped(holder, names, monkeypatch):
    segments = Segments(None)
    segments.look()
    looked = []
    monkeypatch.setattr(identity, "descendants", lambda pid: looked.append(pid) or [])
    segments.look()
    assert looked == []
    segments.look(now=True)
    assert looked == [os.getpid()]


def test_next_attempt_removes_recorded_segments(holder, names, tmp_path):
    child = holder(*names)
    Segments(tmp_path).look()
    kill(child)
    assert sorted(shared_memory.remove_noted(tmp_path)) == sorted(names)
    assert shared_memory.remove_noted(tmp_path) == ()
    (tmp_path / f"{shared_memory.NOTE}.1").write_text("no inode\n")
    assert shared_memory.remove_noted(tmp_path) == ()


def test_young_tree_is_read_often_and_old_tree_every_10_s(monkeypatch):
    clock, looked = [0.0], []
    monkeypatch.setattr(shared_memory.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(identity, "descendants", lambda pid: looked.append(clock[0]) or [])
    segments = Segments(None)
    for tenth in range(3000):
        clock[0] = tenth / 10
        segments.look()
    gaps = [later - earlier for earlier, later in itertools.pairwise(looked)]
    assert (min(gaps), round(max(gaps))) == (1.0, 10)
    assert sum(moment <= 10 for moment in looked) >= 10 and gaps[-1] >= 10


SEMAPHORE = """
import multiprocessing, time
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
time.sleep(300)
"""


def test_named_semaphore_of_a_killed_process_is_removed(tmp_path):
    """glibc maps it under a temporary name. multiprocessing's tracker is killed too, so it removes nothing."""
    child = subprocess.Popen([sys.executable, "-c", SEMAPHORE], stdout=subprocess.PIPE, text=True, start_new_session=True)
    name = f"sem.{child.stdout.readline().strip().lstrip('/')}"
    try:
        assert Path(FOLDER, name).exists()
        segments = Segments(tmp_path)
        segments.look(now=True)
        assert name in segments.found
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        assert segments.remove() == (name,)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.stdout.close()
        Path(FOLDER, name).unlink(missing_ok=True)
