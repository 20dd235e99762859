"""The state of the checkout that a run is started from, noted when it starts and handed to every attempt that it makes.

The main process looks, because nodes may have no git, and because the answer of a later moment would be another one. Nothing
depends on the note, so a commit or an edit makes nothing run again.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from servemark import __version__
from servemark.records import Sources, write_atomically
from servemark.records.inputs import GivenFile

NAME = "sources.json"
# Untracked files elsewhere, such as a configuration, are no part of the workflow.
_PARTS = ("Snakefile", "workflow", "plugins", "envs", "profiles")
_LISTED = 100
_TIMEOUT_S = 20


class _GitError(Exception):
    pass


def look(checkout: Path, configuration: Sequence[Path] = ()) -> Sources:
    """Return the commit of a checkout, what differs from it, and the configuration files as they are given; never fails.

    Args:
        configuration: paths as the user gave them, relative to the current folder.
    """
    given = tuple(_given(path) for path in configuration if path.is_file())
    try:
        commit = _commit(checkout)
        changes = {name: _content(checkout / name) for name in sorted(_changed(checkout), key=os.fsencode)}
    except _GitError as error:
        return Sources(servemark=__version__, why=str(error), configuration=given)
    lines = "".join(f"{digest or 'deleted'}  {name}\n" for name, digest in changes.items())
    return Sources(
        servemark=__version__,
        commit=commit,
        dirty=bool(changes),
        changes=len(changes),
        changed=tuple(_printable(name) for name in list(changes)[:_LISTED]),
        changes_sha256=hashlib.sha256(os.fsencode(lines)).hexdigest() if changes else None,
        configuration=given,
    )


def note(run_folder: Path, sources: Sources) -> None:
    """Write it into the run's folder, where attempts take it from."""
    sources.write(run_folder / NAME)


def hand_over(run_folder: Path, attempt: Path) -> None:
    """Copy the run's note into an attempt's folder, where it stays; without a note there is nothing to copy."""
    path = run_folder / NAME
    if path.exists():
        write_atomically(attempt / NAME, path.read_text(encoding="utf-8"))


def words(states: Iterable[Sources]) -> str:
    """Return the commits, each with a mark when the tree differed from it; words where none was noted."""
    said = [
        f"{state.commit[:12]}-dirty" if state.commit and state.dirty else state.commit[:12] if state.commit else state.why
        for state in states
    ]
    return ", ".join(dict.fromkeys(filter(None, said))) or "not recorded"


def _given(path: Path) -> GivenFile:
    content = path.read_bytes()
    text = content.decode("utf-8", errors="replace")
    return GivenFile(path=_printable(str(path)), sha256=hashlib.sha256(content).hexdigest(), text=text)


def _commit(checkout: Path) -> str:
    # The folder may lie in a repository that knows nothing of it, such as a home directory's.
    _git(checkout, "ls-files", "--error-unmatch", "--", "Snakefile")
    return _git(checkout, "rev-parse", "--verify", "HEAD").decode().strip()


def _changed(checkout: Path) -> set[str]:
    """Return the names of tracked files that differ from the commit, and of untracked ones in the workflow's parts."""
    tracked = _git(checkout, "diff", "HEAD", "--name-only", "-z", "--no-renames", "--relative", "--no-ext-diff")
    untracked = _git(checkout, "ls-files", "--others", "--exclude-standard", "-z", "--", *_PARTS)
    return {os.fsdecode(name) for name in (tracked + untracked).split(b"\0") if name}


def _content(path: Path) -> str | None:
    """Return the sha256 of a file's content, of a link's target; None where there is no file."""
    try:
        content = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
    except OSError:
        return None
    return hashlib.sha256(content).hexdigest()


def _git(checkout: Path, *arguments: str) -> bytes:
    env = dict(os.environ) | {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", *arguments],
            cwd=checkout,
            env=env,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise _GitError(f"git does not run: {type(error).__name__}") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        first = said[0] if said else f"git ended with {done.returncode}"
        raise _GitError("not a git checkout" if "not a git repository" in first or "did not match" in first else first)
    return done.stdout


def _printable(name: str) -> str:
    return name.encode("utf-8", errors="replace").decode()
