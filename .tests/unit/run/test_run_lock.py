"""One run at a time in a checkout; the lock of a dead run is removed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from builders.paths import LIBRARY
from servemark.errors import RunLocked
from servemark.processes.identity import Identity, myself
from servemark.run import run_lock
from snakemake_executor_plugin_slurm_guarded.records import Checkout

CLAIM = """
import sys, time; from pathlib import Path; from servemark.run import run_lock
for message in run_lock.claim(Path.cwd(), sys.argv[1:]): print(message)
print('claimed', flush=True); time.sleep(300)
"""


def owner_file(folder: Path) -> Path:
    return folder / ".snakemake" / "servemark-owner.json"


def write_owner(folder: Path, **changes):
    owner = {
        "host": socket.gethostname(),
        "pid": 1,
        "identity": "1:1",
        "since": "2026-03-04T10:00:00Z",
        "command": "--cores 2",
    }
    owner_file(folder).parent.mkdir(exist_ok=True)
    owner_file(folder).write_text(json.dumps(owner | changes))


def leave_locks(folder: Path) -> list[Path]:
    """Create the files that a killed Snakemake leaves."""
    locks = folder / ".snakemake" / "locks"
    locks.mkdir(parents=True)
    left = [locks / "0.input.lock", locks / "0.output.lock"]
    for lock in left:
        lock.write_text("results/demo/config.json\n")
    return left


@pytest.fixture
def other(tmp_path):
    """Another process that owns the checkout."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLAIM, "--cores", "2"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": LIBRARY},
    )
    assert process.stdout.readline() == "claimed\n"
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("argv", "executes"),
    [
        ([], True),
        (["--cores", "2", "results/demo/report.html"], True),
        (["--profile", "profiles/local", "-F"], True),
        (["--keep-going", "-k", "-p"], True),
        (["-c2", "-j", "3", "-e", "local"], True),
        (["--touch"], True),
        (["-t"], True),
        (["-pS"], False),
        (["-FD"], False),
        (["--lint"], False),
        (["--report=report.html"], False),
        (["--summary", "--cores", "1"], False),
        (["--li"], False),
        (["--lp"], False),
        (["--cm", "results/demo/config.json"], False),
        (["-l"], False),
        (["-D"], False),
        (["--unlock"], False),
    ],
)
def test_which_command_lines_run_jobs(argv, executes):
    assert run_lock.executes(argv, dry_run=False) is executes
    assert run_lock.executes(argv, dry_run=True) is False


def test_claim_names_its_owner_and_release_removes_it(tmp_path):
    assert run_lock.claim(tmp_path, ["--cores", "two words"]) == []
    owner = json.loads(owner_file(tmp_path).read_text())
    assert (owner["host"], owner["pid"]) == (socket.gethostname(), os.getpid())
    assert Identity.parse(owner["identity"]) == myself()
    assert owner["command"] == "--cores 'two words'"
    run_lock.release(tmp_path)
    assert not owner_file(tmp_path).exists()
    run_lock.release(tmp_path)


def test_second_run_is_refused_and_first_one_named(tmp_path, other):
    with pytest.raises(RunLocked) as refused:
        run_lock.claim(tmp_path, ["--cores", "1"])
    assert (refused.value.exit_code, refused.value.reason) == (2, "run_locked")
    message = refused.value.message()
    assert f"process {other.pid} on {socket.gethostname()}" in message and "(--cores 2)" in message
    assert "Ctrl-C" in message and "delete" not in message
    run_lock.release(tmp_path)
    assert owner_file(tmp_path).exists(), "only the owner releases"


def test_read_only_call_during_a_run_changes_nothing(tmp_path, other):
    before = owner_file(tmp_path).read_text()
    assert run_lock.claim(tmp_path, ["-np"], dry_run=True) == []
    assert owner_file(tmp_path).read_text() == before


def test_read_only_call_in_fresh_checkout_changes_nothing(tmp_path):
    locks = leave_locks(tmp_path)
    assert run_lock.claim(tmp_path, [], dry_run=True) == []
    assert not owner_file(tmp_path).exists()
    assert all(lock.exists() for lock in locks)


