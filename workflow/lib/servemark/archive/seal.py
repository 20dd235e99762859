"""The archive: one deterministic ``.tar.zst`` with a manifest that checks it, refused when a secret is found in it.

The same content gives the same bytes, whatever the files' times, modes, owners and places, the order, umask and time
zone: names sorted, mtime 0, owner 0, mode 0644, pax headers only where a name needs them (tarfile writes no times into
them), one compression thread at a fixed level. zstd promises no equal bytes between its versions, so the archive's
identity is the sha256 of its manifest, not of the compressed file.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import zstandard

from servemark.errors import ServemarkError
from servemark.files import storage
from servemark.records import write_atomically
from servemark.security import secret_scan
from servemark.security.secret_scan import SecretPattern

LEVEL = 6
MANIFEST, README = "manifest-sha256.txt", "README.txt"
SUFFIX = ".tar.zst"


class ArchiveRefused(ServemarkError):
    """The archive was not sealed; nothing was written."""

    default_reason = "archive_refused"


class Digest(NamedTuple):
    """A file's sha256 and its size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True)
class ArchiveInfo:
    """A sealed archive. ``manifest_sha256`` is its identity; ``sha256`` and ``size`` are of the compressed file."""

    path: Path
    sha256: str
    size: int
    manifest_sha256: str
    files: int


