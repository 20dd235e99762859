"""The guard: a process that waits for the end of the main Snakemake and then cancels the jobs that are left.

It leaves Snakemake's process tree and session, so it survives Ctrl-C, SIGHUP and ``kill -9`` of Snakemake. It writes ``guard.log`` next to
the journal. If the guard is killed too (the login node reboots), :mod:`leftovers` cancels the jobs before the next run.
"""

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

# Cancelled jobs leave the queue after at most KillWait (30 s by default, 120 s on some sites), if their processes can be killed.
GONE_S = 150.0
# An interrupted submission may reach the controller a moment after the first query.
_SECOND_QUERY_S = 3.0
_POLL_S, _LONGEST_PAUSE_S = 1.0, 30.0


def identity(pid: int) -> str | None:
    """Return ``PID:START`` of a running process, its start in clock ticks since boot (proc(5)); None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{pid}:{fields[19]}"


def lives(main: str) -> bool:
    """Return whether the process with this :func:`identity` runs on this machine."""
    return identity(int(main.partition(":")[0])) == main


def may_live(entry: Mapping[str, Any]) -> bool:
    """Return whether the main process of a run, by the journal's event ``run``, is alive, or ran on another host."""
    return entry.get("host") != socket.gethostname() or lives(str(entry.get("main") or "0:"))


def launch(run: str, main: str, *, log: Path, jobs_file: Path) -> None:
    """Start the guard of the run whose jobs are named ``run``; it waits for the end of the process with the identity ``main``."""
    argv = [sys.executable, "-m", __name__, run, main, str(log), str(jobs_file)]
    # The shell ends at once, so that the guard leaves our process tree before anything can be interrupted.
    subprocess.run(
        ["/bin/sh", "-c", '"$@" &', "guard", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[1])},
        start_new_session=True,
        check=True,
    )


def sweep(run: str, say: Callable[[str], None], jobs_file: Path, *, patience_s: float = commands.PATIENCE_S) -> bool:
    """Cancel a run's jobs until two queries in a row list none; return False if that takes longer than ``patience_s``."""
    deadline, failures, empty_lists = time.monotonic() + patience_s, 0, 0
    cancelled, again = set[str](), 0.0
    while True:
        try:
            left = queries.squeue([run], finished=False)
            if failures:
                say("Slurm responds again")
            failures, empty_lists = 0, 0 if left else empty_lists + 1
            ids = [job.id for job in left]
            if empty_lists == 2:
                say("no job of the run is in the queue")
                return True
            if {*ids} - cancelled or (ids and time.monotonic() > again):
                say(f"cancelling {', '.join(f'{job.id} ({job.state.word})' for job in left)}")
                journal.append(jobs_file, "cancelled", run=run, jobs=ids, taken=False)
                commands.scancel(name=run)
                cancelled, again = {*ids}, time.monotonic() + GONE_S
            pause = _POLL_S if left else _SECOND_QUERY_S
        except CommandFailed as error:
            failures += 1
            if failures == 1:
                say(f"Slurm does not respond ({error}); trying again for {patience_s / 60:.0f} min")
            pause = min(2.0**failures, _LONGEST_PAUSE_S)
        if time.monotonic() + pause >= deadline:
            say(f"giving up; cancel the remaining jobs by hand: scancel --name {run}")
            return False
        time.sleep(pause)


def main(run: str, watched: str, log: str, journal_path: str) -> int:
    """Wait for the end of the process ``watched``, then cancel the run's jobs; the arguments are those of :func:`launch`."""
    jobs_file = Path(journal_path)

    def say(text: str) -> None:
        # A full disk must not keep the guard from cancelling.
        with contextlib.suppress(OSError):
            Path(log).parent.mkdir(parents=True, exist_ok=True)
            with open(log, "a", encoding="utf-8") as stream:
                stream.write(f"{datetime.now(UTC).isoformat(timespec='milliseconds')}  {text}\n")

    while lives(watched):
        time.sleep(0.5)
    if journal.closed(jobs_file, run):
        return 0
    say(f"run {run} (process {watched}) ended before it recorded that its queue is empty; cancelling its remaining jobs")
    if not sweep(run, say, jobs_file):
        return 1
    journal.append(jobs_file, "run_ended", run=run)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
