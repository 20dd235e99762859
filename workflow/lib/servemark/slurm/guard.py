"""No job outlives its run: a process that waits for the end of the main Snakemake and then clears the queue of its jobs.

It is started by the executor, leaves Snakemake's process tree and session, and so survives Ctrl-C, SIGHUP and ``kill -9`` of it. What
it did is in ``guard.log`` beside the jobs' journal. A guard that died too (the login node was rebooted) leaves its work to
:mod:`servemark.slurm.leftovers`, which the next run does before it submits anything.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from servemark.processes import identity
from servemark.processes.identity import Identity
from servemark.records import utc_now
from servemark.slurm import commands, journal, listings
from servemark.slurm.commands import CommandFailed

# Cancelled jobs leave the queue after KillWait (30 s by default) at the latest, when their processes can be killed at all.
GONE_S = 60.0
# How long to go on when the controller does not answer.
PATIENCE_S = 600.0
# A submission that was cut off may reach the controller a moment after the first look.
_SECOND_LOOK_S = 3.0
_POLL_S, _LONGEST_PAUSE_S = 1.0, 30.0


def launch(run: str, main: Identity, *, log: Path, jobs_file: Path | None) -> None:
    """Start the guard of a run. It leaves our process tree, so that what ends the tree does not end it.

    Args:
        run: the name of all the run's jobs.
        main: the process whose end it waits for.
    """
    argv = [sys.executable, "-m", "servemark.slurm.guard", run, str(main), "--log", str(log)]
    argv += ["--jobs-file", str(jobs_file)] if jobs_file else []
    # The shell ends at once, so that the guard is nobody's child before anything can be interrupted.
    subprocess.run(
        ["/bin/sh", "-c", '"$@" &', "guard", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[2])},
        start_new_session=True,
        check=True,
    )


def gone_within_s() -> float:
    """How long cancelled jobs may take to leave the queue on this cluster: at least GONE_S, and 30 s more than KillWait."""
    try:
        found = re.search(r"^KillWait\s*=\s*(\d+)", commands.run(["scontrol", "show", "config"]), re.MULTILINE)
    except CommandFailed:
        found = None
    return max(GONE_S, 30.0 + int(found[1])) if found else GONE_S


def clear(
    look: Callable[[], list[listings.Job]], cancel: Callable[[list[listings.Job]], None], deadline: float
) -> list[listings.Job]:
    """Cancel until ``look`` finds no job or the time is up; returns the jobs that are left. Raises CommandFailed."""
    cancelled: set[str] = set()
    while True:
        left = look()
        if not left or time.monotonic() >= deadline:
            return left
        if any(job.id not in cancelled for job in left):
            cancel(left)
        cancelled |= {job.id for job in left}
        time.sleep(_POLL_S)


def sweep(
    run: str,
    say: Callable[[str], None],
    *,
    jobs_file: Path | None = None,
    patience_s: float = PATIENCE_S,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Clear the queue of a run's jobs; True when nothing is left. Goes on for ``patience_s`` when the controller does not answer.

    Args:
        jobs_file: the journal, which gets the ids of the jobs that are cancelled.
    """
    give_up, pause, silent, clean_looks = time.monotonic() + patience_s, 1.0, False, 0
    while True:
        try:
            left = listings.squeue([run], finished=False)
            if silent:
                say("Slurm answers again")
                silent, pause = False, 1.0
            if left:
                clean_looks = 0
                say(f"cancelling {', '.join(f'{job.id} ({job.state.word})' for job in left)}")
                journal.append(jobs_file, "cancelled", run=run, jobs=[job.id for job in left], taken=False)
                left = clear(
                    lambda: listings.squeue([run], finished=False),
                    lambda _: commands.scancel(name=run),
                    time.monotonic() + gone_within_s(),
                )
            if left:
                say(f"still in the queue: {', '.join(f'{job.id} ({job.state.word})' for job in left)}")
            else:
                clean_looks += 1
                if clean_looks == 2:
                    say("nothing of the run is in the queue")
                    return True
            pause = _SECOND_LOOK_S
        except CommandFailed as error:
            if not silent:
                say(f"Slurm does not answer ({error}); trying again for {patience_s / 60:.0f} min")
            silent, pause = True, min(2 * pause, _LONGEST_PAUSE_S)
        if time.monotonic() + pause >= give_up:
            say(f"giving up; cancel by hand what is left: scancel --name {run}")
            return False
        sleep(pause)


def main(argv: list[str] | None = None) -> int:
    """Wait for the main process, then clear its queue."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run")
    parser.add_argument("main", type=Identity.parse)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--jobs-file", type=Path)
    asked = parser.parse_args(argv)

    def say(text: str) -> None:
        # On a full disk the queue has to be cleared all the same.
        with contextlib.suppress(OSError):
            asked.log.parent.mkdir(parents=True, exist_ok=True)
            with open(asked.log, "a", encoding="utf-8") as stream:
                stream.write(f"{utc_now()}  {text}\n")

    identity.wait_for_end(asked.main)
    if asked.jobs_file and journal.closed(asked.jobs_file, asked.run):
        return 0  # it said itself that nothing is left
    say(f"the run {asked.run} (process {asked.main.pid}) has ended without saying that its queue is clear")
    if sweep(asked.run, say, jobs_file=asked.jobs_file):
        journal.append(asked.jobs_file, "run_ended", run=asked.run)
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