def seal(
    files: Mapping[str, Path],
    destination: Path,
    *,
    secrets: Mapping[str, str] | None = None,
    describe: Callable[[Mapping[str, Digest]], Mapping[str, bytes]] = lambda _: {},
) -> ArchiveInfo:
    """Write ``destination`` (and ``destination.sha256`` beside it) from ``files``, atomically.

    Everything unpacks into one folder: the destination's name without ``.tar.zst``.

    Args:
        files: name in the archive -> file.
        secrets: literal texts that must not be in any file, e.g. this run's API keys -> what each is, for the message.
        describe: makes more files from the digests of the given ones and of README.txt: name -> content.

    Raises:
        ArchiveRefused: a name that is unsafe or taken, a file that is missing, no plain file or changed while it was
            read, or a secret found; the message names file and line, never the secret.
    """
    top = destination.name.removesuffix(SUFFIX)
    _check_names(files, top)
    patterns = (*secret_scan.PATTERNS, *secret_scan.literals(secrets or {}))
    digests = {}
    for name, path in files.items():
        with path.open("rb") as stream:
            digests[name] = _digest(name, stream, patterns, look=str(path))
    own = {README: (Path(__file__).parent / "README.txt").read_text().replace("{top}", top).encode()}
    digests[README] = _digest(README, io.BytesIO(own[README]), patterns)
    for name, content in describe(digests).items():
        if name in digests or name == MANIFEST:
            raise ArchiveRefused(f"The name {name!r} is the archive's own.")
        own[name] = content
    digests |= {name: _digest(name, io.BytesIO(content), patterns) for name, content in own.items()}
    own[MANIFEST] = "".join(f"{digests[name].sha256}  {name}\n" for name in sorted(digests, key=str.encode)).encode()
    digests[MANIFEST] = _digest(MANIFEST, io.BytesIO(own[MANIFEST]), ())

    destination.parent.mkdir(parents=True, exist_ok=True)
    checksum = destination.with_name(destination.name + ".sha256")
    handle, temporary = tempfile.mkstemp(dir=destination.parent, prefix=f".{destination.name}.")
    try:
        with storage.naming(destination), os.fdopen(handle, "wb") as stream:
            _write(stream, top, digests, files, own)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        with open(temporary, "rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        checksum.unlink(missing_ok=True)
        os.replace(temporary, destination)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        # Not compressed, the files are as large as this.
        if refused := storage.refusal(error, destination, needed=sum(digest.size for digest in digests.values())):
            raise refused from None
        raise
    write_atomically(checksum, f"{sha256}  {destination.name}\n")
    return ArchiveInfo(destination, sha256, destination.stat().st_size, digests[MANIFEST].sha256, len(digests))


def manifest_size(names: Iterable[str]) -> int:
    """Return bytes of the manifest of these files: it depends on their names alone, so a file may state it that is in the manifest."""
    return sum(64 + 2 + len(name.encode()) + 1 for name in names)


def _write(stream: IO[bytes], top: str, digests: Mapping[str, Digest], files: Mapping[str, Path], own: Mapping[str, bytes]) -> None:
    members = {name: header(f"{top}/{name}", digests[name].size) for name in sorted(digests, key=str.encode)}
    compressor = zstandard.ZstdCompressor(level=LEVEL, threads=0, write_content_size=True, write_checksum=True)
    compressed = compressor.stream_writer(stream, size=_tar_size(members.values()), closefd=False)
    with tarfile.open(fileobj=compressed, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for name, member in members.items():
            if name in own:
                tar.addfile(member, io.BytesIO(own[name]))
            else:
                _add(tar, member, name, files[name], digests[name].sha256)
    # Not by `with`: ending a frame that an error cut short raises over that error.
    compressed.close()


def header(name: str, size: int) -> tarfile.TarInfo:
    """Return the header of a file, whatever the file's own mode, owner and time: 0644, root and 1970 are tarfile's defaults."""
    member = tarfile.TarInfo(name)
    member.size = size
    return member


def _tar_size(members: Iterable[tarfile.TarInfo]) -> int:
    """Return bytes of the tar: headers and content in whole blocks, two zero blocks, filled up to a whole record."""
    total = 2 * tarfile.BLOCKSIZE
    for member in members:
        length = len(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        total += length + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    return -(-total // tarfile.RECORDSIZE) * tarfile.RECORDSIZE


def _add(tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, path: Path, digest: str) -> None:
    changed = ArchiveRefused(f"{name} changed while it was archived.", look=str(path), do="Archive when nothing writes it any more.")
    with path.open("rb") as stream:
        source = _Hashing(stream)
        try:
            tar.addfile(member, source)
        except OSError as error:
            # tarfile's own, about a file that ends too early, has no number.
            if error.errno is not None:
                raise
            raise changed from error
        if source.sha256.hexdigest() != digest or stream.read(1):
            raise changed


class _Hashing:
    """A file that hashes what is read from it."""

    def __init__(self, stream: IO[bytes]):
        self._stream = stream
        self.sha256 = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.sha256.update(data)
        return data


def unfit(name: str) -> str | None:
    """Return why a file of this name can be in no archive, as the end of a sentence about the name; None where it can."""
    # A backslash would make sha256sum escape the line.
    if "\\" in name or any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in name):
        return "holds a character that no manifest can carry"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "is not a plain relative path"
    return None


def _check_names(files: Mapping[str, Path], top: str) -> None:
    for name in (top, *files):
        if why := unfit(name) or ("must be one folder" if "/" in top else None):
            raise ArchiveRefused(f"The name {name!r} {why}.")
    for name, path in files.items():
        if name in (MANIFEST, README):
            raise ArchiveRefused(f"The name {name!r} is the archive's own.")
        for parent in PurePosixPath(name).parents:
            if str(parent) in files:
                raise ArchiveRefused(f"{str(parent)!r} cannot be both a file and the folder of {name!r}.")
        if not path.is_file():
            raise ArchiveRefused(f"{name} is missing or is no plain file.", look=str(path), do="Run snakemake again.")


def _digest(name: str, stream: IO[bytes], patterns: Sequence[SecretPattern], look: str | None = None) -> Digest:
    """Return sha256 and size of a file, read once; refuses a secret in it or in its name."""
    if found := secret_scan.search(name.encode(), 0, patterns):
        raise ArchiveRefused(f"A file's name holds a secret ({found[0]}).", do="Rename the file.", reason="secret_found")
    sha256 = hashlib.sha256()
    if leak := secret_scan.scan(stream, patterns, sha256.update):
        raise ArchiveRefused(
            f"{name}, line {leak.line}: a secret was found ({leak.kind}). No archive was made.",
            look=look,
            do="Take it out of that file, and renew it: whoever could read the file has it. Then run the same command again; "
            "only the archive is made anew.",
            reason="secret_found",
        )
    return Digest(sha256.hexdigest(), stream.tell())
