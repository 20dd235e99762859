"""Takes an archive apart without trusting it: plain files only, bounded, into a private folder that is removed afterwards."""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

import zstandard

from servemark.archive import seal
from servemark.errors import ServemarkError

MAX_BYTES = 16 << 30
"""Unpacked size. 200 deployments with 50 load points of 1 MB of per-request results each are 10 GB."""
MAX_FILES = 200_000
"""Files and folders. Four files for each of those points are 40,000; each costs an inode however small it is."""
MAX_DEPTH = 64
"""Folders in each other; ours are seven. Python's own removal of a folder gives up on a thousand."""
MAX_RATIO, RATIO_FROM = 200, 64 << 20
"""Unpacked over packed size, and the unpacked bytes from which it counts: a short repetitive log is no attack. Per-request results
shrink 2- to 5-fold, logs and records 10-fold; one byte repeated, 10,000-fold."""
MAX_HEADER = 64 << 10
"""Bytes of one extended tar header, which is held in memory. It carries a long name; Linux knows paths of 4,096 bytes."""
# What zstd's own command accepts without --long; the archive's level needs 2 MiB.
_WINDOW = 128 << 20
# A block of a few bytes may stand for 128 KiB, so this much input never becomes more than about 64 MiB at once.
_STEP = 2 << 10
_CHUNK = 1 << 20
_MAGIC = b"\x28\xb5\x2f\xfd"
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a named pipe",
}


class Unsafe(ServemarkError):
    """The archive was not taken apart: it is damaged, or made to harm the person who unpacks it (see ``reason``)."""

    default_reason = "archive_unsafe"


class _Harm(Exception):
    """The reason, what is wrong, and what to do unless it is to ask for another copy."""


@dataclass
class Unpacked:
    """An archive's content, there as long as the context of ``unpacked`` lasts.

    Attributes:
        folder: holds what the archive's one top folder holds.
        digests: name below the top folder -> sha256.
        headers: what differs from the headers that an archive is sealed with, one sentence for each entry. tar restores modes, owners and
            times from them, and no digest covers them.
    """

    folder: Path
    top: str = ""
    digests: dict[str, str] = field(default_factory=dict)
    headers: list[str] = field(default_factory=list)
    _folders: set[str] = field(default_factory=set)

    def unpack(self, source: IO[bytes]) -> None:
        """Take the archive apart into the folder."""
        if source.read(len(_MAGIC)) != _MAGIC:
            raise _Harm("not_an_archive", "is no zstd file", "Give a .tar.zst that this workflow has made.")
        source.seek(0)
        content, end = _Content(source), 0
        fileobj = cast(IO[bytes], content)
        try:
            with tarfile.open(fileobj=fileobj, mode="r|", bufsize=_CHUNK, tarinfo=_Member, errors="surrogateescape") as tar:
                for member in tar:
                    self._take(tar, member)
                    end = member.offset_data + member.size
        except (tarfile.TarError, ValueError, OverflowError, RecursionError, EOFError) as error:
            raise _Harm("archive_damaged", f"holds no readable tar: {error}") from None
        except OSError as error:
            raise _Harm("cannot_unpack", f"cannot be unpacked: {error}", "Give TMPDIR a folder with more room.") from None
        # tarfile takes a header that it cannot read for the end.
        if content.drain() > end:
            raise _Harm("archive_damaged", f"holds what is no file after its byte {end}")
        if not self.digests:
            raise _Harm("archive_damaged", "holds no file")

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = self._checked(member)
        if len(self.digests) + len(self._folders) >= MAX_FILES:
            raise _Harm("too_large", f"holds more than {MAX_FILES:,} files and folders")
        if changed := _changed(member):
            self.headers.append(f"{name or member.name}: the tar header is changed: {', '.join(changed)}.")
        parents = _with_parents(name)
        if member.isdir():
            self._folders |= parents if name else set()
            return
        parents.remove(name)
        if not name:
            raise _Harm("several_folders", f"holds the file {member.name!r} outside of one top folder")
        if name in self.digests or name in self._folders or not parents.isdisjoint(self.digests):
            raise _Harm("duplicate_name", f"holds {member.name!r} twice, or as a file and as a folder")
        self._folders |= parents
        stream = tar.extractfile(member)
        assert stream is not None, "a plain file has content"
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        sha256 = hashlib.sha256()
        with target.open("xb") as sink:
            while chunk := stream.read(_CHUNK):
                sha256.update(chunk)
                sink.write(chunk)
        self.digests[name] = sha256.hexdigest()

    def _checked(self, member: tarfile.TarInfo) -> str:
        """Return the name below the top folder; empty for the top folder itself."""
        name, parts = member.name, member.name.split("/")
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE) or member.issparse():
            kind = _KINDS.get(member.type, "no plain file")
            raise _Harm("unsafe_member", f"holds {kind}, {name!r}, where only plain files belong")
        if len(parts) > MAX_DEPTH:
            raise _Harm("unsafe_name", f"holds a name of {len(parts)} folders in each other: {name[:80]!r}...")
        if why := seal.unfit(name):
            raise _Harm("unsafe_name", f"holds the name {name!r}, which {why}")
        self.top = self.top or parts[0]
        if parts[0] != self.top:
            raise _Harm("several_folders", f"holds {name!r} beside the folder {self.top!r}, not in it")
        return "/".join(parts[1:])


