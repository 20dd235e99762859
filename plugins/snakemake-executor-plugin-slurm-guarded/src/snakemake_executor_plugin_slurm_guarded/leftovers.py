"""Jobs that an earlier run of this checkout left in Slurm's queue, and journals that were copied from another checkout."""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from snakemake_executor_plugin_slurm_guarded import commands, guard, journal, queries
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed
from snakemake_executor_plugin_slurm_guarded.errors import GuardedError
from snakemake_executor_plugin_slurm_guarded.records import Checkout


@dataclass(frozen=True)
class Earlier:
    """An earlier run that may have jobs in the queue, and the checkout in which it ran, if its journal names one."""

    name: str
    journal: Path
    checkout: Checkout | None

    def is_of(self, folder: Path, live: Iterable[queries.Job]) -> bool:
        """Return whether this run belongs to ``folder``, by its journal and by its jobs' working directories (a copy changes neither)."""
        path = self.checkout.path if self.checkout else str(folder.resolve())
        noted = self.checkout is None or self.checkout.is_at(folder)
        return noted and all(job.workdir == path for job in live if job.name == self.name)

    def shares(self, folder: Path) -> bool:
        """Return whether the journal's folder is, by a link, also in the other checkout where this run was started."""
        # With the path of ``folder`` itself, the other checkout is on another machine.
        if self.checkout is None or self.checkout.is_at(folder) or self.checkout.path == str(folder.resolve()):
            return False
        with contextlib.suppress(OSError, ValueError):
            # The folder decides: a copy made of hard links has the same file.
            place = self.journal.parent
            return Path(self.checkout.path, place.relative_to(folder)).samefile(place)
        return False


def cancel(journals: Iterable[Path], folder: Path, say: Callable[[str], None], *, ended_alone: bool = False) -> None:
    """Cancel the jobs that earlier runs of this checkout left in the queue. Call it before a new run submits anything.

    It queries Slurm only if a journal names a run that may have jobs left. It returns when these jobs have left the queue, so that no old
    job writes next to a new one; it waits at most guard.GONE_S. It sets aside a journal that was copied from another checkout.

    Args:
        journals: of earlier runs of the checkout in ``folder``.
        ended_alone: leave out runs whose main process may be alive. Set it unless a lock excludes them.

    Raises:
        GuardedError: Slurm does not respond, the jobs do not leave the queue, or a link shares the journal with another checkout that has
            jobs in the queue.
    """
    found = [
        Earlier(name, file, journal.checkout_of(entry))
        for file in journals
        for name, entry in journal.open_runs(file).items()
        if not (ended_alone and guard.may_live(entry))
    ]
    if not found:
        return
    try:
        live = queries.squeue([run.name for run in found], finished=False)
        ours = [run for run in found if run.is_of(folder, live)]
        _set_aside([run for run in found if run not in ours], live, folder, say)
        left = _jobs_of(ours, live)
        if left:
            ids = ", ".join(job.id for job in left)
            say(f"Jobs of an earlier run are still in Slurm's queue ({ids}). Cancelling them before anything new is submitted.")
        for run in ours if left else []:
            jobs = [job.id for job in left if job.name == run.name]
            journal.append(run.journal, "cancelled", run=run.name, jobs=jobs, taken=False)
        cancelled, deadline = set[str](), time.monotonic() + guard.GONE_S
        while left and time.monotonic() < deadline:
            if new := {job.id for job in left} - cancelled:
                commands.scancel(ids=sorted(new))
                cancelled |= new
            time.sleep(guard._POLL_S)
            left = _jobs_of(ours, queries.squeue([run.name for run in ours], finished=False))
    except CommandFailed as error:
        raise error.for_user("The jobs of an earlier run could not be cancelled") from error
    if left:
        raise GuardedError(
            f"Jobs of an earlier run do not leave Slurm's queue: {', '.join(f'{job.id} ({job.state.word})' for job in left)}.",
            do="Wait until `squeue --me` does not list them, then run again. Tell the cluster's support if they stay COMPLETING.",
            reason="slurm_leftovers",
        )
    for run in ours:
        journal.append(run.journal, "run_ended", run=run.name)


def _jobs_of(runs: Iterable[Earlier], live: Iterable[queries.Job]) -> list[queries.Job]:
    names = {run.name for run in runs}
    return [job for job in live if job.name in names]


def _set_aside(foreign: Sequence[Earlier], live: Iterable[queries.Job], folder: Path, say: Callable[[str], None]) -> None:
    """Set aside the runs of other checkouts and report their jobs in the queue."""
    for file in dict.fromkeys(run.journal for run in foreign):
        runs = [run for run in foreign if run.journal == file]
        jobs = _jobs_of(runs, live)
        ids = " ".join(job.id for job in jobs)
        places = {job.workdir: job.workdir for job in jobs}
        for noted in (run.checkout for run in runs if run.checkout):
            same_path = noted.path == str(folder.resolve()) and not noted.is_at(folder)
            places[noted.path] = f"{noted.path} on {noted.host}" if same_path else noted.path
        where = ", ".join(sorted(places.values()))
        if not any(run.shares(folder) for run in runs):
            journal.set_aside(file, [run.name for run in runs])
            keep = f"Its jobs {ids} stay in Slurm's queue. If no run uses them, cancel them: scancel {ids}"
            left = keep if jobs else "None of its jobs is in Slurm's queue."
            say(f"{file} was copied from the checkout {where}. The runs in it are ignored. {left}")
        elif jobs:
            raise GuardedError(
                f"{file} is also the journal of the checkout {where}, which has jobs in Slurm's queue: {ids}.",
                do="Wait for that run, or end it with Ctrl-C there. Give each checkout its own results folder.",
                reason="run_locked",
            )
