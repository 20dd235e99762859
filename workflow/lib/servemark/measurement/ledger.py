"""The ledger: a content-addressed store of finished measurements that are VALID or SUSPECT.

An entry is a folder ``<root>/<first two digits of the key>/<key>/`` with ``measurement.json`` and ``raw.json``. ``store`` writes a draft
next to it and renames the draft, so an entry is complete or absent, even if two jobs store the same key at once.
"""

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from servemark.errors import ServemarkError
from servemark.records import Measurement, write_atomically

RECORD, RAW = "measurement.json", "raw.json"
KEEPABLE = ("VALID", "SUSPECT")
Entry = TypeVar("Entry")
PASSING = frozenset({"foreign_process", "foreign_requests", "gpus_waited", "interrupted", "stalled"})
"""Reasons that depend on the moment of the measurement and not on the load: a later run must not reuse such results.

``foreign_load`` is not one of them, because it depends on a configured threshold: with another one, the stored results are judged again.
``requests_overtaken`` is not one of them, because the known cause is the deployment's router: large loads would have it again.
"""


def is_keepable(record: Measurement) -> bool:
    """Return whether the ledger may hold this measurement."""
    return record.verdict in KEEPABLE and not any(reason.code in PASSING for reason in record.reasons)


@dataclass(frozen=True)
class StoredMeasurement:
    """A checked entry. ``record`` has the names of deployment and point of its first use."""

    record: Measurement
    raw: Path

    def copy_raw(self, destination: Path) -> None:
        """Copy the per-request results to ``destination``, atomically; the copy has a new modification time."""
        write_atomically(destination, self.raw.read_bytes())


class Ledger:
    """The store in ``root``, which the first ``store`` creates; ``warnings`` name damaged entries, moved to ``<root>/damaged/``."""

    def __init__(self, root: Path):
        self.root = Path(root)
        self.warnings: list[str] = []

    def find(self, key: str) -> StoredMeasurement | None:
        """Return the entry of ``key`` after checking it, the raw file's sha256 included; None without one.

        Move a damaged entry aside, with a warning, and return None. Leave an entry in place that cannot be read now.

        Raises:
            ServemarkError: an entry cannot be read now.
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
            # The disk may be unreachable for now; its files may be intact.
            raise ServemarkError(
                f"The stored measurement {entry} cannot be read: {error.strerror or error}.",
                do="Run the same command again when the disk responds. If another user stored it, ask for read permission.",
                reason="ledger_unreadable",
            ) from None

    def store(self, key: str, record: Measurement, raw_path: Path) -> StoredMeasurement:
        """Store one measurement, unless a good entry exists; return the entry.

        Raises:
            ValueError: the record is INVALID or interrupted, has another key, or does not name ``raw_path`` by its sha256.
        """
        if not is_keepable(record):
            raise ValueError(f"this {record.verdict} measurement does not belong in the ledger")
        if record.key != key:
            raise ValueError(f"the record has the key {record.key}, not {key}")
        if file_sha256(raw_path) != record.raw_sha256:
            raise ValueError(f"{raw_path} is not the raw file that the record names")
        entry = self._entry(key)

        def fill(draft: Path) -> None:
            link_or_copy(raw_path, draft / RAW)
            record.write(draft / RECORD)

        return store_entry(entry, fill, lambda: self.find(key)) or StoredMeasurement(record, entry / RAW)

    def forget(self, key: str, raw_sha256: str | None) -> None:
        """Move an entry aside if its results have this sha256: the current thresholds reject it, and its point must be measured again."""
        entry = self._entry(key)
        if raw_sha256 and (entry / RAW).exists() and file_sha256(entry / RAW) == raw_sha256:
            self._set_aside(entry, ServemarkError("It is INVALID by the current thresholds."))

    def take_out(self, key: str, folder: Path) -> None:
        """Move an entry, good or damaged, into ``folder`` on the same disk; do nothing without one."""
        entry = self._entry(key)
        with contextlib.suppress(FileNotFoundError):
            os.replace(entry, folder / entry.name)

    def has(self, key: str) -> bool:
        """Return whether both files of an entry exist, good or damaged; read nothing."""
        return all((self._entry(key) / name).exists() for name in (RECORD, RAW))

    def missing(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Return the keys without a usable entry, in the given order. Hash the raw files; move nothing."""
        absent = []
        for key in keys:
            try:
                self._checked(key)
            except (ServemarkError, OSError):
                absent.append(key)
        return tuple(absent)

    def _entry(self, key: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{64}", key):
            raise ValueError(f"{key!r} is not a ledger key (64 hexadecimal digits)")
        return self.root / key[:2] / key

    def _checked(self, key: str) -> StoredMeasurement:
        """Read an entry; raise OSError for a file that cannot be read, ServemarkError for any other fault."""
        entry = self._entry(key)
        (entry / RECORD).read_bytes()  # Record.read raises ServemarkError for an unreadable file too.
        sha256, record = file_sha256(entry / RAW), Measurement.read(entry / RECORD)
        if (record.key, record.raw_sha256) != (key, sha256) or record.verdict not in KEEPABLE:
            raise ServemarkError(f"{entry} contains a {record.verdict} measurement with the key {record.key} and the raw file {sha256}.")
        return StoredMeasurement(record, entry / RAW)

    def _set_aside(self, entry: Path, error: Exception) -> None:
        damaged = self.root / "damaged"
        damaged.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(dir=damaged, prefix=f"{entry.name[:16]}-"))
        try:
            os.replace(entry, place / entry.name)
        except FileNotFoundError:  # Another process moved it first.
            place.rmdir()
        else:
            what = str(error).splitlines()[0]
            self.warnings.append(f"A stored measurement cannot be used: {what} servemark moved it to {place} and measures its point again.")


def store_entry(entry: Path, fill: Callable[[Path], None], existing: Callable[[], Entry | None]) -> Entry | None:
    """Store an entry by one rename, so that it is complete or absent.

    Args:
        entry: the entry's folder.
        fill: write the entry's files into a draft folder next to it.
        existing: return the usable entry that another job has stored meanwhile; remove a damaged one and return None.

    Returns:
        The existing entry; None if this one was stored.
    """
    entry.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=entry.parent, prefix=".draft-"))
    try:
        draft.chmod(0o755)
        fill(draft)
        while True:
            try:
                os.rename(draft, entry)
                return None
            except OSError:
                if not entry.exists():
                    raise
            if (found := existing()) is not None:
                return found
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def link_or_copy(source: Path, destination: Path) -> None:
    """Make ``destination`` a hard link to ``source``, or a copy if the file system cannot link."""
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)


def file_sha256(path: Path) -> str:
    """Return the sha256 (hex) of one file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
