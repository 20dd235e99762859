"""The ledger stores good measurements, detects damaged ones, and works with two writers."""

import errno
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders.measured import KEY, OTHER, record
from builders.paths import LIBRARY
from servemark.errors import ServemarkError
from servemark.measurement import ledger as ledger_module
from servemark.measurement import silence
from servemark.measurement.ledger import PASSING, Ledger, file_sha256, link_or_copy
from servemark.records import Reason


@pytest.fixture
def raw(tmp_path):
    path = tmp_path / "chat-c1.raw.json"
    path.write_bytes(b"raw")
    return path


@pytest.fixture
def store(tmp_path):
    return Ledger(tmp_path / "ledger")


@pytest.mark.parametrize("verdict", ["VALID", "SUSPECT"])
def test_stored_measurement_is_found(store, raw, verdict):
    stored = store.store(KEY, record(verdict=verdict), raw)
    found = Ledger(store.root).find(KEY)
    assert found == stored
    assert found.record == record(verdict=verdict)
    assert found.raw.read_bytes() == b"raw"
    assert store.warnings == []


def test_a_key_that_was_never_stored_is_a_miss(store):
    assert store.find(KEY) is None
    assert store.missing([KEY]) == (KEY,)
    assert not store.root.exists()


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (record(verdict="INVALID"), "INVALID"),
        (record(key=OTHER), OTHER),
        (record(raw=b"other"), "raw file"),
        (record(raw_sha256=None), "raw file"),
    ],
)
def test_record_that_does_not_belong_is_refused(store, raw, bad, text):
    with pytest.raises(ValueError, match=text):
        store.store(KEY, bad, raw)
    assert store.find(KEY) is None


@pytest.mark.parametrize("key", ["", "../../etc", KEY.upper(), KEY[:-1], KEY + "\n"])
def test_a_key_that_is_no_sha256_is_refused(store, key):
    with pytest.raises(ValueError, match="64"):
        store.find(key)


def damage_raw(entry):
    (entry / "raw.json").unlink()
    (entry / "raw.json").write_bytes(b"rax")


def write_record(made):
    return lambda entry: made.write(entry / "measurement.json")


@pytest.mark.parametrize(
    "damage",
    [
        damage_raw,
        lambda entry: (entry / "raw.json").unlink(),
        lambda entry: (entry / "measurement.json").unlink(),
        lambda entry: (entry / "measurement.json").write_text('{"kind": "measurement"'),
        lambda entry: (entry / "measurement.json").write_text('{"kind": "plan", "version": 1}'),
        write_record(record(key=OTHER)),
        write_record(record(verdict="INVALID", reasons=(Reason(code="x", severity="INVALID", detail="x"),))),
    ],
    ids=["raw-changed", "raw-gone", "record-gone", "record-cut", "other-kind", "other-key", "invalid"],
)
def test_damaged_entry_is_moved_aside_and_can_be_stored_again(store, raw, damage):
    entry = store.store(KEY, record(), raw).raw.parent
    damage(entry)
    assert store.find(KEY) is None
    assert len(store.warnings) == 1
    assert str(store.root / "damaged") in store.warnings[0]
    assert not entry.exists()
    assert len(list((store.root / "damaged").iterdir())) == 1
    store.store(KEY, record(), raw)
    assert store.find(KEY).record == record()
    assert len(store.warnings) == 1


@pytest.mark.parametrize("name", ["RECORD", "RAW"])
def test_entry_that_is_unreadable_for_now_is_not_damaged(store, raw, monkeypatch, name):
    store.store(KEY, record(), raw)
    missing, opened = getattr(ledger_module, name), Path.open

    def stale(path, *args, **kwargs):
        if path.name == missing:
            raise OSError(errno.ESTALE, "Stale file handle")
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", stale)
    with pytest.raises(ServemarkError, match="Stale") as refused:
        store.find(KEY)
    assert refused.value.reason == "ledger_unreadable" and store.warnings == []
    monkeypatch.setattr(Path, "open", opened)
    assert store.find(KEY) is not None


def test_an_entry_that_is_a_file_is_damaged_too(store, raw):
    entry = store.root / KEY[:2] / KEY
    entry.parent.mkdir(parents=True)
    entry.write_text("")
    assert store.find(KEY) is None
    assert len(store.warnings) == 1


def test_storing_over_a_damaged_entry_replaces_it(store, raw):
    damage_raw(store.store(KEY, record(), raw).raw.parent)
    store.store(KEY, record(), raw)
    assert store.find(KEY) is not None
    assert len(store.warnings) == 1


def test_the_first_of_two_stores_wins(store, raw):
    store.store(KEY, record(deployment="first"), raw)
    assert store.store(KEY, record(deployment="second"), raw).record.deployment == "first"
    assert store.find(KEY).record.deployment == "first"
    assert [path.name for path in (store.root / KEY[:2]).iterdir()] == [KEY]


