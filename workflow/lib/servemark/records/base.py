"""Read, check and write records."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from servemark.errors import ServemarkError
from servemark.files import storage

MOST = 10**9
"""Upper bound of counts and of seconds (32 years)."""
Count = Annotated[int, Field(strict=True, ge=1, le=MOST)]


class Strict(BaseModel):
    """Base of all parts: refuses unknown keys, and its values are frozen."""

    # A class is built when it is first used: each stage imports all records and uses a few.
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), defer_build=True)


class Failure(Strict):
    """Why a stage of a deployment failed. Each later stage copies it into its record, so report and final check find it."""

    stage: str = Field(description="rule that failed, e.g. await_ready")
    reason: str = Field(description="stable snake_case code, e.g. server_exited")
    detail: str = Field(description="what happened, in a sentence")
    log: str | None = Field(default=None, description="log file that shows the cause, relative to the checkout")
    quote: tuple[str, ...] = Field(default=(), description="log lines that state the cause, verbatim")
    remedy: str | None = Field(default=None, description="what to do next")


class Record(Strict):
    """A whole file. ``KIND`` and ``VERSION`` are fixed by each subclass."""

    KIND: ClassVar[str] = ""
    VERSION: ClassVar[int] = 1

    @classmethod
    def read(cls: type[RecordT], path: str | os.PathLike[str]) -> RecordT:
        """Read and check one record; raise ServemarkError if it is missing, or of another kind, version or type."""
        again = "Delete it and run snakemake again."
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            kind, version = (data.pop("kind", None), data.pop("version", None)) if isinstance(data, dict) else (None, None)
            known = None if kind != cls.KIND else data if version == cls.VERSION else cls.upgraded(data, version)
            if known is not None:
                return cls.model_validate(known)
            fault = f"kind {kind!r} version {version!r}; expected {cls.KIND!r} version {cls.VERSION}."
        except FileNotFoundError:
            again = "Run snakemake again: it creates missing files."
            raise ServemarkError(f"The record {path} is missing.", do=again, reason="record_missing") from None
        # ValueError: not JSON, or a value that does not fit its type.
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            fault = str(error)
        raise ServemarkError(f"The record {path} cannot be read: {fault}", do=again, reason="record_broken")

    @classmethod
    def read_or_none(cls: type[RecordT], path: str | os.PathLike[str]) -> RecordT | None:
        """Return one record; None if it is missing or broken."""
        try:
            return cls.read(path)
        except ServemarkError:
            return None

    @classmethod
    def upgraded(cls, data: Any, version: Any) -> dict[str, Any] | None:  # noqa: ARG003 - for the subclasses
        """Return the content of a record of an older version in the form of this version; None if this class cannot read that version.

        ``data`` may be any JSON. KeyError, TypeError and AttributeError mean that the record is broken.
        """
        return None

    def to_json(self) -> str:
        """Return the file's text: kind and version first, stable key order, two-space indent."""
        data = {"kind": self.KIND, "version": self.VERSION, **self.model_dump(mode="json")}
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the record atomically: a reader finds all of it or nothing."""
        write_atomically(path, self.to_json())


RecordT = TypeVar("RecordT", bound=Record)


def write_atomically(path: str | os.PathLike[str], content: str | bytes, mode: int = 0o644) -> None:
    """Write ``content`` (text as UTF-8) with :func:`replacing`."""
    with replacing(path, mode) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Yield a temporary file next to ``path``. At the end, flush it to disk and rename it to ``path``; after an error, delete it."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with storage.naming(target), os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def utc_now() -> str:
    """Return the time in the format of records: UTC, ISO 8601, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
