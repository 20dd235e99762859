"""Jobs that an earlier run of this checkout left in Slurm's queue, and journals that were copied from another checkout."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from servemark.errors import RunLocked, ServemarkError
from servemark.machine.checkout import Checkout
from servemark.slurm import commands, guard, journal, listings
from servemark.slurm.commands import CommandFailed, Trouble


@dataclass(frozen=True)
class Earlier:
    """An earlier run that may have jobs in the queue.

    Attributes:
        name: of the run and of all its jobs.
        journal: the file that lists it.
        checkout: where it ran; None in a journal of an older version.
    """

    name: str
    journal: Path
    checkout: Checkout | None

    def is_of(self, folder: Path, live: Iterable[listings.Job]) -> bool:
        """Return whether both the journal and Slurm's working directories place this run in ``folder``.

        The folder that a job was submitted from is in Slurm, where no copy of a checkout can change it.
        """
        path = self.checkout.path if self.checkout else str(folder.resolve())
        noted = self.checkout is None or self.checkout.is_at(folder)
        return noted and all(job.workdir == path for job in live if job.name == self.name)

    def shares(self, results: Path) -> bool:
        """Return whether ``results`` is also the results folder of another checkout, in which this run was started."""
        if self.checkout is None or self.checkout.is_at(results.parent):
            return False
        # The path leads to ``results`` itself: the other checkout has this path on another machine.
        if self.checkout.path == str(results.parent.resolve()):
            return False
        with contextlib.suppress(OSError):
            return Path(self.checkout.path, results.name).samefile(results)
        return False


def cancel(run_folder: Path, say: Callable[[str], None]) -> None:
    """Cancel jobs of earlier runs of this checkout that still are in the queue. Call it before a new run submits anything.

    Asks Slurm only when a journal below ``run_folder/..`` names a run that may have jobs left. Returns when the queue is clear, so that no
    old job writes next to a new one; bounded by guard.GONE_S and KillWait. A journal that was copied from another checkout is set aside.

    Args:
        run_folder: ``results/RUN``.
        say: gets the messages for the user.

    Raises:
        RunLocked: ``results`` is also another checkout's, by a link, and that one has jobs in the queue.
        ServemarkError: Slurm does not respond, or the jobs do not leave the queue.
    """
    results = run_folder.parent
    files = sorted(results.glob("*/slurm/jobs.jsonl"))
    found = [Earlier(name, file, checkout) for file in files for name, checkout in journal.open_runs(file).items()]
    if not found:
        return
    try:
        live = listings.squeue([run.name for run in found], finished=False)
        ours = [run for run in found if run.is_of(results.parent, live)]
        foreign = [run for run in found if run not in ours]
        _leave_alone(foreign, live, results, say)
        mine = _of(ours, live)
        if mine:
            ids = ", ".join(job.id for job in mine)
            say(
                f"Jobs of an earlier run are still in Slurm's queue ({ids}); cancelling them before anything new is submitted."
            )
            for run in ours:
                jobs = [job.id for job in mine if job.name == run.name]
                journal.append(run.journal, "cancelled", run=run.name, jobs=jobs, taken=False)
            names = [run.name for run in ours]
            left = guard.clear(
                lambda: _of(ours, listings.squeue(names, finished=False)),
                lambda jobs: commands.scancel(ids=[job.id for job in jobs]),
                time.monotonic() + guard.gone_within_s(),
            )
        else:
            left = []
    except CommandFailed as error:
        if error.trouble is Trouble.MISSING:
            raise ServemarkError(
                f"An earlier run submitted jobs to Slurm, and its commands are not here: {error}",
                do="Run on the cluster's login node.",
                reason="slurm_missing",
            ) from error
        raise ServemarkError(
            f"Jobs of an earlier run may still be in Slurm's queue, and it does not answer: {error}",
            do="Run the same command again when `squeue` answers.",
            reason="slurm_unreachable",
        ) from error
    if left:
        raise ServemarkError(
            f"Jobs of an earlier run do not leave Slurm's queue: {', '.join(f'{job.id} ({job.state.word})' for job in left)}.",
            do="Wait until `squeue --me` lists them no more, then run again; tell the cluster's support when they stay COMPLETING.",
            reason="slurm_leftovers",
        )
    for run in ours:
        journal.append(run.journal, "run_ended", run=run.name)


def _of(runs: Iterable[Earlier], live: Iterable[listings.Job]) -> list[listings.Job]:
    names = {run.name for run in runs}
    return [job for job in live if job.name in names]


def _places(runs: Iterable[Earlier], jobs: Iterable[listings.Job], folder: Path) -> set[str]:
    """Return the paths of other checkouts, with the host of one that has the path of the checkout in ``folder``."""
    noted = [run.checkout for run in runs if run.checkout]
    hosts = {
        checkout.path: f"{checkout.path} on {checkout.host}"
        for checkout in noted
        if checkout.path == str(folder.resolve()) and not checkout.is_at(folder)
    }
    return {hosts.get(path, path) for path in [*(checkout.path for checkout in noted), *(job.workdir for job in jobs)]}


def _leave_alone(
    foreign: Sequence[Earlier], live: Iterable[listings.Job], results: Path, say: Callable[[str], None]
) -> None:
    """Set aside the runs of other checkouts and report what they have in the queue."""
    for file in dict.fromkeys(run.journal for run in foreign):
        runs = [run for run in foreign if run.journal == file]
        jobs = _of(runs, live)
        ids = " ".join(job.id for job in jobs)
        where = ", ".join(sorted(_places(runs, jobs, results.parent)))
        if any(run.shares(results) for run in runs):
            if jobs:
                raise RunLocked(
                    f"{results} is also the results folder of the checkout {where}, which has jobs in Slurm's queue: {ids}.",
                    do="Wait for that run, or end it with Ctrl-C there. Give each checkout a results folder of its own.",
                )
            continue
        journal.set_aside(file, [run.name for run in runs])
        left = (
            f"Its jobs {ids} are in Slurm's queue and stay there; if no run uses them, cancel them: scancel {ids}"
            if jobs
            else "None of its jobs is in Slurm's queue."
        )
        say(f"{file} was copied from the checkout {where}. servemark ignores the runs in it. {left}")
