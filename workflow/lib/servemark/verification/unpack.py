"""Unpack an archive from an untrusted sender: regular files only, bounded size, into a private temporary folder."""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import zstandard

from servemark.archive import seal
from servemark.errors import ServemarkError

MAX_BYTES = 16 << 30
"""Unpacked size. 200 deployments with 50 load points of 1 MB of per-request results each have 10 GB."""
MAX_FILES = 200_000
"""Files and folders. 10,000 load points with four files each have 40,000."""
MAX_DEPTH = 64
"""Nested folders. servemark's archives have seven; shutil.rmtree fails at about a thousand."""
MAX_RATIO, RATIO_FROM = 200, 64 << 20
"""Unpacked size over packed size, and the unpacked bytes from which the ratio is checked. Per-request results shrink 2- to 5-fold, logs
and records 10-fold, one repeated byte 10,000-fold."""
MAX_HEADER = 64 << 10
"""Bytes of an extended tar header, which tarfile reads into memory. It holds a long name; Linux paths have at most 4,096 bytes."""
# The window that the zstd command accepts without --long. The archive's level needs 2 MiB.
_WINDOW = 128 << 20
# zstd can expand a few bytes to 128 KiB, so each read of this size gives at most about 64 MiB.
_STEP = 2 << 10
_CHUNK = 1 << 20
# tarfile copies the rest of its buffer for each header and each read. With 1 MiB, most of the time for small files went there.
_BUFFER = 32 << 10
_MAGIC = b"\x28\xb5\x2f\xfd"
_COPY = "Copy the file again and compare its sha256 with the original's."
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


class NoSuchFile(ServemarkError):
    """The given path is not what the command reads."""

    exit_code = 2
    default_reason = "no_such_file"


class Unsafe(ServemarkError):
    """The archive was not unpacked. ``reason`` states why: it is damaged or could harm the user."""

    default_reason = "archive_unsafe"


class NotAnArchive(Unsafe):
    """The file is of another kind, so nothing can be checked in it."""

    exit_code = 2
    default_reason = "not_an_archive"


class _Refused(Exception):
    """Carries reason code, predicate of the message and, unless the default fits, the remedy."""


@dataclass
class Unpacked:
    """An archive's content. The files exist only inside the context of ``unpacked``.

    Attributes:
        folder: holds the content of the archive's one top folder.
        digests: name below the top folder -> sha256.
        sizes: name below the top folder -> bytes.
        headers: name -> how its tar header differs from the header that servemark writes. tar restores mode, owner and time from it,
            and no digest covers it.
        needed: whether a file, by its name below the top folder, is written. A digest is computed of each one.
    """

    folder: Path
    needed: Callable[[str], bool] = lambda _: True
    top: str = ""
    digests: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    _folders: set[str] = field(default_factory=set)

    def unpack(self, source: IO[bytes]) -> None:
        """Unpack the archive into the folder."""
        if source.read(len(_MAGIC)) != _MAGIC:
            raise _Refused(NotAnArchive.default_reason, "is not a zstd file", "Pass a .tar.zst file that servemark made.")
        source.seek(0)
        content, end = _Content(source), 0
        fileobj = cast(IO[bytes], content)
        try:
            with tarfile.open(fileobj=fileobj, mode="r|", bufsize=_BUFFER, tarinfo=_Member, errors="surrogateescape") as tar:
                for member in tar:
                    self._take(tar, member)
                    end = member.offset_data + member.size
        except (tarfile.TarError, ValueError, OverflowError, RecursionError, EOFError) as error:
            raise _Refused("archive_damaged", f"contains no readable tar file: {error}") from None
        except OSError as error:
            raise _Refused("cannot_unpack", f"cannot be unpacked: {error}", "Set TMPDIR to a folder with more space.") from None
        # tarfile takes an unreadable header for the end of the tar file. tar itself would skip it and unpack the files behind it.
        if content.drain() > end:
            raise _Refused("archive_damaged", f"contains data after its last file, which ends at byte {end}")
        if not self.digests:
            raise _Refused("archive_damaged", "contains no file")

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = self._checked(member)
        if len(self.digests) + len(self._folders) >= MAX_FILES:
            raise _Refused("too_large", f"contains more than {MAX_FILES:,} files and folders")
        found, sealed = member.get_info(), seal.header(member.name, member.size).get_info()
        apart = [field for field in sealed if field not in ("chksum", "name") and found[field] != sealed[field]]
        shown: dict[str, Callable[[Any], str]] = {"mode": oct, "type": repr}
        changed = [f"{field} {shown.get(field, str)(found[field])}, sealed with {shown.get(field, str)(sealed[field])}" for field in apart]
        if changed := changed + sorted(set(member.pax_headers) - {"path", "size"}):
            self.headers[name or member.name] = ", ".join(changed)
        parents = set(map(str, PurePosixPath(name).parents)) - {"."}
        if member.isdir():
            self._folders |= parents | ({name} if name else set())
            return
        if not name:
            raise _Refused("several_folders", f"contains the file {member.name!r} outside its top folder")
        # The keys' own method looks up the few parents; a set's would go through all digests.
        if name in self.digests or name in self._folders or not self.digests.keys().isdisjoint(parents):
            raise _Refused("duplicate_name", f"contains {member.name!r} twice, or both as a file and as a folder")
        self._folders |= parents
        stream = tar.extractfile(member)
        assert stream is not None, "a regular file has content"
        sha256 = hashlib.sha256()
        with self._sink(name) as sink:
            while chunk := stream.read(_CHUNK):
                sha256.update(chunk)
                if sink:
                    sink.write(chunk)
        self.digests[name], self.sizes[name] = sha256.hexdigest(), member.size

    def _sink(self, name: str) -> AbstractContextManager[IO[bytes] | None]:
        if not self.needed(name):
            return nullcontext()
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return target.open("xb")

    def _checked(self, member: tarfile.TarInfo) -> str:
        """Return the name below the top folder; empty for the top folder itself."""
        name, parts = member.name, member.name.split("/")
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE) or member.issparse():
            kind = "a symbolic link" if member.issym() else "a hard link" if member.islnk() else "a device, pipe or sparse file"
            raise _Refused("unsafe_member", f"contains {name!r}, {kind}. Only regular files are allowed")
        if len(parts) > MAX_DEPTH:
            raise _Refused("unsafe_name", f"contains a name with {len(parts)} nested folders: {name[:80]!r}...")
        if why := seal.unfit(name):
            raise _Refused("unsafe_name", f"contains the name {name!r}, which {why}")
        self.top = self.top or parts[0]
        if parts[0] != self.top:
            raise _Refused("several_folders", f"contains {name!r} outside its top folder {self.top!r}")
        return "/".join(parts[1:])


