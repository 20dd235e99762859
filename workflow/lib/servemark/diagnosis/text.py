"""Read a server's log in bounded memory: colour codes, noise, process prefixes and Python tracebacks."""

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
# Lines. The mixed tracebacks of eight workers that fail at once are shorter.
TORN_RANGE = 2000

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# vLLM puts "(APIServer pid=1) " in front of each line of a process, Ray another prefix for each actor.
_PROCESS = re.compile(r"(?:\([^()]*\bpid=[^()]*\) ?)*")
_RECORD = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\.\.\. )?(?:\[[^\]]*\])? ?")
# ERR is the level's name in Ray's command line.
_ERROR = re.compile(r"\b(?:ERROR|ERR|CRITICAL|Traceback)\b|^[\w.]+Error\b|\berror: ")
# No causes: statistics that Ray's processes write every minute, and what they write after the raylet ended.
_RAY_NOISE = ("[state-dump]", "Raylet is terminated")
# Errors and failed checks (C) in the logs of Ray's own processes, and the message of a process that a signal ends.
_RAY_ERROR = re.compile(r"^\[\d{4}-\d\d-\d\d [\d:,]+ [EFC] \d+ \d+\]|^\*\*\* SIG\w+ received")
_ARGPARSE = re.compile(r"^[\w./-]+(?: [\w-]+)*: error: ")
# vLLM's message in front of an exception's traceback, without the exception.
_ANNOUNCEMENT = re.compile(r"\w+ (?:hit an exception|failed to start|failed|encountered a fatal error)\.$")
# The last line of a traceback, the lines above it that name a place, and source lines that may raise an exception without a message.
_FINAL = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:\(\w+\))?(?::(?: |$)|$)")
_PLACE = re.compile(r'\s+File ".*", line \d+, in ')
_SOURCE = re.compile(r"\s+(?:assert|raise)\b")
_BEGIN = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_SHUTDOWN = re.compile(r"\[shutdown\]|SIGTERM received at")
_NOISE_ENDS = ("it/s]", "s/it]", " 200 OK")


class Line(NamedTuple):
    """One log line: writer (process prefix and level of the log record) and message."""

    writer: tuple[str, str]
    message: str


class Traceback(NamedTuple):
    """Indices of a Python traceback's first line and of its final ``SomeError: ...`` line."""

    start: int
    final: int


def stream(log: Log) -> Iterator[str]:
    """Yield lines of a log (text, ``Path`` or lines) without line ends and colour codes; a carriage return ends a line too."""
    if isinstance(log, Path):
        with log.open(errors="replace") as handle:
            yield from stream(iter(partial(handle.readline, 1 << 16), ""))
        return
    for raw in io.StringIO(log, newline=None) if isinstance(log, str) else log:
        line = raw.rstrip()
        yield ANSI.sub("", line) if "\x1b" in line else line


def window(log: Log, *, until_shutdown: bool = False) -> list[str]:
    """Return the lines of a log that can show a cause, at most 4 Mi characters.

    Access lines of successful requests, progress bars and throughput lines, which are most of a long log, are left out. Of the rest, the
    first 1 Mi characters stay, then 1 Mi from the first error on, and the last 2 Mi. Lines are cut at 4,000 characters. A log of 200 MB
    takes about 3 s. ``until_shutdown``: stop at the first line of a shutdown.
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
    """Return all complete Python tracebacks in order, also those of processes whose lines alternate.

    A traceback in which its writer announces another exception does not count: lines of two processes have the same prefix.
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
    """Return indices of the remains of an announced exception whose traceback is mixed with other processes' lines, at most four.

    If workers fail at once, their lines mix: prefixes are missing or stand in front of another process's line. The remains are the
    announcement and the first final line after it. If that has no message, the nearest line above that may have raised it and the nearest
    place above that line follow.

    Args:
        found: the complete tracebacks. If the first of them is earlier, or is the announced one, nothing is torn.
    """
    announced = next((i for i, line in enumerate(lines) if _ANNOUNCEMENT.match(line.message)), None)
    if announced is None:
        return ()
    begun = next((i for i in range(announced, len(lines)) if lines[i].message.startswith(_BEGIN)), announced)
    if found and found[0].start <= begun:
        return ()
    level = lines[announced].writer[1]
    near = range(announced + 1, min(announced + TORN_RANGE, len(lines)))
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
    """Return the server's first error, verbatim; see `servemark.diagnosis.root_error`."""
    return error_lines(lines) or tuple([line for line in lines if line.strip()][-5:])


def error_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the server's first error, verbatim; empty if no line is an error."""
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
    """Return the first errors in a log of one of Ray's own processes; empty without one."""
    kept = [line for line in lines if not any(noise in line for noise in _RAY_NOISE)]
    return error_lines(kept) or tuple(islice((line for line in kept if _RAY_ERROR.search(line)), 3))


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
    """Return a line and up to eight indented lines of the same writer below it (multi-line messages)."""
    writer = parsed[index].writer
    quote = [lines[index]]
    for line, (who, message) in zip(lines[index + 1 :], parsed[index + 1 :], strict=True):
        if who != writer or not message.strip():
            continue
        if not message[0].isspace() or len(quote) > 8:
            break
        quote.append(line)
    return tuple(quote)
