"""The guard: a process that waits for the end of the main Snakemake and then clears the queue of its jobs.

The executor starts it. It leaves Snakemake's process tree and session, and so survives Ctrl-C, SIGHUP and ``kill -9`` of it. It reports in
``guard.log`` next to the journal. If the guard is killed too (the login node was rebooted), :mod:`leftovers` does its work before the next
run submits anything.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_slurm_guarded import commands, journal, queries
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed

# Cancelled jobs leave the queue after KillWait at the latest (30 s by default, 120 s on some sites), if their processes can be killed.
GONE_S = 150.0
# How long to go on when the controller does not respond.
PATIENCE_S = 600.0
# A submission that was cut off may reach the controller a moment after the first look.
_SECOND_LOOK_S = 3.0
_POLL_S, _LONGEST_PAUSE_S = 1.0, 30.0


def identity(pid: int) -> str | None:
    """Return ``PID:START`` of a living process, the start in clock ticks since boot (proc(5)); None for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{pid}:{fields[19]}"


def lives(main: str) -> bool:
    """Return whether the process with this :func:`identity` lives on this machine."""
    return identity(int(main.partition(":")[0])) == main


def may_live(entry: Mapping[str, Any]) -> bool:
    """Return whether the main process of a run may live, by the journal's event ``run``: it does, or it ran on another host."""
    return entry.get("host") != socket.gethostname() or lives(str(entry.get("main") or "0:"))


def launch(run: str, main: str, *, log: Path, jobs_file: Path) -> None:
    """Start the guard of the run whose jobs have the name ``run``; it waits for the end of the process with the identity ``main``."""
    argv = [sys.executable, "-m", __name__, run, main, str(log), str(jobs_file)]
    # The shell ends at once, so that the guard is nobody's child before anything can be interrupted.
    subprocess.run(
        ["/bin/sh", "-c", '"$@" &', "guard", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[1])},
        start_new_session=True,
        check=True,
    )


def sweep(
    run: str, say: Callable[[str], None], jobs_file: Path, *, patience_s: float = PATIENCE_S, sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Cancel a run's jobs until two looks in a row find none; return whether nothing is left after ``patience_s``."""
    give_up, silences, clean_looks = time.monotonic() + patience_s, 0, 0
    cancelled, again = set[str](), 0.0
    while True:
        try:
            left = queries.squeue([run], finished=False)
            if silences:
                say("Slurm answers again")
            silences, clean_looks = 0, 0 if left else clean_looks + 1
            ids = [job.id for job in left]
            if clean_looks == 2:
                say("nothing of the run is in the queue")
                return True
            if {*ids} - cancelled or (ids and time.monotonic() > again):
                say(f"cancelling {', '.join(f'{job.id} ({job.state.word})' for job in left)}")
                journal.append(jobs_file, "cancelled", run=run, jobs=ids, taken=False)
                commands.scancel(name=run)
                cancelled, again = {*ids}, time.monotonic() + GONE_S
            pause = _POLL_S if left else _SECOND_LOOK_S
        except CommandFailed as error:
            silences += 1
            if silences == 1:
                say(f"Slurm does not answer ({error}); trying again for {patience_s / 60:.0f} min")
            pause = min(2.0**silences, _LONGEST_PAUSE_S)
        if time.monotonic() + pause >= give_up:
            say(f"giving up; cancel by hand what is left: scancel --name {run}")
            return False
        sleep(pause)


def main(run: str, watched: str, log: str, journal_path: str) -> int:
    """Wait for the end of the process ``watched``, then clear the queue of the run; the arguments are as of :func:`launch`."""
    jobs_file = Path(journal_path)

    def say(text: str) -> None:
        # On a full disk the queue has to be cleared all the same.
        with contextlib.suppress(OSError):
            Path(log).parent.mkdir(parents=True, exist_ok=True)
            with open(log, "a", encoding="utf-8") as stream:
                stream.write(f"{datetime.now(UTC).isoformat(timespec='milliseconds')}  {text}\n")

    while lives(watched):
        time.sleep(0.5)
    if journal.closed(jobs_file, run):
        return 0
    say(f"the run {run} (process {watched}) has ended without noting that its queue is clear")
    if not sweep(run, say, jobs_file):
        return 1
    journal.append(jobs_file, "run_ended", run=run)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
