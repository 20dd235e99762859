"""``jobs.jsonl``: one line for each thing that happened to a job of a run. Its path is in SERVEMARK_JOBS_FILE.

Events, each with ``event`` and ``time`` (seconds since 1970): ``run`` {run, main, host, checkout}: an executor started in this checkout,
``run`` is the name of all its jobs; ``submitted`` {run, job, label, kind, wildcards, deployment, log}; ``state`` {job, state, reason,
nodes}: it waits or runs; ``ended`` {run, job, label, state, success, exit_code, signal, reason, nodes, by, elapsed_s, queue_wait_s};
``cancelled`` {run, jobs, taken}: these jobs were told to end, ``taken``: Slurm has accepted that; ``run_ended`` {run}: nothing of that
run is left in the queue; ``set_aside`` {run}: a run of another checkout, from which this journal was copied.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from servemark.machine.checkout import Checkout
from servemark.records import write_atomically

VARIABLE = "SERVEMARK_JOBS_FILE"


def append(path: Path | None, event: str, **facts: Any) -> None:
    """Add one line, whole. A file that cannot be written is no reason to lose a job: the line is lost instead."""
    if path is None:
        return
    line = _line(event, facts)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)


def _line(event: str, facts: Mapping[str, Any]) -> str:
    return json.dumps({"event": event, "time": round(time.time(), 3), **facts}, ensure_ascii=False) + "\n"


def set_aside(path: Path, runs: Iterable[str]) -> None:
    """Note that these runs are another checkout's. As a new file, since a copy made of hard links shares this one with the original."""
    text = path.read_text(encoding="utf-8", errors="replace")
    write_atomically(path, text + "".join(_line("set_aside", {"run": run}) for run in runs))


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line; none when there is no file."""
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            with contextlib.suppress(ValueError):
                if isinstance(entry := json.loads(line), dict):
                    yield entry


def open_runs(path: Path) -> dict[str, Checkout | None]:
    """Return the runs that may have jobs in the queue, oldest first: the name, and the checkout (None: an older version wrote none)."""
    found: dict[str, Checkout | None] = {}
    for entry in read(path):
        name = str(entry.get("run", ""))
        if entry.get("event") == "run" and name:
            found[name] = _checkout(entry)
        elif entry.get("event") in ("run_ended", "set_aside"):
            found.pop(name, None)
    return found


def _checkout(entry: Mapping[str, Any]) -> Checkout | None:
    try:
        return Checkout.model_validate(entry.get("checkout"))
    except ValidationError:
        return None


def closed(path: Path, run: str) -> bool:
    """Whether this run said that nothing of it is left in the queue."""
    return any(entry.get("event") == "run_ended" and entry.get("run") == run for entry in read(path))
