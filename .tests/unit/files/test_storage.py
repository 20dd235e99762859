"""Messages about a file system that refuses a write: which one, free space, remedy."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from servemark.archive import seal as archive
from servemark.environments.build import _pip_refusal
from servemark.environments.lockfiles import Lock
from servemark.files import private, storage
from servemark.measurement import reasons
from servemark.progress import Progress
from servemark.records import write_atomically


def error(code: int, *names: str) -> OSError:
    found = OSError(code, os.strerror(code))
    if names:
        found.filename, found.filename2 = (*names, None)[:2]
    return found


@pytest.fixture
def broken(monkeypatch):
    """Writes that end on disk fail with this errno."""

    def with_code(code: int) -> None:
        def fail(*_):
            raise error(code)

        monkeypatch.setattr(os, "fsync", fail)

    return with_code


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.ENOSPC, "disk_full"),
        (errno.EDQUOT, "quota_exceeded"),
        (errno.EROFS, "read_only"),
        (errno.EACCES, "not_permitted"),
        (errno.EPERM, "not_permitted"),
    ],
)
def test_message_has_path_file_system_and_remedy(tmp_path, code, reason):
    refused = storage.refusal(error(code, str(tmp_path / "x" / "y")))
    assert refused and refused.reason == reason and refused.exit_code == 1
    assert str(tmp_path / "x" / "y") in refused.what
    mentioned = tmp_path if reason == "not_permitted" else storage.mount_point(tmp_path)
    assert str(mentioned) in refused.what
    assert refused.do and "SERVEMARK_RUNTIME_DIR" in refused.do and "`cache`" in refused.do


def test_other_errors_are_no_refusal():
    assert storage.refusal(error(errno.EIO)) is None
    assert storage.refusal(ValueError("x")) is None
    assert storage.refusal(None) is None


def test_copy_names_its_destination_and_needed_bytes(tmp_path):
    refused = storage.refusal(error(errno.ENOSPC, "/source", str(tmp_path / "copy")), needed=3 * 2**30)
    assert refused and str(tmp_path / "copy") in refused.what and "/source" not in refused.what
    assert "3.0 GiB" in refused.what


def test_error_of_a_library_is_recognised_by_its_text(tmp_path):
    class SafetensorError(Exception):
        pass

    refused = storage.refusal(SafetensorError("I/O error: No space left on device (os error 28)"), tmp_path)
    assert refused and refused.reason == "disk_full" and str(tmp_path) in refused.what
    assert storage.refusal(shutil.Error([("a", "b", str(error(errno.EROFS, "b")))]), tmp_path).reason == "read_only"
    assert storage.refusal(RuntimeError("Permission denied (publickey)"), tmp_path) is None


def test_error_without_file_name_names_the_place_that_refuses_now(tmp_path, monkeypatch):
    healthy, full = tmp_path / "healthy", tmp_path / "full"
    healthy.mkdir()
    full.mkdir()
    real = tempfile.TemporaryFile

    def temporary(dir, **more):
        if Path(dir) == full:
            raise error(errno.ENOSPC)
        return real(dir=dir, **more)

    monkeypatch.setattr(tempfile, "TemporaryFile", temporary)
    assert str(full) in storage.refusal(error(errno.ENOSPC), [healthy, full]).what
    assert [refused.reason for refused in storage.probe([healthy, full])] == ["disk_full"]
    with pytest.raises(storage.StorageRefused):
        storage.require(full)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM])
def test_permission_error_without_file_name_needs_a_refusing_place(tmp_path, monkeypatch, code):
    places = [tmp_path / "open", tmp_path / "closed"]
    assert storage.refusal(error(code)) is None and storage.refusal(error(code), places) is None
    refusing = {places[0]: error(errno.ENOSPC), places[1]: error(errno.EACCES)}
    monkeypatch.setattr(storage, "_try", lambda folder, _: refusing[folder])
    refused = storage.refusal(error(code), places)
    assert refused and refused.reason == "not_permitted" and str(places[1]) in refused.what


@pytest.mark.parametrize(("code", "counts"), [(errno.ENOSPC, True), (errno.EROFS, False), (errno.EACCES, False)])
def test_shared_folder_counts_only_if_it_is_full(tmp_path, monkeypatch, code, counts):
    monkeypatch.setattr(storage, "_try", lambda folder, _: error(code, str(folder)))
    assert bool(storage.probe([], shared=[tmp_path])) is counts
    assert storage.probe([tmp_path])


def test_probe_leaves_nothing_and_makes_no_folder(tmp_path):
    assert storage.probe([tmp_path, tmp_path / "not" / "there"]) == []
    assert list(tmp_path.iterdir()) == []


def test_record_on_full_disk_names_its_path_and_leaves_no_draft(tmp_path, broken):
    (tmp_path / "record.json").write_text("old")
    broken(errno.EDQUOT)
    with pytest.raises(OSError) as caught:
        write_atomically(tmp_path / "record.json", "new")
    assert caught.value.filename == str(tmp_path / "record.json")
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]
    assert (tmp_path / "record.json").read_text() == "old"


def test_archive_on_full_disk_states_what_it_needs(tmp_path, broken):
    (tmp_path / "big").write_bytes(bytes(2**20))
    broken(errno.ENOSPC)
    with pytest.raises(storage.StorageRefused) as caught:
        archive.seal({"big": tmp_path / "big"}, tmp_path / "out" / "run.tar.zst")
    assert caught.value.reason == "disk_full" and "1.0 MiB" in caught.value.what
    assert list((tmp_path / "out").iterdir()) == []


def test_pip_on_full_disk_states_what_the_environment_needs(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "lock"
    log.write_text("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n")
    lock = Lock.__new__(Lock)
    for name, gib in (("wheels_gib", 4.0), ("installed_gib", 7.5)):
        object.__setattr__(lock, name, gib)
    refused = _pip_refusal("installing", log, None, lock, folder)
    assert refused.reason == "disk_full" and "12.0 GiB" in refused.what and str(folder) in refused.what


@pytest.mark.parametrize("reason", ["disk_full", "quota_exceeded", "read_only", "not_permitted", "no_space_left"])
def test_point_lost_to_a_disk_is_always_measured_again(reason):
    assert reason in reasons.OUTSIDE


def test_progress_that_cannot_be_written_ends_no_stage(tmp_path):
    (tmp_path / "file").write_text("")
    progress = Progress(tmp_path / "file" / "progress.jsonl", "measure")
    progress.say("one")
    assert progress.lost


def test_tidying_up_prints_a_refusal_and_no_traceback(capfd):
    def unlink():
        raise error(errno.EROFS, "/results/token")

    storage.tidy(unlink)
    said = capfd.readouterr().err
    assert said.startswith("servemark ") and "/results/token" in said and "Traceback" not in said


def test_runtime_folder_is_named_without_being_made(tmp_path, monkeypatch):
    monkeypatch.setenv(private.RUNTIME_VARIABLE, str(tmp_path / "runtime"))
    assert private.runtime_folder() == tmp_path / "runtime" and not (tmp_path / "runtime").exists()