def test_lock_of_killed_run_is_removed_with_a_message(tmp_path, other):
    locks = leave_locks(tmp_path)
    other.kill()
    other.wait()
    (message,) = run_lock.claim(tmp_path, ["--cores", "1"])
    assert f"process {other.pid}" in message
    assert not any(lock.exists() for lock in locks)
    assert json.loads(owner_file(tmp_path).read_text())["pid"] == os.getpid()


def test_locks_without_any_owner_are_removed_with_a_message(tmp_path):
    locks = leave_locks(tmp_path)
    assert len(run_lock.claim(tmp_path, [])) == 1 and not any(lock.exists() for lock in locks)


def test_dead_run_without_lock_gives_no_message(tmp_path):
    write_owner(tmp_path, pid=os.getpid(), identity=f"{os.getpid()}:1")
    assert run_lock.claim(tmp_path, []) == [], "a reused process id is not the old owner"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"host": "here"}',
        "\udcff",
        '{"host": "%HOST%", "pid": 1, "identity": "?", "since": "", "command": ""}',
    ],
    ids=["empty", "cut", "list", "null", "keys missing", "not text", "no identity"],
)
def test_damaged_owner_file_counts_as_dead_with_a_message(tmp_path, capsys, text):
    leave_locks(tmp_path)
    owner_file(tmp_path).write_bytes(text.replace("%HOST%", socket.gethostname()).encode("utf-8", errors="surrogateescape"))
    assert len(run_lock.claim(tmp_path, [])) == 1
    assert str(owner_file(tmp_path)) in capsys.readouterr().err
    assert json.loads(owner_file(tmp_path).read_text())["pid"] == os.getpid()


def test_run_on_another_host_counts_as_alive(tmp_path):
    write_owner(tmp_path, host="login02", pid=4711)
    leave_locks(tmp_path)
    with pytest.raises(RunLocked, match="process 4711 on login02") as refused:
        run_lock.claim(tmp_path, [])
    assert f"delete {owner_file(tmp_path)}" in refused.value.do
    run_lock.release(tmp_path)
    assert owner_file(tmp_path).exists()


@pytest.fixture
def own(tmp_path):
    """A checkout that another process is using."""
    folder = tmp_path / "own"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", CLAIM, "--cores", "2"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": LIBRARY},
    )
    assert process.stdout.readline() == "claimed\n"
    leave_locks(folder)
    yield folder
    process.kill()
    process.wait()


def test_a_copied_run_lock_refuses_nothing(own):
    copy = own.with_name("copy")
    shutil.copytree(own, copy)
    (message,) = run_lock.claim(copy, [])
    assert str(own) in message
    assert list((copy / ".snakemake/locks").iterdir()) == [] != list((own / ".snakemake/locks").iterdir())
    assert json.loads(owner_file(copy).read_text())["pid"] == os.getpid()
    with pytest.raises(RunLocked):
        run_lock.claim(own, [])
    run_lock.release(copy)
    assert run_lock.claim(copy, []) == []


def test_a_moved_checkout_is_still_locked(own):
    with pytest.raises(RunLocked):
        run_lock.claim(own.rename(own.with_name("moved")), [])


@pytest.mark.parametrize("inode", [None, 1])
def test_another_login_node_finds_the_run_lock_of_a_checkout(tmp_path, inode):
    """The path is the same, but on some file systems each login node has its own inode numbers."""
    checkout = Checkout.of(tmp_path).model_dump() | {"host": "login02"} | ({"inode": inode} if inode else {})
    write_owner(tmp_path, host="login02", checkout=checkout)
    with pytest.raises(RunLocked):
        run_lock.claim(tmp_path, [])


def test_a_run_lock_copied_from_another_machine_refuses_nothing(tmp_path):
    write_owner(tmp_path, host="laptop", checkout={"path": "/home/me/servemark", "inode": 1, "host": "laptop"})
    (message,) = run_lock.claim(tmp_path, [])
    assert "/home/me/servemark" in message