class _Member(tarfile.TarInfo):
    """A tar header. Its size is checked here, before tarfile reads an extended header into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        member = super().frombuf(buf, encoding, errors)
        if member.type in _EXTENDED and not 0 <= member.size <= MAX_HEADER:
            raise tarfile.ReadError(f"an extended header has {member.size:,} bytes")
        if member.type == tarfile.XHDTYPE and (member.mode, member.uid, member.gid, member.mtime) != (0, 0, 0, 0):
            raise tarfile.ReadError("an extended header has a mode, an owner or a time")
        return member


class _Content:
    """The decompressed tar file, as a stream that counts its bytes."""

    def __init__(self, source: IO[bytes]):
        self._source = source
        self._decoder = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
        self._ready = bytearray()
        self._packed = self._size = self._given = self._last = 0

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes, fewer only at the end."""
        while len(self._ready) < size and not self._decoder.eof:
            self._more()
        data = bytes(self._ready[:size])
        del self._ready[:size]
        if used := len(data.rstrip(b"\0")):
            self._last = self._given + used
        self._given += len(data)
        return data

    def drain(self) -> int:
        """Read the rest. Return the position after the last byte that is not padding (zero)."""
        while self.read(_CHUNK):
            pass
        if self._decoder.unused_data or self._source.read(1):
            raise _Refused("archive_damaged", "contains data after the end of the compressed file")
        return self._last

    def _more(self) -> None:
        chunk = self._source.read(_STEP)
        if not chunk:
            raise _Refused("archive_truncated", f"is truncated: it ends after {self._packed:,} bytes", _COPY)
        self._packed += len(chunk)
        try:
            data = self._decoder.decompress(chunk)
        except zstandard.ZstdError as error:
            raise _Refused("archive_damaged", f"is damaged: {error}", _COPY) from None
        self._ready += data
        self._size += len(data)
        if self._size > MAX_BYTES:
            raise _Refused("too_large", f"unpacks to more than {MAX_BYTES >> 30} GiB")
        if self._size > RATIO_FROM and self._size > MAX_RATIO * self._packed:
            raise _Refused("too_large", f"unpacks to more than {MAX_RATIO} times its size, which no archive of results does")


def require_file(path: Path) -> None:
    """Raise NoSuchFile unless ``path`` is a regular file."""
    if not os.path.isfile(path):
        kind = "is a folder" if os.path.isdir(path) else "is a pipe or a device" if os.path.lexists(path) else "does not exist"
        raise NoSuchFile(
            f"{path} {kind}.", do="Pass an archive, such as results/RUN/archive/RUN.tar.zst. `servemark show` also takes results/RUN."
        )


@contextmanager
def unpacked(path: Path, needed: Callable[[str], bool] = lambda _: True) -> Iterator[Unpacked]:
    """Yield the archive's files in a private temporary folder, which is deleted afterwards.

    Args:
        needed: see ``Unpacked``. By default, each file is written.

    Raises:
        NoSuchFile: ``path`` is not a regular file.
        NotAnArchive: the file is of another kind.
        Unsafe: ``archive_truncated``, ``archive_damaged``, ``unsafe_name``, ``unsafe_member``,
            ``duplicate_name``, ``several_folders``, ``too_large``, or ``cannot_unpack`` (no space, or a name is too long).
    """
    require_file(path)
    with tempfile.TemporaryDirectory(prefix="servemark-archive-") as temporary:
        archive = Unpacked(Path(temporary) / "archive", needed)
        archive.folder.mkdir()
        try:
            with path.open("rb") as source:
                archive.unpack(source)
        except _Refused as refused:
            reason, what, *do = refused.args
            ask = "Do not unpack it with other tools. Ask the sender for a new copy."
            kind = NotAnArchive if reason == NotAnArchive.default_reason else Unsafe
            raise kind(f"{path.name} {what}.", look=str(path), do=do[0] if do else ask, reason=reason) from None
        yield archive
