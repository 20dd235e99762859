"""What a log says around the lines that a failure quotes: a few lines of each, without secrets, for the page to carry along."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from servemark.diagnosis.text import LONGEST_LINE, stream
from servemark.records import Failure
from servemark.security.redaction import Redactor

CONTEXT = 6
"""Lines before and after each quoted line."""
LAST_LINES = 25
"""Of a log in which no quoted line is found."""
MOST_LINES, LINE_LENGTH = 60, 300
MOST_EXCERPTS = 40


@dataclass(frozen=True)
class Excerpt:
    """``lines`` are (text, whether the failure quotes it); ``note`` says what they are, or why there are none."""

    note: str
    lines: tuple[tuple[str, bool], ...] = ()


Key = tuple[str, tuple[str, ...]]


def key(failure: Failure) -> Key:
    """Return what decides a failure's excerpt: its log and the quoted lines."""
    return failure.log or "", failure.quote


def of_failures(failures: Iterable[Failure], run_folder: Path) -> Mapping[Key, Excerpt]:
    """Return the excerpt of every failure that names a log of this run, by ``key``; of at most ``MOST_EXCERPTS``."""
    redact = Redactor()
    found: dict[Key, Excerpt] = {}
    for failure in failures:
        if failure.log and key(failure) not in found and len(found) < MOST_EXCERPTS:
            path = locate(failure.log, run_folder)
            found[key(failure)] = read(path, failure.quote, redact) if path else Excerpt(_GONE)
    return found


_GONE = "The log is not in the run's folder."


def locate(log: str, run_folder: Path) -> Path | None:
    """Return the file of a run that a failure's ``log`` names, wherever the run's folder lies now; None where there is none."""
    parts = PurePosixPath(log).parts
    after = [index for index in range(1, len(parts)) if parts[index - 1] == "results" and parts[index] == run_folder.name]
    if not after or ".." in parts:
        return None
    path = run_folder.joinpath(*parts[after[-1] + 1 :])
    return path if path.is_file() else None


def read(path: Path, quote: Sequence[str], redact: Redactor) -> Excerpt:
    """Return the first place of every quoted line with ``CONTEXT`` lines around it, or the last lines of the log."""
    wanted = {line[:LONGEST_LINE] for line in quote if line.strip()}
    before: deque[str] = deque(maxlen=CONTEXT)
    last: deque[str] = deque(maxlen=LAST_LINES)
    lines: list[tuple[str, bool]] = []
    after = skipped = 0
    for line in stream(path):
        last.append(line)
        if line[:LONGEST_LINE] in wanted and len(lines) < MOST_LINES:
            wanted.discard(line[:LONGEST_LINE])
            if skipped > len(before):
                lines.append((f"[{skipped - len(before)} lines left out]", False))
            lines += [(text, False) for text in before]
            lines.append((line, True))
            before.clear()
            after, skipped = CONTEXT, 0
        elif after and len(lines) < MOST_LINES:
            lines.append((line, False))
            after -= 1
        else:
            before.append(line)
            skipped += 1
    if not lines:
        return Excerpt(f"The last lines of {path.name}:", _clean([(line, False) for line in last], redact))
    if skipped:
        lines.append((f"[{skipped} lines left out]", False))
    return Excerpt(f"The quoted lines in {path.name} with what is around them:", _clean(lines, redact))


def _clean(lines: Sequence[tuple[str, bool]], redact: Redactor) -> tuple[tuple[str, bool], ...]:
    # All at once, because a key may span lines; a redacted one is one line, and then no line is known to be quoted.
    clean = redact("\n".join(text for text, _ in lines)).split("\n")
    quoted = [mark for _, mark in lines] if len(clean) == len(lines) else [False] * len(clean)
    return tuple((_cut(text), mark) for text, mark in zip(clean, quoted, strict=True))


def _cut(text: str) -> str:
    return text if len(text) <= LINE_LENGTH else text[: LINE_LENGTH - 1] + "\N{HORIZONTAL ELLIPSIS}"
