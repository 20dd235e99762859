"""``hf:ORG/NAME@REVISION``: a model of the hub as the configuration names it."""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = "hf:"
DEFAULT_REVISION = "main"
# What the hub allows in a name: neither dashes nor dots at the ends or doubled (huggingface_hub/utils/_validators.py).
_PART = r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_REPOSITORY = re.compile(rf"{_PART}/{_PART}")
_REVISION = re.compile(r"(?!.*(?:\.\.|//))[A-Za-z0-9_](?:[A-Za-z0-9._/+-]{0,198}[A-Za-z0-9_+-])?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubSource:
    """A repository and what names a commit in it: a branch, a tag or the commit itself."""

    repository: str
    revision: str = DEFAULT_REVISION

    @property
    def commit(self) -> str | None:
        """The revision where it is a whole commit; None for a branch, a tag or a shortened commit."""
        return self.revision if is_commit(self.revision) else None

    @property
    def folder(self) -> str:
        """The repository as one part of a path; no name of the hub holds two dashes in a row."""
        return self.repository.replace("/", "--")

    def stated(self, commit: str) -> str:
        """Return the source as a manifest states it: the configured revision and its commit."""
        asked = f"{PREFIX}{self.repository}@{self.revision}"
        return asked if self.revision == commit else f"{asked} (commit {commit})"


def is_commit(text: str) -> bool:
    """Return whether ``text`` is a whole commit: 40 hexadecimal digits."""
    return _COMMIT.fullmatch(text) is not None


def parse(source: str) -> HubSource | None:
    """Read ``hf:ORG/NAME`` or ``hf:ORG/NAME@REVISION``; None for anything else. Without a revision: ``main``."""
    if not source.startswith(PREFIX):
        return None
    repository, at, revision = source.removeprefix(PREFIX).partition("@")
    if not _REPOSITORY.fullmatch(repository) or (at and not _REVISION.fullmatch(revision)):
        return None
    return HubSource(repository, revision or DEFAULT_REVISION)
