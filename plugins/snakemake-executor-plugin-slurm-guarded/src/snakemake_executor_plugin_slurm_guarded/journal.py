"""The journal ``jobs.jsonl``: one line for each event of a run and its jobs.

Events, each with ``event`` and ``time`` (seconds since 1970):

- ``run`` {run, main, host, checkout}: an executor started in this checkout; all of its jobs are named ``run``
- ``submitted`` {run, job, label, kind, name, wildcards, log}
- ``state`` {run, job, state, reason, nodes}: the job waits or runs
- ``ended`` {run, job, label, state, success, exit_code, signal, reason, nodes, by, elapsed_s, queue_wait_s}
- ``cancelled`` {run, jobs, taken}: cancellation was requested; ``taken``: Slurm has accepted it
- ``run_ended`` {run}: no job of the run is left in the queue
- ``set_aside`` {run}: the run belongs to another checkout, from which this journal was copied
"""

import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from snakemake_executor_plugin_slurm_guarded.records import Checkout

VARIABLE = "SNAKEMAKE_SLURM_GUARDED_JOURNAL"
DEFAULT = Path(".snakemake", "slurm-guarded", "jobs.jsonl")


def place() -> Path:
    """Return the path of this process's journal: from the environment, else below the current folder."""
    return Path(os.environ.get(VARIABLE) or DEFAULT).absolute()


def append(path: Path, event: str, **facts: Any) -> None:
    """Append one line. If the file cannot be written, only the line is lost."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # The next run cancels jobs by this file: only its owner may write it, whatever the umask.
        with open(path, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags, 0o644)) as stream:
            stream.write(_line(event, facts).encode())


def _line(event: str, facts: Mapping[str, Any]) -> str:
    return json.dumps({"event": event, "time": round(time.time(), 3), **facts}, ensure_ascii=False) + "\n"


def set_aside(path: Path, runs: Iterable[str]) -> None:
    """Note that these runs belong to another checkout. This writes a new file, as a copy made of hard links shares the old one."""
    text = path.read_text(encoding="utf-8", errors="replace")
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    new.write_text(text + "".join(_line("set_aside", {"run": run}) for run in runs), encoding="utf-8")
    new.replace(path)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the event of every complete line; none without a file."""
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            with contextlib.suppress(ValueError):
                if isinstance(entry := json.loads(line), dict):
                    yield entry


def open_runs(path: Path) -> dict[str, dict[str, Any]]:
    """Return the runs that may have jobs in the queue, oldest first, as name and event ``run``."""
    found: dict[str, dict[str, Any]] = {}
    for entry in read(path):
        if entry.get("event") == "run" and entry.get("run"):
            found[str(entry["run"])] = entry
        elif entry.get("event") in ("run_ended", "set_aside"):
            found.pop(str(entry.get("run")), None)
    return found


def checkout_of(entry: Mapping[str, Any]) -> Checkout | None:
    """Return the checkout in the event ``run``; None without one."""
    try:
        return Checkout.model_validate(entry.get("checkout"))
    except ValidationError:
        return None


def closed(path: Path, run: str) -> bool:
    """Return whether the journal notes that no job of this run is left in the queue."""
    return any(entry.get("event") == "run_ended" and entry.get("run") == run for entry in read(path))
