"""Unpacking of untrusted archives: each attack has a reason code, and no temporary file is left."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from pathlib import Path

import pytest
import zstandard

from servemark.cli import main as cli
from servemark.verification import unpack
from servemark.verification.unpack import Unsafe, unpacked


@pytest.fixture(autouse=True)
def room(tmp_path, monkeypatch) -> Path:
    """Return the folder for temporary folders. It is empty after each test."""
    folder = tmp_path / "room"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def member(name: str, content: bytes = b"x", **attributes: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in attributes.items():
        setattr(info, key, value)
    return info, content


def tar_of(*members: tuple[tarfile.TarInfo, bytes], **options: object) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", **({"format": tarfile.PAX_FORMAT} | options)) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def pack(folder: Path, tar: bytes) -> Path:
    path = folder / "run.tar.zst"
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(tar))
    return path


GOOD = member("run/a.json", b"{}")


def refused(path: Path) -> str:
    with pytest.raises(Unsafe) as caught:
        with unpacked(path):
            pass
    assert path.name in caught.value.what and caught.value.look == str(path) and caught.value.do
    assert caught.value.exit_code == (2 if caught.value.reason == "not_an_archive" else 1)
    return caught.value.reason


def test_files_are_unpacked_into_private_folder(tmp_path, room):
    long = f"{'d' * 90}/{'e' * 90}/größe {'f' * 90}.txt"
    path = pack(tmp_path, tar_of(GOOD, member("run/empty", b""), member(f"run/{long}", b"u" * 6_000_000)))
    with unpacked(path) as found:
        (place,) = room.iterdir()
        assert place.stat().st_mode & 0o777 == 0o700 and found.folder.is_relative_to(place)
        assert found.top == "run" and set(found.digests) == {"a.json", "empty", long}
        assert (found.folder / "a.json").read_bytes() == b"{}" and (found.folder / long).stat().st_size == 6_000_000
        assert found.digests["empty"].startswith("e3b0c442")


def test_file_that_is_not_needed_has_digest_and_size_only(tmp_path):
    path = pack(tmp_path, tar_of(GOOD, member("run/b.json", b"12345")))
    with unpacked(path, lambda name: name != "b.json") as found:
        assert (found.folder / "a.json").is_file() and not (found.folder / "b.json").exists()
        assert found.sizes == {"a.json": 2, "b.json": 5}
        assert found.digests["b.json"].startswith("5994471a")


def test_folder_entries_are_accepted(tmp_path):
    folders = [member(name, b"", type=tarfile.DIRTYPE) for name in ("run", "run/a", "run/b")]
    with unpacked(pack(tmp_path, tar_of(*folders, member("run/a/b", b"1"), format=tarfile.GNU_FORMAT))) as found:
        assert list(found.digests) == ["a/b"]


@pytest.mark.parametrize(
    ("reason", "members"),
    [
        ("unsafe_name", [member("../evil")]),
        ("unsafe_name", [GOOD, member("run/../../evil")]),
        ("unsafe_name", [GOOD, member("run/./b")]),
        ("unsafe_name", [GOOD, member("run//b")]),
        ("unsafe_name", [member("/etc/evil")]),
        ("unsafe_name", [GOOD, member("/run/evil")]),
        ("unsafe_name", [GOOD, member("run/a\nb")]),
        ("unsafe_name", [GOOD, member("run/a\x1b[2Jb")]),
        ("unsafe_name", [GOOD, member("run/..\\evil")]),
        ("unsafe_name", [GOOD, member("run/" + "a/" * 1500 + "b")]),
        ("unsafe_name", [member("..", b"", type=tarfile.DIRTYPE)]),
        ("unsafe_member", [GOOD, member("run/b", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd")]),
        ("unsafe_member", [GOOD, member("run/b", b"", type=tarfile.LNKTYPE, linkname="run/a.json")]),
        ("unsafe_member", [GOOD, member("run/b", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=5)]),
        ("unsafe_member", [GOOD, member("run/b", b"", type=tarfile.BLKTYPE)]),
        ("unsafe_member", [GOOD, member("run/b", b"", type=tarfile.FIFOTYPE)]),
        ("unsafe_member", [GOOD, member("run/b", b"", type=tarfile.CONTTYPE)]),
        ("unsafe_member", [GOOD, member("run/b", b"", type=b"Z")]),
        ("duplicate_name", [GOOD, GOOD]),
        ("duplicate_name", [GOOD, member("run/a.json/b")]),
        ("duplicate_name", [member("run/a/b"), member("run/a")]),
        ("duplicate_name", [member("run/a", b"", type=tarfile.DIRTYPE), member("run/a")]),
        ("several_folders", [GOOD, member("other/b")]),
        ("several_folders", [member("run")]),
        ("cannot_unpack", [member(f"run/{'n' * 300}")]),
        ("archive_damaged", []),
        ("archive_damaged", [member("run", b"", type=tarfile.DIRTYPE)]),
    ],
)  # fmt: skip
def test_unsafe_archive_is_refused_with_reason(tmp_path, reason, members):
    assert refused(pack(tmp_path, tar_of(*members))) == reason
    assert not (tmp_path.parent / "evil").exists() and not Path("/etc/evil").exists()


def test_name_of_link_is_escaped_in_message(tmp_path):
    path = pack(tmp_path, tar_of(member("run/b\x1b", b"", type=tarfile.SYMTYPE, linkname="/")))
    with pytest.raises(Unsafe, match=r"'run/b\\x1b'"):
        with unpacked(path):
            pass


def test_sparse_file_is_refused(tmp_path):
    headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
    content = b"1\n0\n1\n".ljust(512, b"\0") + b"x"
    assert refused(pack(tmp_path, tar_of(member("run/b", content, pax_headers=headers)))) == "unsafe_member"


def test_large_extended_header_is_refused(tmp_path):
    big = member("run/b", pax_headers={"comment": "x" * (1 << 20)})
    assert refused(pack(tmp_path, tar_of(big))) == "archive_damaged"


def test_high_compression_ratio_is_refused(tmp_path, room):
    path = pack(tmp_path, tar_of(GOOD, member("run/zeros", bytes(96 << 20))))
    assert path.stat().st_size < 64 << 10
    assert refused(path) == "too_large"


def test_short_repetitive_file_is_accepted(tmp_path):
    with unpacked(pack(tmp_path, tar_of(member("run/log", b"waiting\n" * 1_000_000)))) as found:
        assert list(found.digests) == ["log"]


@pytest.mark.parametrize("bound", ["MAX_BYTES", "MAX_FILES"])
def test_size_and_number_of_files_are_bounded(tmp_path, monkeypatch, bound):
    path = pack(tmp_path, tar_of(*(member(f"run/{number}", os.urandom(1000)) for number in range(100))))
    monkeypatch.setattr(unpack, bound, {"MAX_BYTES": 50_000, "MAX_FILES": 99}[bound])
    assert refused(path) == "too_large"


def test_number_of_folders_is_bounded(tmp_path, monkeypatch):
    folders = [member(f"run/{number}", b"", type=tarfile.DIRTYPE) for number in range(100)]
    monkeypatch.setattr(unpack, "MAX_FILES", 99)
    assert refused(pack(tmp_path, tar_of(*folders, GOOD))) == "too_large"


def test_bounds_allow_largest_runs():
    points = 200 * 50
    assert points * 1_000_000 < unpack.MAX_BYTES and points * 4 < unpack.MAX_FILES
    # zstd at its best: 128 KiB for a block of 4 bytes.
    assert unpack.MAX_RATIO < 10_000


@pytest.mark.parametrize("kept", [3, 5, 100, 0.5, 0.99, -1])
def test_truncated_archive_is_refused(tmp_path, kept):
    path = pack(tmp_path, tar_of(GOOD, member("run/b", os.urandom(300_000))))
    whole = path.read_bytes()
    end = int(kept * len(whole)) if isinstance(kept, float) else kept
    path.write_bytes(whole[:end])
    assert refused(path) == ("not_an_archive" if kept == 3 else "archive_truncated")


def test_tar_truncated_before_compression_is_refused(tmp_path):
    tar = tar_of(GOOD, member("run/b", os.urandom(300_000)))
    assert refused(pack(tmp_path, tar[:100_000])) == "archive_damaged"


def test_flipped_bit_is_refused(tmp_path):
    path = pack(tmp_path, tar_of(GOOD, member("run/b", os.urandom(300_000))))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    assert refused(path) == "archive_damaged"


def test_data_after_end_or_damaged_header_is_refused(tmp_path):
    tar = tar_of(GOOD)
    hidden = tar_of(member("run/hidden"))
    assert refused(pack(tmp_path, tar + hidden)) == "archive_damaged"
    broken = bytearray(tar_of(GOOD, member("run/b")))
    broken[1024 + 148] ^= 1
    assert refused(pack(tmp_path, bytes(broken))) == "archive_damaged"
    path = pack(tmp_path, tar)
    path.write_bytes(path.read_bytes() + b"more")
    assert refused(path) == "archive_damaged"
    path = pack(tmp_path, tar)
    path.write_bytes(path.read_bytes() * 2)
    assert refused(path) == "archive_damaged"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x1f\x8b\x08", b"hello"])
def test_other_file_is_not_an_archive(tmp_path, content):
    path = tmp_path / "run.tar.zst"
    path.write_bytes(content)
    assert refused(path) == "not_an_archive"


def test_full_disk_is_reported_with_tmpdir(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "open", _fails_to_write(Path.open))
    with pytest.raises(Unsafe, match="No space") as caught:
        with unpacked(pack(tmp_path, tar_of(GOOD))):
            pass
    assert caught.value.reason == "cannot_unpack" and "TMPDIR" in str(caught.value.do)


def _fails_to_write(real):
    def opened(path: Path, mode: str = "r", *rest: object, **more: object):
        if mode == "xb":
            raise OSError(28, "No space left on device")
        return real(path, mode, *rest, **more)

    return opened


@pytest.mark.parametrize("command", ["verify", "show"])
def test_unsafe_archive_exits_1_and_missing_file_2(tmp_path, capsys, command):
    assert cli.main([command, str(pack(tmp_path, tar_of(member("../evil"))))]) == 1
    printed = capsys.readouterr().err
    assert "'../evil'" in printed and "Traceback" not in printed
    assert cli.main([command, str(tmp_path / "nothing.tar.zst")]) == 2
    assert cli.main([command, str(tmp_path / "room")]) == 2
    printed = capsys.readouterr().err
    assert "nothing.tar.zst" in printed and "results/RUN" in printed


@pytest.mark.parametrize("command", ["verify", "show"])
def test_pipe_is_refused(tmp_path, capsys, command):
    os.mkfifo(tmp_path / "demo.tar.zst")
    assert cli.main([command, str(tmp_path / "demo.tar.zst")]) == 2
    words = capsys.readouterr().err
    assert "pipe" in words


def test_extended_header_with_an_owner_is_refused(tmp_path):
    name = f"run/{'n' * 150}"
    plain = bytearray(tar_of(member(name)))
    header = tarfile.TarInfo.frombuf(bytes(plain[:512]), "utf-8", "surrogateescape")
    assert header.type == tarfile.XHDTYPE
    header.uid = 1000
    plain[:512] = header.tobuf(tarfile.USTAR_FORMAT)
    with pytest.raises(Unsafe) as caught:
        with unpacked(pack(tmp_path, bytes(plain))):
            pass
    assert caught.value.reason == "archive_damaged"


@pytest.mark.parametrize("command", ["show", "sign", "verify"])
def test_command_with_another_file_exits_with_2(tmp_path, capsys, command):
    path = tmp_path / "notes.txt"
    path.write_text("no archive")
    assert cli.main([command, str(path)]) == 2
    assert str(path) in capsys.readouterr().err
