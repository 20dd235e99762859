"""The ledger: a content-addressed store of finished measurements that are VALID or SUSPECT.

One entry is a folder ``<root>/<first two digits of the key>/<key>/`` with ``measurement.json`` and ``raw.json``. It is
written beside and renamed into place, so it exists whole or not at all, also when two jobs store the same key at once.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from servemark.errors import ServemarkError
from servemark.records import Measurement, write_atomically

RECORD, RAW = "measurement.json", "raw.json"
KEEPABLE = ("VALID", "SUSPECT")
PASSING = frozenset({"interrupted"})
"""Reasons that come from the moment of the measurement and not from the load: a later run must not reuse such results."""


def is_keepable(record: Measurement) -> bool:
    """Return whether the ledger may hold this measurement."""
    return record.verdict in KEEPABLE and not any(reason.code in PASSING for reason in record.reasons)


@dataclass(frozen=True)
class StoredMeasurement:
    """A checked entry. ``record`` is as it was stored: names of deployment and point are those of its first use."""

    record: Measurement
    raw: Path

    def copy_raw(self, destination: Path) -> None:
        """Put the per-request results at ``destination``, atomically. A copy, so that the file's time is new."""
        write_atomically(destination, self.raw.read_bytes())


class Ledger:
    """The store under ``root``, made by the first ``store``; ``warnings`` name damaged entries, moved to ``<root>/damaged/``."""

    def __init__(self, root: Path):
        self.root = Path(root)
        self.warnings: list[str] = []

    def find(self, key: str) -> StoredMeasurement | None:
        """Return the entry of ``key`` after checking it, the raw file's sha256 included; None when there is none.

        A damaged entry is moved aside, adds to ``warnings`` and counts as none. One that cannot be read just now stays: ServemarkError.
        """
        entry = self._entry(key)
        if not entry.exists():
            return None
        try:
            return self._checked(key)
        except (ServemarkError, FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            self._set_aside(entry, error)
            return None
        except OSError as error:
            # A shared disk that does not respond now proves nothing about its files.
            raise ServemarkError(
                f"The stored measurement {entry} cannot be read: {error.strerror or error}.",
                do="Run the same command again when the disk responds. Files of other users must be readable for you.",
                reason="ledger_unreadable",
            ) from None

    def store(self, key: str, record: Measurement, raw_path: Path) -> StoredMeasurement:
        """Keep one measurement, unless a good entry exists; return the entry.

        ValueError: the record is INVALID or interrupted, has another key, or is not about ``raw_path``.
        """
        if not is_keepable(record):
            raise ValueError(f"this {record.verdict} measurement does not belong in the ledger")
        if record.key != key:
            raise ValueError(f"the record has the key {record.key}, not {key}")
        if file_sha256(raw_path) != record.raw_sha256:
            raise ValueError(f"{raw_path} is not the raw file the record names")
        entry = self._entry(key)
        entry.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=entry.parent, prefix=".draft-"))
        try:
            draft.chmod(0o755)
            link_or_copy(raw_path, draft / RAW)
            record.write(draft / RECORD)
            while True:
                try:
                    os.rename(draft, entry)
                    break
                except OSError:
                    if not entry.exists():
                        raise
                if stored := self.find(key):
                    return stored
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return StoredMeasurement(record, entry / RAW)

    def forget(self, key: str, raw_sha256: str | None) -> None:
        """Set an entry aside that today's thresholds refuse, so that its point is measured again; only if its results have this sha256."""
        entry = self._entry(key)
        if raw_sha256 and (entry / RAW).exists() and file_sha256(entry / RAW) == raw_sha256:
            self._set_aside(entry, ServemarkError("INVALID by today's thresholds."))

    def has(self, key: str) -> bool:
        """Return whether both files of an entry are there, good or damaged; nothing is read."""
        return all((self._entry(key) / name).exists() for name in (RECORD, RAW))

    def missing(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Return the keys with no usable entry, in the given order. Hash raw files, and move nothing: ``find`` does that."""
        return tuple(key for key in keys if not self._looks_good(key))

    def _entry(self, key: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{64}", key):
            raise ValueError(f"{key!r} is not a ledger key (64 hexadecimal digits)")
        return self.root / key[:2] / key

    def _checked(self, key: str) -> StoredMeasurement:
        """Read an entry; a file that cannot be read raises OSError, anything else that is wrong with it ServemarkError."""
        entry = self._entry(key)
        (entry / RECORD).read_bytes()  # Record.read has one error for all of an unreadable file's causes
        sha256, record = file_sha256(entry / RAW), Measurement.read(entry / RECORD)
        if (record.key, record.raw_sha256) != (key, sha256) or record.verdict not in KEEPABLE:
            raise ServemarkError(f"{entry} holds a {record.verdict} measurement with the key {record.key} and results {sha256}.")
        return StoredMeasurement(record, entry / RAW)

    def _looks_good(self, key: str) -> bool:
        try:
            return bool(self._checked(key))
        except (ServemarkError, OSError):
            return False

    def _set_aside(self, entry: Path, error: Exception) -> None:
        damaged = self.root / "damaged"
        damaged.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(dir=damaged, prefix=f"{entry.name[:16]}-"))
        try:
            os.replace(entry, place / entry.name)
        except FileNotFoundError:  # another process moved it first
            place.rmdir()
        else:
            what = str(error).splitlines()[0]
            self.warnings.append(f"A stored measurement was damaged and will be measured again: {what} Kept as {place}.")


def link_or_copy(source: Path, destination: Path) -> None:
    """Make ``destination`` the same content: a hard link, or a copy where the file system cannot link."""
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)


def file_sha256(path: Path) -> str:
    """Return the sha256 (hex) of one file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
