"""The git state of the checkout: recorded when a run starts and copied to each of its attempts.

The main process reads it, because nodes may have no git. No rule depends on it, so a commit or an edit makes nothing run again.
"""

import hashlib
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from servemark import __version__
from servemark.records import Sources, write_atomically
from servemark.records.inputs import GivenFile

NAME = "sources.json"
# Untracked files elsewhere, such as a configuration, do not count as changes.
_PARTS = ("Snakefile", "workflow", "plugins", "envs", "profiles")
_LISTED = 100
_TIMEOUT_S = 20


class _GitError(Exception):
    pass


def look(checkout: Path, configuration: Sequence[Path] = ()) -> Sources:
    """Return a checkout's commit and changes, and the text of the configuration files; without git, the reason why there are none."""
    given = tuple(_given(path) for path in configuration if path.is_file())
    try:
        # The checkout may be an untracked folder in another repository, such as a home directory's.
        commit = _git(checkout, "rev-parse", "HEAD", "HEAD:./Snakefile").decode().split()[0]
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
    """Write the git state into the run's folder."""
    sources.write(run_folder / NAME)


def hand_over(run_folder: Path, attempt: Path) -> None:
    """Copy the run's git state, if it exists, into an attempt's folder."""
    path = run_folder / NAME
    if path.exists():
        write_atomically(attempt / NAME, path.read_text(encoding="utf-8"))


def words(states: Iterable[Sources]) -> str:
    """Return the commits, each with ``-dirty`` if files were changed, or the reasons why there are none."""
    found = [f"{state.commit[:12]}{'-dirty' if state.dirty else ''}" if state.commit else state.why for state in states]
    return ", ".join(dict.fromkeys(filter(None, found))) or "not recorded"


def _given(path: Path) -> GivenFile:
    content = path.read_bytes()
    text = content.decode("utf-8", errors="replace")
    return GivenFile(path=_printable(str(path)), sha256=hashlib.sha256(content).hexdigest(), text=text)


def _changed(checkout: Path) -> set[str]:
    """Return tracked files that differ from the commit, and untracked files in :data:`_PARTS`."""
    tracked = _git(checkout, "diff", "HEAD", "--name-only", "-z", "--no-renames", "--relative", "--no-ext-diff")
    untracked = _git(checkout, "ls-files", "--others", "--exclude-standard", "-z", "--", *_PARTS)
    return {os.fsdecode(name) for name in (tracked + untracked).split(b"\0") if name}


def _content(path: Path) -> str | None:
    """Return the sha256 of a file's content or a link's target; None without a file."""
    try:
        content = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
    except OSError:
        return None
    return hashlib.sha256(content).hexdigest()


def _git(checkout: Path, *arguments: str) -> bytes:
    env = dict(os.environ) | {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    argv = ["git", "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(argv, cwd=checkout, env=env, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise _GitError(f"git does not run: {type(error).__name__}") from None
    if done.returncode != 0:
        first = next(iter(done.stderr.decode(errors="replace").strip().splitlines()), f"git exited with code {done.returncode}")
        raise _GitError("not a git checkout" if re.search("not a git repository|Snakefile|HEAD", first) else first)
    return done.stdout


def _printable(name: str) -> str:
    return name.encode("utf-8", errors="replace").decode()