def _changed(member: tarfile.TarInfo) -> list[str]:
    """Return the fields of a header in which it differs from the one that :func:`servemark.archive.seal` writes."""
    sealed = seal.header(member.name, member.size)
    found = [
        f"{field} {_value(member, field)}, sealed with {_value(sealed, field)}"
        for field in ("mode", "uid", "gid", "uname", "gname", "mtime", "linkname", "devmajor", "devminor", "type")
        if getattr(member, field) != getattr(sealed, field)
    ]
    return found + [f"extended by {key}" for key in sorted(set(member.pax_headers) - {"path", "size"})]


def _value(member: tarfile.TarInfo, field: str) -> str:
    return f"{member.mode:o}" if field == "mode" else repr(getattr(member, field))


def _with_parents(name: str) -> set[str]:
    parts = name.split("/")
    return {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}


class _Member(tarfile.TarInfo):
    """A header; tarfile reads an extended one into memory whole, so its size is looked at first."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        member = super().frombuf(buf, encoding, errors)
        if member.type in _EXTENDED and not 0 <= member.size <= MAX_HEADER:
            raise tarfile.ReadError(f"an extended header of {member.size:,} bytes")
        if member.type == tarfile.XHDTYPE and (member.mode, member.uid, member.gid, member.mtime) != (0, 0, 0, 0):
            raise tarfile.ReadError("an extended header with a mode, an owner or a time")
        return member


class _Content:
    """The tar inside, decompressed as it is read, and counted."""

    def __init__(self, source: IO[bytes]):
        self._source = source
        self._decoder = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
        self._ready = bytearray()
        self._packed = self._size = self._given = self._last = 0

    def read(self, size: int) -> bytes:
        """Return the next bytes, fewer only at the end."""
        while len(self._ready) < size and not self._decoder.eof:
            self._more()
        data = bytes(self._ready[:size])
        del self._ready[:size]
        if used := len(data.rstrip(b"\0")):
            self._last = self._given + used
        self._given += len(data)
        return data

    def drain(self) -> int:
        """Read the rest; the position after the last byte that is not zero, which pads."""
        while self.read(_CHUNK):
            pass
        if self._decoder.unused_data or self._source.read(1):
            raise _Harm("archive_damaged", "goes on after its end")
        return self._last

    def _more(self) -> None:
        chunk = self._source.read(_STEP)
        if not chunk:
            do = "Copy it again, and compare its size and sha256 with the original's."
            raise _Harm("archive_truncated", f"ends in the middle, after {self._packed:,} bytes", do)
        self._packed += len(chunk)
        try:
            data = self._decoder.decompress(chunk)
        except zstandard.ZstdError as error:
            raise _Harm("archive_damaged", f"is damaged: {error}", "Copy it again, and compare its sha256.") from None
        self._ready += data
        self._size += len(data)
        if self._size > MAX_BYTES:
            raise _Harm("too_large", f"unpacks to more than {MAX_BYTES >> 30} GiB")
        if self._size > RATIO_FROM and self._size > MAX_RATIO * self._packed:
            raise _Harm("too_large", f"unpacks to more than {MAX_RATIO} times its size, as no archive of results does")


@contextmanager
def unpacked(path: Path) -> Iterator[Unpacked]:
    """Yield the archive's files in a folder that only this user can read; gone after the ``with``.

    Raises:
        Unsafe: ``not_an_archive``, ``archive_truncated``, ``archive_damaged``, ``unsafe_name``, ``unsafe_member``,
            ``duplicate_name``, ``several_folders``, ``too_large``, or ``cannot_unpack`` (no room, a name too long).
    """
    with tempfile.TemporaryDirectory(prefix="servemark-archive-") as room:
        archive = Unpacked(Path(room) / "archive")
        archive.folder.mkdir()
        try:
            with path.open("rb") as source:
                archive.unpack(source)
        except _Harm as harm:
            reason, what, *do = harm.args
            ask = "Do not unpack it by other means; ask who gave it to you for another copy."
            raise Unsafe(f"{path.name} {what}.", look=str(path), do=do[0] if do else ask, reason=reason) from None
        yield archive
