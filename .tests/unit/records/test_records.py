"""Records are complete or absent, and wrong kinds are refused; errors have three parts."""

from __future__ import annotations

import json
import os
import threading

import pytest

from builders import report_data
from servemark.errors import (
    ConfigError,
    EnvironmentRefused,
    PlanRefused,
    RunLocked,
    ServemarkError,
    StageFailed,
    WeightsRefused,
)
from servemark.records import ALL_RECORDS, Check, Cluster, EndpointStatus, Gpu, Held, Record, Topology, utc_now, write_atomically


def test_record_is_read_as_it_was_written(tmp_path):
    for number, record in enumerate((report_data.hardware(), report_data.plan(), report_data.measurement())):
        path = tmp_path / "new" / "folders" / f"{number}.json"
        record.write(path)
        assert type(record).read(path) == record
        data = json.loads(path.read_text())
        assert list(data)[:2] == ["kind", "version"] and data["kind"] == record.KIND


def test_each_record_has_its_own_kind():
    # No rule reads the records of a served endpoint.
    known = {*ALL_RECORDS, EndpointStatus, Held}
    assert known == set(Record.__subclasses__())
    assert len({kind.KIND for kind in known}) == len(known) and all(kind.KIND for kind in known)
    assert len(set(ALL_RECORDS)) == len(ALL_RECORDS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "record_missing"),
        ("", "record_broken"),
        ('{"kind": "cluster", "vers', "record_broken"),
        ("[1]", "record_broken"),
        ('{"kind": "endpoint", "version": 1, "deployment": "a"}', "record_broken"),
        ('{"kind": "cluster", "version": 2, "deployment": "a"}', "record_broken"),
        ('{"kind": "cluster", "version": 1}', "record_broken"),
        ('{"kind": "cluster", "version": 1, "deployment": "a", "extra": 1}', "record_broken"),
    ],
)
def test_wrong_record_is_refused_with_remedy(tmp_path, text, reason):
    path = tmp_path / "cluster.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ServemarkError) as refused:
        Cluster.read(path)
    assert refused.value.reason == reason
    assert str(path) in refused.value.what and "snakemake again" in refused.value.do


def test_folder_in_place_of_record_is_refused(tmp_path):
    with pytest.raises(ServemarkError) as refused:
        Cluster.read(tmp_path)
    assert refused.value.reason == "record_broken"


def test_reader_gets_old_or_new_record_but_never_a_part(tmp_path):
    path = tmp_path / "check.json"
    records = [Check(run=name * 20_000, valid=1, suspect=0) for name in ("a", "b")]
    records[0].write(path)
    ended = threading.Event()
    written = []

    def writer():
        while not ended.is_set():
            records[len(written) % 2].write(path)
            written.append(path)

    thread = threading.Thread(target=writer)
    thread.start()
    try:
        seen = 0
        while seen < 60 or len(written) < 60:
            assert Check.read(path) in records
            seen += 1
    finally:
        ended.set()
        thread.join()
    assert [p.name for p in tmp_path.iterdir()] == ["check.json"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "check.json"
    write_atomically(path, "old", mode=0o600)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError) as full:
        write_atomically(path, "new")
    assert full.value.errno == 28
    assert path.read_text() == "old" and path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["check.json"]


def test_times_are_utc_and_sort_as_text():
    first, second = utc_now(), utc_now()
    assert first.endswith("+00:00") and len(first) == len("2026-03-04T10:12:44.123+00:00")
    assert first <= second


def test_devices_are_gpus_or_else_cpus():
    gpus = (Gpu(name="H200", memory_mib=1), Gpu(name="H200", memory_mib=1))
    assert report_data.hardware(accelerator="cuda", gpus=gpus, cpu_count=64).devices == 2
    assert report_data.hardware(cpu_count=64).devices == 64


def test_ranks_multiply():
    assert Topology(tensor_parallel=2, pipeline_parallel=3, data_parallel=5, replicas=7).world_size == 210


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "It broke."),
        ({"look": "a.log"}, "It broke.\n  look at: a.log"),
        ({"look": "a.log", "do": "Mend it."}, "It broke.\n  look at: a.log\n  what to do: Mend it."),
    ],
)
def test_error_message_has_three_parts(given, message):
    error = ServemarkError("It broke.", **given)
    assert error.message() == str(error) == message


@pytest.mark.parametrize(
    ("kind", "exit_code", "reason"),
    [
        (ServemarkError, 1, "error"),
        (ConfigError, 2, "bad_config"),
        (RunLocked, 2, "run_locked"),
        (EnvironmentRefused, 1, "environment_refused"),
        (WeightsRefused, 1, "weights_refused"),
        (PlanRefused, 1, "plan_refused"),
        (StageFailed, 1, "stage_failed"),
    ],
)
def test_exit_codes_and_reasons(kind, exit_code, reason):
    assert (kind("x").exit_code, kind("x").reason) == (exit_code, reason)
    assert kind("x", reason="port_taken").reason == "port_taken"


def test_failure_of_stage_keeps_quoted_lines():
    assert StageFailed("x", quote=["a", "b"]).quote == ("a", "b")
    assert StageFailed("x").quote == ()
