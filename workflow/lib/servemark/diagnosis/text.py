"""Reading a server's log in bounded memory: colour codes, noise, process prefixes and Python tracebacks."""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import NamedTuple, TypeAlias

Log: TypeAlias = str | Path | Iterable[str]

HEAD = 1 << 20
AFTER = 1 << 20
TAIL = 2 << 20
LONGEST_LINE = 4000
# The tracebacks of eight workers that fail at once, run into one another, and room to spare.
TORN = 2000

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# vLLM puts "(APIServer pid=1) " before each line of a process, Ray one more for each actor.
_PROCESS = re.compile(r"(?:\([^()]*\bpid=[^()]*\) ?)*")
_RECORD = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\.\.\. )?(?:\[[^\]]*\])? ?")
# ERR is how Ray's command line names the level.
_ERROR = re.compile(r"\b(?:ERROR|ERR|CRITICAL|Traceback)\b|^[\w.]+Error\b|\berror: ")
# Statistics that Ray's processes write every minute, and what the others say when the raylet is gone: no causes.
_RAY_NOISE = ("[state-dump]", "Raylet is terminated")
# Errors and failed checks (C) in the logs of Ray's own processes, and what a process says that a signal ends.
_RAY_ERROR = re.compile(r"^\[\d{4}-\d\d-\d\d [\d:,]+ [EFC] \d+ \d+\]|^\*\*\* SIG\w+ received")
_ARGPARSE = re.compile(r"^[\w./-]+(?: [\w-]+)*: error: ")
# What vLLM logs right before an exception's traceback: it says that there is one, and no more.
_ANNOUNCEMENT = re.compile(r"\w+ (?:hit an exception|failed to start|failed|encountered a fatal error)\.$")
# The last line of a traceback, the lines above it that name a place, and those that may raise an exception without a message.
_FINAL = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:\(\w+\))?(?::(?: |$)|$)")
_PLACE = re.compile(r'\s+File ".*", line \d+, in ')
_SOURCE = re.compile(r"\s+(?:assert|raise)\b")
_BEGIN = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_SHUTDOWN = re.compile(r"\[shutdown\]|SIGTERM received at")
_NOISE_ENDS = ("it/s]", "s/it]", " 200 OK")


class Line(NamedTuple):
    """One log line: its writer (process prefix and level of the log record) and its message."""

    writer: tuple[str, str]
    message: str


class Traceback(NamedTuple):
    """Indices of a Python traceback's first line and of its final ``SomeError: ...`` line."""

    start: int
    final: int


def stream(log: Log) -> Iterator[str]:
    """Yield lines of a log (text, ``Path`` or lines) without line ends and colour codes; carriage returns of progress bars end a line."""
    if isinstance(log, Path):
        with log.open(errors="replace") as handle:
            yield from stream(iter(partial(handle.readline, 1 << 16), ""))
        return
    for raw in io.StringIO(log, newline=None) if isinstance(log, str) else log:
        line = raw.rstrip()
        yield _ANSI.sub("", line) if "\x1b" in line else line


def window(log: Log, *, until_shutdown: bool = False) -> list[str]:
    """Return the lines of a log that can state a cause, at most 4 Mi characters of them.

    Access lines of answered requests, progress bars and throughput lines are dropped first: they are nearly all of a
    long log. Of the rest the first 1 Mi characters stay, then 1 Mi from the first error on, and the last 2 Mi.
    Lines are cut at 4,000 characters. ``until_shutdown`` stops at the first line of a shutdown. A log of 200 MB takes about 3 s.
    """
    head: list[str] = []
    after: list[str] = []
    tail: deque[str] = deque()
    head_size = after_size = tail_size = 0
    failed = False
    lines = stream(log)
    if until_shutdown:
        lines = takewhile(lambda line: not _SHUTDOWN.search(line), lines)
    for line in (line[:LONGEST_LINE] for line in lines if not line.endswith(_NOISE_ENDS) and "Avg prompt throughput" not in line):
        size = len(line) + 1
        failed = failed or (head_size >= HEAD and bool(_ERROR.search(line)))
        if head_size < HEAD:
            head.append(line)
            head_size += size
        elif failed and after_size < AFTER:
            after.append(line)
            after_size += size
        else:
            tail.append(line)
            tail_size += size
            while tail_size > TAIL:
                tail_size -= len(tail.popleft()) + 1
    return [*head, *after, *tail]


def parse(line: str) -> Line:
    """Split a clean log line into its writer and its message."""
    end = _PROCESS.match(line).end()  # type: ignore[union-attr]  # the pattern matches the empty string too
    record = _RECORD.match(line, end)
    return Line((line[:end], record[1] if record else ""), line[record.end() if record else end :])