def test_many_processes_storing_one_key_leave_one_whole_entry(store, raw, tmp_path):
    go = tmp_path / "go"
    code = (
        "import sys, time, pathlib; from servemark.measurement.ledger import Ledger;"
        "from servemark.records import Measurement; root, made, raw, go, key = sys.argv[1:];"
        "made = Measurement.read(made)\nwhile not pathlib.Path(go).exists(): time.sleep(0.001)\n"
        "[Ledger(root).store(key, made, pathlib.Path(raw)) for _ in range(30)]"
    )
    writers = []
    for number in range(4):
        made = tmp_path / f"{number}.json"
        record(deployment=f"d{number}").write(made)
        arguments = [sys.executable, "-c", code, store.root, made, raw, go, KEY]
        library = str(LIBRARY)
        writers.append(subprocess.Popen(list(map(str, arguments)), env={**os.environ, "PYTHONPATH": library}))
    go.touch()
    assert [writer.wait(240) for writer in writers] == [0] * 4
    assert store.find(KEY).record.deployment in {"d0", "d1", "d2", "d3"}
    assert store.warnings == []
    assert [path.name for path in (store.root / KEY[:2]).iterdir()] == [KEY]


def test_a_failing_store_leaves_nothing_behind(store, raw, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ledger_module, "link_or_copy", full)
    with pytest.raises(OSError, match="No space"):
        store.store(KEY, record(), raw)
    assert list((store.root / KEY[:2]).iterdir()) == []


def test_a_rename_that_fails_for_another_reason_is_reported(store, raw, monkeypatch):
    def denied(*_):
        raise PermissionError(13, "denied")

    monkeypatch.setattr(ledger_module.os, "rename", denied)
    with pytest.raises(PermissionError):
        store.store(KEY, record(), raw)


def test_missing_keeps_order_and_detects_damage_without_moving(store, raw):
    store.store(KEY, record(), raw)
    keys = [hashlib.sha256(bytes([n])).hexdigest() for n in range(3)]
    assert store.missing([keys[2], KEY, keys[0]]) == (keys[2], keys[0])
    (store.root / KEY[:2] / KEY / "raw.json").unlink()
    assert store.missing([KEY]) == (KEY,)
    assert store.warnings == []


def test_raw_file_is_linked_or_else_copied(store, raw, tmp_path, monkeypatch):
    assert store.store(KEY, record(), raw).raw.stat().st_ino == raw.stat().st_ino

    def cannot_link(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(ledger_module.os, "link", cannot_link)
    link_or_copy(raw, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"raw"
    assert (tmp_path / "copy").stat().st_ino != raw.stat().st_ino


def test_stored_raw_file_is_copied_as_a_new_file(store, raw, tmp_path):
    os.utime(raw, (1, 1))
    target = tmp_path / "again" / "x.raw.json"
    store.store(KEY, record(), raw).copy_raw(target)
    assert file_sha256(target) == record().raw_sha256
    assert target.stat().st_mtime > 1
    assert [path.name for path in target.parent.iterdir()] == ["x.raw.json"]


def test_failed_copy_leaves_nothing(store, raw, tmp_path):
    stored = store.store(KEY, record(), raw)
    stored.raw.unlink()
    with pytest.raises(FileNotFoundError):
        stored.copy_raw(tmp_path / "again" / "x.raw.json")
    assert not list(tmp_path.glob("again/*"))


def test_a_5_mb_entry_is_found_without_parsing_it(store, raw):
    content = os.urandom(5_000_000)
    raw.write_bytes(content)
    store.store(KEY, record(raw=content), raw)
    times = []
    for _ in range(5):
        start = time.process_time()
        assert store.find(KEY) is not None
        times.append(time.process_time() - start)
    # The lowest CPU time of five look-ups. One takes about 10 ms.
    assert min(times) < 0.25


def test_a_thousand_keys_are_looked_up_in_two_seconds_of_cpu_time(store, raw):
    keys = [hashlib.sha256(str(n).encode()).hexdigest() for n in range(1000)]
    for key in keys[:500]:
        entry = store.root / key[:2] / key
        entry.mkdir(parents=True)
        (entry / "measurement.json").write_text(record(key=key).to_json())
        (entry / "raw.json").write_bytes(b"raw")
    took = []
    for _ in range(3):
        start = time.process_time()
        assert store.missing(keys) == tuple(keys[500:])
        took.append(time.process_time() - start)
    assert min(took) < 2.0


def test_a_forgotten_entry_is_a_miss_and_can_be_stored_again(store, raw):
    store.store(KEY, record(), raw)
    for others in (None, "0" * 64):
        store.forget(KEY, others)
        assert store.missing([KEY]) == (), "another result is stored under this key"
    mine = file_sha256(raw)
    store.forget(KEY, mine)
    store.forget(OTHER, mine)  # never stored: nothing to do
    assert store.missing([KEY]) == (KEY,)
    assert any((store.root / "damaged").rglob("*.json")), "kept aside"
    assert store.store(KEY, record(verdict="SUSPECT"), raw).record.verdict == "SUSPECT"


def test_an_interrupted_measurement_is_never_kept(store, raw):
    assert silence.INTERRUPTED in PASSING
    reason = Reason(code=silence.INTERRUPTED, severity="SUSPECT", detail="x")
    interrupted = record(verdict="SUSPECT", reasons=(reason,))
    with pytest.raises(ValueError, match="ledger"):
        store.store(KEY, interrupted, raw)
    assert store.find(KEY) is None
