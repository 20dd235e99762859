"""The state of the sources that a run was started from."""

from __future__ import annotations

from pydantic import Field

from servemark.records.base import Record, Strict


class GivenFile(Strict):
    """A configuration file as the user wrote it."""

    path: str
    sha256: str
    text: str


class Sources(Record):
    """What a run's main process was started from. Written at its start, copied into the folder of every attempt that it makes."""

    KIND = "sources"
    servemark: str = Field(description="version")
    commit: str | None = Field(default=None, description="of the checkout, 40 hexadecimal digits")
    why: str | None = Field(default=None, description="why there is no commit")
    dirty: bool | None = Field(
        default=None,
        description="tracked files differ from the commit, or what runs holds untracked ones; None without a commit",
    )
    changes: int = Field(default=0, description="number of such files")
    changed: tuple[str, ...] = Field(default=(), description="their names, at most 100")
    changes_sha256: str | None = Field(
        default=None,
        description="sha256 of a line `SHA256  NAME` for each of them in the order of names, `deleted  NAME` for one that is gone",
    )
    configuration: tuple[GivenFile, ...] = Field(
        default=(), description="the files that were given, later ones over earlier ones; --config is in none of them"
    )