def tracebacks(lines: Sequence[Line]) -> list[Traceback]:
    """Return all complete Python tracebacks, by their first line; those of interleaved processes are kept apart.

    One in which its writer announces another exception is none: the lines of two processes carry one prefix.
    """
    found = []
    begun: dict[tuple[str, str], int] = {}
    ignored: set[tuple[str, str]] = set()
    for index, (writer, message) in enumerate(lines):
        if message.startswith(_BEGIN):
            if writer not in ignored:
                begun[writer] = index
            ignored.discard(writer)
        elif message.startswith("Exception ignored in"):
            ignored.add(writer)
        elif _ANNOUNCEMENT.match(message):
            begun.pop(writer, None)
        elif writer in begun and message and not message[0].isspace():
            found.append(Traceback(begun.pop(writer), index))
    return sorted(found)


def torn_traceback(lines: Sequence[Line], found: Sequence[Traceback]) -> tuple[int, ...]:
    """Return what can still be told of an announced exception whose traceback other processes' lines tore apart, as indices.

    Workers that fail at once write into one another's lines, so that prefixes are missing or stand before another's line: who wrote
    what is lost. The first final line after the announcement is taken, and where it has no message, also the nearest line above it
    that may have raised it, with the nearest place above that; at most four lines.

    Args:
        found: the whole tracebacks. Where one of them comes first, or is what was announced, nothing is torn.
    """
    announced = next((i for i, line in enumerate(lines) if _ANNOUNCEMENT.match(line.message)), None)
    if announced is None:
        return ()
    begun = next((i for i in range(announced, len(lines)) if lines[i].message.startswith(_BEGIN)), announced)
    if found and found[0].start <= begun:
        return ()
    level = lines[announced].writer[1]
    near = range(announced + 1, min(announced + TORN, len(lines)))
    final = next((i for i in near if lines[i].writer[1] == level and _FINAL.match(lines[i].message)), None)
    if final is None:
        return ()
    source = place = None
    if ":" not in lines[final].message:
        source = next((i for i in range(final, announced, -1) if _SOURCE.match(lines[i].message)), None)
    if source is not None:
        place = next((i for i in range(source, announced, -1) if _PLACE.match(lines[i].message)), None)
    return tuple(i for i in (announced, place, source, final) if i is not None)


def root_error_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the server's own words for its first failure, verbatim; see `servemark.diagnosis.root_error`."""
    return error_lines(lines) or tuple([line for line in lines if line.strip()][-5:])


def error_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Like `root_error_lines`, but empty when no line is an error."""
    parsed = [parse(line) for line in lines]
    found = tracebacks(parsed)
    refused = next((i for i, line in enumerate(parsed) if _ARGPARSE.match(line.message)), None)
    if refused is not None and (not found or refused < found[0].start):
        return (lines[refused],)
    if torn := torn_traceback(parsed, found):
        return tuple(lines[i] for i in torn)
    if found:
        return _chain(lines, parsed, found)
    record = next((i for i, line in enumerate(parsed) if _ERROR.search(lines[i]) and line.message), None)
    return _with_continuation(lines, parsed, record) if record is not None else ()


def ray_error_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the first errors in a log of one of Ray's own processes; empty when there is none."""
    told = [line for line in lines if not any(noise in line for noise in _RAY_NOISE)]
    return error_lines(told) or tuple(islice((line for line in told if _RAY_ERROR.search(line)), 3))


def _chain(lines: Sequence[str], parsed: Sequence[Line], found: Sequence[Traceback]) -> tuple[str, ...]:
    """Return the final lines of the first traceback and of those that Python chained to it."""
    current, quote = found[0], list(_with_continuation(lines, parsed, found[0].final))
    writer = parsed[current.start].writer
    for later in found[1:]:
        if parsed[later.start].writer != writer:
            continue
        between = parsed[current.final : later.start]
        if not any(line.writer == writer and line.message.startswith(_CHAINED) for line in between):
            break
        quote += _with_continuation(lines, parsed, later.final)
        current = later
    return tuple(quote)


def _with_continuation(lines: Sequence[str], parsed: Sequence[Line], index: int) -> tuple[str, ...]:
    """Return a line and up to eight indented lines that its writer put under it (multi-line messages)."""
    writer = parsed[index].writer
    quote = [lines[index]]
    for line, (who, message) in zip(lines[index + 1 :], parsed[index + 1 :], strict=True):
        if who != writer or not message.strip():
            continue
        if not message[0].isspace() or len(quote) > 8:
            break
        quote.append(line)
    return tuple(quote)
