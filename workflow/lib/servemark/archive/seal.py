"""Seal files into one deterministic ``.tar.zst`` with a manifest. A secret in a file stops the sealing.

The same content gives the same bytes: names are sorted, each tar header has mtime 0, owner 0 and mode 0644, and one thread compresses
at a fixed level. Two versions of zstd may compress differently. So the archive's identity is the sha256 of its manifest.
"""

import hashlib
import io
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import zstandard

from servemark.errors import ServemarkError
from servemark.files import storage
from servemark.measurement.ledger import file_sha256
from servemark.records import replacing, write_atomically
from servemark.security import secret_scan
from servemark.security.secret_scan import SecretPattern

LEVEL = 6
MANIFEST, README = "manifest-sha256.txt", "README.txt"
SUFFIX = ".tar.zst"


class ArchiveRefused(ServemarkError):
    """No archive was sealed and no file was written."""

    default_reason = "archive_refused"


class Digest(NamedTuple):
    """A file's sha256 and its size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True)
class ArchiveInfo:
    """A sealed archive. ``manifest_sha256`` is its identity. ``sha256`` and ``size`` describe the compressed file."""

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
    """Write ``destination`` and ``destination.sha256`` from ``files``, atomically.

    The archive has one top folder: the destination's name without ``.tar.zst``.

    Args:
        files: name in the archive -> file.
        secrets: literal texts that no file may contain, such as this run's API keys -> what each is, for the message.
        describe: returns more files (name -> content) for the digests of ``files`` and README.txt.

    Raises:
        ArchiveRefused: a name is unsafe or used twice; a file is missing, not a regular file, or changed during sealing; or a file
            contains a secret. The message names file and line, never the secret.
    """
    top = destination.name.removesuffix(SUFFIX)
    _check_names(files, top)
    patterns = (*secret_scan.PATTERNS, *secret_scan.literals(secrets or {}))
    digests: dict[str, Digest] = {}
    for name, path in files.items():
        with path.open("rb") as source:
            digests[name] = _digest(name, source, patterns, look=str(path))
    own: dict[str, bytes] = {}

    def add(name: str, content: bytes, patterns: Sequence[SecretPattern] = patterns) -> None:
        if name in digests:
            raise ArchiveRefused(f"servemark makes the file {name!r} of the archive itself.", do="Rename your file.")
        own[name], digests[name] = content, _digest(name, io.BytesIO(content), patterns)

    add(README, (Path(__file__).parent / "README.txt").read_text().replace("{top}", top).encode())
    for name, content in describe(dict(digests)).items():
        add(name, content)
    add(MANIFEST, "".join(f"{digests[name].sha256}  {name}\n" for name in sorted(digests, key=str.encode)).encode(), ())

    checksum = destination.with_name(destination.name + ".sha256")
    try:
        with replacing(destination) as stream:
            _write(stream, top, digests, files, own)
            checksum.unlink(missing_ok=True)
    except BaseException as error:
        if refused := storage.refusal(error, destination, needed=sum(digest.size for digest in digests.values())):
            raise refused from None
        raise
    sha256 = file_sha256(destination)
    write_atomically(checksum, f"{sha256}  {destination.name}\n")
    return ArchiveInfo(destination, sha256, destination.stat().st_size, digests[MANIFEST].sha256, len(digests))


def manifest_size(names: Iterable[str]) -> int:
    """Return the bytes of the manifest of these files, which depend on the names alone."""
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
    # Not with `with`: closing a frame after an error raises a second error that hides the first.
    compressed.close()


def header(name: str, size: int) -> tarfile.TarInfo:
    """Return the tar header of a file: mode 0644, owner 0 and mtime 0, which are tarfile's defaults."""
    member = tarfile.TarInfo(name)
    member.size = size
    return member


def _tar_size(members: Iterable[tarfile.TarInfo]) -> int:
    """Return the bytes of the tar: headers and contents in whole blocks, two zero blocks, filled up to a whole record."""
    total = 2 * tarfile.BLOCKSIZE
    for member in members:
        length = len(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        total += length + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    return -(-total // tarfile.RECORDSIZE) * tarfile.RECORDSIZE


def _add(tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, path: Path, digest: str) -> None:
    changed = ArchiveRefused(f"{name} changed while servemark archived it.", look=str(path), do="Rerun when nothing writes to this file.")
    with path.open("rb") as stream:
        source = _Hashing(stream)
        try:
            tar.addfile(member, source)
        except OSError as error:
            # An error without errno is tarfile's: the file ended too early.
            if error.errno is not None:
                raise
            raise changed from error
        if source.sha256.hexdigest() != digest or stream.read(1):
            raise changed


class _Hashing:
    """A readable file that also computes the sha256 of the bytes read."""

    def __init__(self, stream: IO[bytes]):
        self._stream = stream
        self.sha256 = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.sha256.update(data)
        return data


def unfit(name: str) -> str | None:
    """Return why no archive may contain this file name, as the predicate of a sentence; None if it may."""
    # sha256sum escapes a line with a backslash.
    if "\\" in name or any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in name):
        return "contains a character that a manifest cannot hold"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "is not a plain relative path"
    return None


def _check_names(files: Mapping[str, Path], top: str) -> None:
    for name in (top, *files):
        if why := unfit(name) or ("must be one folder" if "/" in top else None):
            raise ArchiveRefused(f"The name {name!r} {why}.")
    for name, path in files.items():
        if not path.is_file():
            raise ArchiveRefused(f"{name} is missing or not a regular file.", look=str(path), do="Rerun snakemake.")


def _digest(name: str, stream: IO[bytes], patterns: Sequence[SecretPattern], look: str | None = None) -> Digest:
    """Return sha256 and size of a file.

    Raises:
        ArchiveRefused: the file or its name contains a secret.
    """
    if found := secret_scan.search(name.encode(), 0, patterns):
        raise ArchiveRefused(f"A file name contains a secret ({found[0]}).", do="Rename the file.", reason="secret_found")
    sha256 = hashlib.sha256()
    if leak := secret_scan.scan(stream, patterns, sha256.update):
        raise ArchiveRefused(
            f"{name}, line {leak.line}: secret found ({leak.kind}). servemark made no archive.",
            look=look,
            do="Delete the secret from this file. Revoke it and create a new one: everyone who can read the file may have read it. "
            "Then rerun the same command: only the archive is made again.",
            reason="secret_found",
        )
    return Digest(sha256.hexdigest(), stream.tell())
