"""Find the cause of a failure in a log, and what to do about it: ``catalogue.yaml`` and ``stalls.yaml`` hold the causes."""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Literal

from pydantic import field_validator

from servemark.diagnosis.text import Log, error_lines, parse, ray_error_lines, root_error_lines, torn_traceback, tracebacks, window
from servemark.files.yaml_data import read_yaml
from servemark.records import Strict


class Row(Strict):
    """One known cause; the top of ``catalogue.yaml`` explains the fields."""

    id: str
    kind: Literal["fatal", "hang", "silent", "warning"]
    reason: str
    pattern: re.Pattern[str] | None = None
    cause: str
    remedy: str
    generic: bool = False
    last: bool = False
    first: bool = False
    lines: int = 1

    @field_validator("pattern", mode="before")
    @classmethod
    def _compile(cls, value: str | None) -> re.Pattern[str] | None:
        return re.compile(value, re.MULTILINE) if value else None


class Diagnosis(Strict):
    """A failure that a log explains: reason code, cause and remedy, and log lines, verbatim."""

    id: str
    reason: str
    cause: str
    remedy: str
    quote: tuple[str, ...]


class Stall(Strict):
    """Why a start makes no progress at a stage, if its log shows no cause: the end of "Likely cause: ...", and what to do."""

    cause: str
    remedy: str


@cache
def stalls() -> dict[str, Stall]:
    """Return the entries of ``stalls.yaml`` by stage."""
    data = read_yaml(Path(__file__).with_name("stalls.yaml"))
    return {stage: Stall(**entry) for stage, entry in data.items()}


@cache
def catalogue() -> tuple[Row, ...]:
    """Return all rows of ``catalogue.yaml``, in its order."""
    data = read_yaml(Path(__file__).with_name("catalogue.yaml"))
    return tuple(Row(kind=item.pop("class"), **item) for item in data)


def row(reason: str) -> Row:
    """Return the row of a reason code, for stages that detect the state itself; raise KeyError without one."""
    return {candidate.reason: candidate for candidate in reversed(catalogue())}[reason]


def diagnose(log: Log, *, stop_requested: bool = False, stalled: bool = False) -> Diagnosis | None:
    """Return the known cause that a log shows, or None.

    Specific rows take precedence over generic ones. Among equal rows the first matching line wins, because later errors are usually
    consequences.

    Args:
        log: the text, the ``Path`` of a file, or lines.
        stop_requested: servemark asked the server to stop, so lines after the shutdown began are no failure.
        stalled: the process runs but makes no progress, so causes of hangs count too, the latest line first.
    """
    lines = window(log, until_shutdown=stop_requested)
    text = "\n".join(lines)
    specific = [r for r in catalogue() if not r.generic]
    hit = _pick(text, [r for r in specific if r.kind == "fatal"])
    if not hit and not stop_requested:
        hit = _pick(text, [r for r in specific if r.kind == "silent"])
    if not hit and stalled:
        hit = _pick(text, [r for r in catalogue() if r.kind == "hang"], latest=True)
    if not hit and not stop_requested:
        hit = _pick(text, [r for r in catalogue() if r.generic])
    return _diagnosis(lines, *hit) if hit else None


def root_error(log: Log) -> tuple[str, ...]:
    """Return the server's own error, verbatim, for a log that matches no row; empty for an empty log.

    vLLM logs the root cause first and consequences later ("See root cause above"). So the first of these counts: the command line
    parser's error; the first traceback (its final line, the indented lines below, and the exceptions chained to it); the first error
    record; the last five lines. :func:`servemark.diagnosis.text.torn_traceback` covers tracebacks mixed with other processes' lines.
    """
    return root_error_lines(window(log))


def states_error(log: Log) -> bool:
    """Return whether any line of a log is an error; without one, `root_error` quotes the last lines."""
    return bool(error_lines(window(log)))


def first_errors(files: Iterable[Path]) -> tuple[str, ...]:
    """Return the first errors in the first of these logs of Ray's processes that has any; each line begins with the file's name."""
    found = ((path, lines) for path in files if (lines := ray_error_lines(window(path))))
    return next((tuple(f"{path.name}: {line}" for line in lines) for path, lines in found), ())


def warnings(log: Log) -> tuple[Diagnosis, ...]:
    """Return every warning row that matches a log, each once; warnings never cause a failure."""
    lines = window(log)
    hits = (_pick("\n".join(lines), [r]) for r in catalogue() if r.kind == "warning")
    return tuple(_diagnosis(lines, *hit) for hit in hits if hit)


def _pick(text: str, rows: Iterable[Row], latest: bool = False) -> tuple[Row, int] | None:
    """Return the row with the first (or the latest) match and the number of the matching line."""
    hits = [(offset, r) for r in rows if (offset := _offset(text, r, latest)) is not None]
    if not hits:
        return None
    offset, found = (max if latest else min)(hits, key=lambda hit: hit[0])
    return found, text.count("\n", 0, offset)


def _offset(text: str, candidate: Row, latest: bool) -> int | None:
    if candidate.pattern is None:
        return None
    if candidate.last:
        return _offset_in_last_line(text, candidate.pattern)
    matches = candidate.pattern.finditer(text)
    found = deque(matches, maxlen=1) if latest else list(islice(matches, 1))
    if not found:
        return None
    offset = found[0].start()
    # After an error, such a row is a consequence.
    if candidate.first and error_lines(text[: text.rfind("\n", 0, offset) + 1].split("\n")):
        return None
    return offset


def _offset_in_last_line(text: str, pattern: re.Pattern[str]) -> int | None:
    """Return the offset of the last line that is neither empty nor a heartbeat of a hanging start, if the pattern matches it."""
    heartbeats = [r.pattern for r in catalogue() if r.kind == "hang" and not r.last and r.pattern]
    end = len(text)
    while end > 0:
        start = text.rfind("\n", 0, end) + 1
        line = text[start:end]
        if line.strip() and not any(beat.search(line) for beat in heartbeats):
            return start if pattern.search(line) else None
        end = start - 1
    return None


def _diagnosis(lines: Sequence[str], found: Row, index: int) -> Diagnosis:
    matching = tuple(lines[index : index + found.lines])
    quote = (*root_error_lines(lines), *matching) if found.generic else _with_its_error(lines, index, matching)
    same = found.model_dump(include={"id", "reason", "cause", "remedy"})
    return Diagnosis(**same, quote=tuple(dict.fromkeys(quote)))


def _with_its_error(lines: Sequence[str], index: int, matching: tuple[str, ...]) -> tuple[str, ...]:
    """Return the matching lines with the final ``SomeError: ...`` line of their traceback, or the remains of a torn traceback."""
    parsed = [parse(line) for line in lines]
    found = tracebacks(parsed)
    for start, final in found:
        if start < index < final and parsed[index].writer == parsed[start].writer:
            return (*matching, lines[final])
    torn = torn_traceback(parsed, found)
    return tuple(lines[i] for i in torn) if index in torn else matching
