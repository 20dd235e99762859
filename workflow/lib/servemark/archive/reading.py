"""Files of a run under the names that they have in its archive."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from servemark.archive.seal import Digest
from servemark.errors import ServemarkError
from servemark.records import RecordT
from servemark.records.run import ArchivedFile

_ModelT = TypeVar("_ModelT", bound=BaseModel)


@dataclass(frozen=True)
class Reader:
    """Reads what the archive holds and nothing else.

    Attributes:
        folder: holds the files under their names in the archive.
        digests: of the files that the archive holds.
    """

    folder: Path
    digests: Mapping[str, Digest]

    def has(self, name: str) -> bool:
        """Whether the archive holds it."""
        return name in self.digests

    def file(self, name: str) -> ArchivedFile:
        """The reference to a file.

        Raises:
            ServemarkError: the archive does not hold it.
        """
        if name not in self.digests:
            raise ServemarkError(f"{name} is missing.", do="Run snakemake again.", reason="record_missing")
        return ArchivedFile(name=name, sha256=self.digests[name].sha256)

    def find(self, name: str) -> ArchivedFile | None:
        """The reference to a file, None where there is none."""
        return self.file(name) if self.has(name) else None

    def record(self, kind: type[RecordT], name: str) -> RecordT:
        """A record.

        Raises:
            ServemarkError: it is missing or cannot be read.
        """
        return kind.read(self.folder / self.file(name).name)

    def part(self, kind: type[_ModelT], name: str) -> _ModelT | None:
        """What is no record of its own but has a type; None where there is none.

        Raises:
            ServemarkError: it cannot be read.
        """
        if not self.has(name):
            return None
        try:
            return kind.model_validate_json((self.folder / name).read_bytes())
        except ValidationError as error:
            raise ServemarkError(f"{name} cannot be read: {error}", reason="record_broken") from None

    def json(self, name: str) -> dict[str, Any]:
        """A JSON object.

        Raises:
            ServemarkError: it is missing or is none.
        """
        try:
            data = json.loads((self.folder / self.file(name).name).read_bytes())
        except (ValueError, RecursionError) as error:
            raise ServemarkError(f"{name} cannot be read: {error}", reason="record_broken") from None
        if not isinstance(data, dict):
            raise ServemarkError(f"{name} is no JSON object.", reason="record_broken")
        return data

    def names(self, folder: str, suffix: str = "") -> list[str]:
        """The files directly in a folder, sorted."""
        return sorted(name for name in self._inside[0].get(folder, ()) if name.endswith(suffix))

    def folders(self, folder: str) -> list[str]:
        """The folders directly in a folder, sorted."""
        return sorted(self._inside[1].get(folder, ()))

    @cached_property
    def _inside(self) -> tuple[dict[str, list[str]], dict[str, set[str]]]:
        """The files and the folders directly in each folder."""
        files: dict[str, list[str]] = {}
        folders: dict[str, set[str]] = {}
        for name in self.digests:
            parent = name.rpartition("/")[0]
            files.setdefault(parent, []).append(name)
            while parent:
                child, parent = parent, parent.rpartition("/")[0]
                folders.setdefault(parent, set()).add(child)
        return files, folders
