"""Digests of files: what is remembered, and when a file is read again."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from servemark.files import content
from servemark.files.content import Hashes

LONG_AGO = time.time() - 3600


def written(path: Path, text: str, when: float = LONG_AGO) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (when, when))
    return str(path)


@pytest.fixture
def settled(monkeypatch) -> None:
    """Every file was changed long before it is read; ctime cannot be set."""
    monkeypatch.setattr(content, "_CLOCK_S", -1.0)


def look(cache: Path | None, *paths: str) -> tuple[list[str | None], int]:
    """Return digests, and the bytes read for them, as a process of its own would."""
    hashes, read = Hashes(cache, "test"), [0]
    found = hashes.of(paths, lambda size: read.append(size))
    hashes.save()
    return found, read[-1]


def test_file_is_read_once_until_it_changes(tmp_path, settled):
    path = written(tmp_path / "a", "one")
    first = look(tmp_path / "cache", path)
    assert first == ([hashlib.sha256(b"one").hexdigest()], 3)
    assert look(tmp_path / "cache", path) == (first[0], 0)
    assert look(None, path) == first, "without a cache it is read"
    written(tmp_path / "a", "two", LONG_AGO + 1)
    assert look(tmp_path / "cache", path) == ([hashlib.sha256(b"two").hexdigest()], 3)


def test_same_size_and_modification_time_do_not_hide_a_change(tmp_path, settled):
    path = written(tmp_path / "a", "one")
    look(tmp_path / "cache", path)
    time.sleep(0.05)  # more than a tick of the kernel's clock
    written(tmp_path / "a", "two")
    assert look(tmp_path / "cache", path)[0] == [hashlib.sha256(b"two").hexdigest()]
    os.replace(written(tmp_path / "b", "six"), path)
    assert look(tmp_path / "cache", path)[0] == [hashlib.sha256(b"six").hexdigest()]


def test_file_changed_just_before_its_reading_is_read_again(tmp_path):
    path = written(tmp_path / "a", "one", time.time())
    assert look(tmp_path / "cache", path)[1] == look(tmp_path / "cache", path)[1] == 3


def test_missing_files_and_folders_have_no_digest(tmp_path):
    assert look(None, str(tmp_path), str(tmp_path / "missing"), str(tmp_path / "a" / "b"))[0] == [None] * 3


def test_digests_are_in_order_and_all_bytes_are_counted(tmp_path):
    texts = [str(number) * number for number in range(150)]
    paths = [written(tmp_path / str(number), text) for number, text in enumerate(texts)]
    digests, read = look(None, *paths)
    assert digests == [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    assert read == sum(map(len, texts))


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": 3}', "null"])
def test_damaged_memory_is_ignored(tmp_path, settled, text):
    path = written(tmp_path / "a", "one")
    found = look(tmp_path / "cache", path)
    (store,) = (tmp_path / "cache").glob("hashes-*/*.json")
    store.write_text(text)
    assert look(tmp_path / "cache", path) == found


def test_memory_is_private_and_a_closed_cache_is_named(tmp_path, settled):
    path = written(tmp_path / "a", "one")
    look(tmp_path / "cache", path)
    (store,) = (tmp_path / "cache").glob("hashes-*")
    assert store.stat().st_mode & 0o077 == 0
    (tmp_path / "closed").write_text("no folder")
    hashes = Hashes(tmp_path / "closed", "test")
    hashes.of([path])
    hashes.save()
    assert isinstance(hashes.refused, OSError)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda folder: written(folder / "a.json", "1", LONG_AGO + 9), True),
        (lambda folder: written(folder / ".git" / "x", ""), True),
        (lambda folder: written(folder / "__pycache__" / "x.pyc", ""), True),
        (lambda folder: written(folder / "a.json", "2"), False),
        (lambda folder: written(folder / "more", ""), False),
        (lambda folder: (folder / "a.json").rename(folder / "b.json"), False),
        (lambda folder: (folder / "in" / "c").unlink(), False),
    ],
)
def test_digest_of_a_folder_is_that_of_names_and_contents(tmp_path, change, same):
    folder = tmp_path / "folder"
    written(folder / "a.json", "1")
    written(folder / "in" / "c", "3")
    before = content.of_path(str(folder), Hashes(None, ""))
    change(folder)
    assert (content.of_path(str(folder), Hashes(None, "")) == before) is same


def test_folder_and_its_copy_have_one_digest_and_a_missing_path_none(tmp_path):
    for name in ("one", "other"):
        written(tmp_path / name / "a", "1")
    one, other = (content.of_path(str(tmp_path / name), Hashes(None, "")) for name in ("one", "other"))
    assert one == other is not None
    assert content.of_path(str(tmp_path / "missing"), Hashes(None, "")) is None


def test_links_are_followed_and_loops_end(tmp_path):
    written(tmp_path / "real" / "a", "1")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "loop").symlink_to(tmp_path / "real")
    assert list(content.walk(str(tmp_path / "folder"))) == ["link/a"]
