"""The archive: one deterministic ``.tar.zst`` with a manifest that checks it, refused when a secret is found in it.

The same content gives the same bytes, whatever the files' times, modes, owners and places, the order, umask and time
zone: names sorted, mtime 0, owner 0, mode 0644, pax headers only where a name needs them (tarfile writes no times into
them), one compression thread at a fixed level. zstd promises no equal bytes between its versions, so the archive's
identity is the sha256 of its manifest, not of the compressed file.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import zstandard

from servemark.errors import ServemarkError
from servemark.records import write_atomically

LEVEL = 6
CHUNK = 1 << 20
# A secret cut by a chunk's end is found in the next window, which begins this many bytes earlier.
OVERLAP = 1 << 14
MANIFEST, README = "manifest-sha256.txt", "README.txt"
SUFFIX = ".tar.zst"


class ArchiveRefused(ServemarkError):
    """The archive was not sealed; nothing was written."""

    default_reason = "archive_refused"


@dataclass(frozen=True)
class ArchiveInfo:
    """A sealed archive. ``manifest_sha256`` is its identity; ``sha256`` and ``size`` are of the compressed file."""

    path: Path
    sha256: str
    size: int
    manifest_sha256: str
    files: int


@dataclass(frozen=True)
class SecretPattern:
    """A kind of secret. ``needles``: the regex can match only where one of them is; they are much faster to find."""

    name: str
    needles: tuple[bytes, ...]
    regex: re.Pattern[bytes]


def _pattern(name: str, needles: tuple[bytes, ...], regex: bytes) -> SecretPattern:
    return SecretPattern(name, needles, re.compile(regex))


PATTERNS = (
    _pattern("Hugging Face token", (b"hf_",), rb"(?<![A-Za-z0-9_])hf_[A-Za-z0-9]{20,}"),
    _pattern("API key (sk-)", (b"sk-",), rb"(?<![A-Za-z0-9_])sk-[A-Za-z0-9_-]{20,}"),
    _pattern(
        "bearer token",
        (b"earer", b"EARER"),
        # A digit is asked for, so that prose and placeholders such as YOUR_KEY are no hit.
        rb"(?i:bearer)[ \t]+(?=[A-Za-z0-9._~+/-]*[0-9])[A-Za-z0-9._~+/-]{16,}",
    ),
    _pattern("private key", (b"PRIVATE KEY",), rb"-----BEGIN [A-Z ]*PRIVATE KEY"),
    _pattern("JSON web token", (b"eyJ",), rb"(?<![A-Za-z0-9_-])eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}"),
    _pattern("AWS key", (b"AKIA", b"ASIA"), rb"(?<![A-Za-z0-9])A(?:KIA|SIA)[0-9A-Z]{16}(?![0-9A-Z])"),
    _pattern(
        "GitHub token",
        (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_"),
        rb"(?<![A-Za-z0-9_])(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{22})",
    ),
)


def seal(
    files: Mapping[str, Path], destination: Path, *, top: str | None = None, secrets: Sequence[str] = ()
) -> ArchiveInfo:
    """Write ``destination`` (and ``destination.sha256`` beside it) from ``files``, atomically.

    Args:
        files: name in the archive -> file.
        top: the one folder everything unpacks into; by default the destination's name without ``.tar.zst``.
        secrets: literal texts that must not be in any file, e.g. this run's API keys.

    Raises:
        ArchiveRefused: a name that is unsafe or taken, a file that is missing, no plain file or changed while it was
            read, or a secret found; the message names file and line, never the secret.
    """
    top = destination.name.removesuffix(SUFFIX) if top is None else top
    _check_names(files, top)
    patterns = (*PATTERNS, *_literals(secrets))
    digests = {name: _digest(name, path, patterns) for name, path in files.items()}
    readme = _readme(top)
    digests[README] = (hashlib.sha256(readme).hexdigest(), len(readme))
    manifest = "".join(f"{digests[name][0]}  {name}\n" for name in _sorted(digests)).encode()
    manifest_sha256 = hashlib.sha256(manifest).hexdigest()
    digests[MANIFEST] = (manifest_sha256, len(manifest))
    own = {README: readme, MANIFEST: manifest}

    destination.parent.mkdir(parents=True, exist_ok=True)
    checksum = destination.with_name(destination.name + ".sha256")
    handle, temporary = tempfile.mkstemp(dir=destination.parent, prefix=f".{destination.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            _write(stream, top, digests, files, own)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        with open(temporary, "rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        checksum.unlink(missing_ok=True)
        os.replace(temporary, destination)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    write_atomically(checksum, f"{sha256}  {destination.name}\n")
    return ArchiveInfo(destination, sha256, destination.stat().st_size, manifest_sha256, len(digests))


def _write(
    stream: IO[bytes],
    top: str,
    digests: Mapping[str, tuple[str, int]],
    files: Mapping[str, Path],
    own: Mapping[str, bytes],
) -> None:
    members = {name: _member(f"{top}/{name}", digests[name][1]) for name in _sorted(digests)}
    compressor = zstandard.ZstdCompressor(level=LEVEL, threads=0, write_content_size=True, write_checksum=True)
    compressed = compressor.stream_writer(stream, size=_tar_size(members.values()), closefd=False)
    with tarfile.open(fileobj=compressed, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for name, member in members.items():
            if name in own:
                tar.addfile(member, io.BytesIO(own[name]))
            else:
                _add(tar, member, name, files[name], digests[name][0])
    # Not by `with`: ending a frame that an error cut short raises over that error.
    compressed.close()


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = size, 0, 0o644
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _tar_size(members: Iterable[tarfile.TarInfo]) -> int:
    """Bytes of the tar: headers and content in whole blocks, two zero blocks, filled up to a whole record."""
    total = 2 * tarfile.BLOCKSIZE
    for member in members:
        header = len(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        total += header + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    return -(-total // tarfile.RECORDSIZE) * tarfile.RECORDSIZE


def _add(tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, path: Path, digest: str) -> None:
    changed = ArchiveRefused(
        f"{name} changed while it was archived.", look=str(path), do="Archive when nothing writes it any more."
    )
    with path.open("rb") as stream:
        source = _Hashing(stream)
        try:
            tar.addfile(member, source)
        except OSError as error:
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


def _check_names(files: Mapping[str, Path], top: str) -> None:
    for name in (top, *files):
        parts = name.split("/")
        # A backslash would make sha256sum escape the line.
        if "\\" in name or any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in name):
            raise ArchiveRefused(f"The name {name!r} holds a character that an archive's manifest cannot carry.")
        if PurePosixPath(name).is_absolute() or any(part in ("", ".", "..") for part in parts):
            raise ArchiveRefused(f"The name {name!r} is not a plain relative path.")
    if "/" in top:
        raise ArchiveRefused(f"The top folder {top!r} must be one name.")
    for name, path in files.items():
        if name in (MANIFEST, README):
            raise ArchiveRefused(f"The name {name!r} is the archive's own.")
        for parent in PurePosixPath(name).parents:
            if str(parent) in files:
                raise ArchiveRefused(f"{str(parent)!r} cannot be both a file and the folder of {name!r}.")
        if not path.is_file():
            raise ArchiveRefused(f"{name} is missing or is no plain file.", look=str(path), do="Run snakemake again.")


def _sorted(names: Mapping[str, object]) -> list[str]:
    return sorted(names, key=lambda name: name.encode())


def _literals(secrets: Sequence[str]) -> Iterator[SecretPattern]:
    """The given secrets, as they are and as JSON would escape them; blank ones name nothing."""
    for secret in {text.strip() for text in secrets} - {""}:
        for form in {secret, json.dumps(secret)[1:-1]}:
            literal = form.encode()
            yield SecretPattern("secret of this run", (literal,), re.compile(re.escape(literal)))


def _digest(name: str, path: Path, patterns: Sequence[SecretPattern]) -> tuple[str, int]:
    """The file's sha256 and size, read once; refuses a secret in it or in its name."""
    if found := _search(name.encode(), 0, patterns):
        raise ArchiveRefused(
            f"A file's name holds a secret ({found[0]}).", do="Rename the file.", reason="secret_found"
        )
    sha256, size, lines, window = hashlib.sha256(), 0, 1, b""
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            sha256.update(chunk)
            size += len(chunk)
            tail = window[-OVERLAP:]
            lines += window.count(b"\n", 0, len(window) - len(tail))
            window = tail + chunk
            # From 1: the byte before the window is unknown, so a pattern's look-behind could not be trusted at 0.
            if found := _search(window, 1 if size > len(window) else 0, patterns):
                kind, position = found
                line = lines + window.count(b"\n", 0, position)
                raise ArchiveRefused(
                    f"{name}, line {line}: a secret was found ({kind}).",
                    look=str(path),
                    do="Remove it there and renew the secret; then archive again.",
                    reason="secret_found",
                )
    return sha256.hexdigest(), size


def _search(window: bytes, start: int, patterns: Sequence[SecretPattern]) -> tuple[str, int] | None:
    for pattern in patterns:
        if any(needle in window for needle in pattern.needles) and (match := pattern.regex.search(window, start)):
            return pattern.name, match.start()
    return None


def _readme(top: str) -> bytes:
    archive = top + SUFFIX
    text = f"""This folder was unpacked from {archive}.

To check that every file is as it was sealed:

    cd {top}
    sha256sum -c {MANIFEST}

The archive's identity is the sha256 of {MANIFEST}. The compressed file has its own sha256 in
{archive}.sha256 beside it; that one may differ between versions of the compressor, the identity may not.
To unpack it again:

    tar --zstd -xf {archive}
"""
    return text.encode()
