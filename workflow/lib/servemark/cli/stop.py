"""``servemark stop``: ask one deployment to end, from any machine that sees its files, and wait until it has."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from servemark import supervisor
from servemark.cli.live import Jobs, Living, living
from servemark.deployment import attempts
from servemark.errors import ServemarkError
from servemark.processes.identity import Identity
from snakemake_executor_plugin_slurm_guarded import commands
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed

# Beyond the grace that a server has: killing what is left, sweeping nodes.
MARGIN_S = 15.0
# The keeper's host may see the stop file, and we its answer, as late as a network file system's cache allows (NFS: acdirmax, 60 s).
CACHE_S = 60.0
# Cancelled jobs leave the queue after KillWait, 30 s by default.
CANCEL_S = 90.0
POLL_S = 0.2


class NothingToStop(ServemarkError):
    """The name fits none, or more than one, of what lives."""

    exit_code = 2
    default_reason = "nothing_to_stop"


def choose(found: Sequence[Living], name: str, run: str | None) -> Living:
    """Return the one that is meant.

    Raises:
        NothingToStop: none, or several; says what there is.
    """
    fitting = [one for one in found if one.deployment == name and run in (None, one.run)]
    if len(fitting) == 1:
        return fitting[0]
    there = "\n".join(f"  {one.deployment} (run {one.run}, {one.purpose}): {one.state}" for one in found)
    if not fitting:
        of = f" of run {run!r}" if run else ""
        raise NothingToStop(
            f"No deployment {name!r}{of} lives in this checkout." + (f" What lives:\n{there}" if there else " Nothing lives here."),
            do="See `servemark status`.",
        )
    raise NothingToStop(f"{name!r} fits {len(fitting)}:\n{there}", do="Say which with --run RUN.", reason="ambiguous")


@dataclass(frozen=True)
class Stopping:
    """Ends one deployment; tells what happens by ``say``."""

    say: Callable[[str], None]
    jobs: Jobs
    cancel: Callable[[str], None] = lambda job_id: commands.scancel(ids=[job_id])
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def run(self, one: Living, wait_s: float | None = None) -> None:
        """Ask, wait, and cancel its job when that does not help.

        Args:
            wait_s: how long to wait before its job is cancelled; by default as long as its servers may take, and some more.

        Raises:
            ServemarkError: it did not end.
        """
        if one.attempt is None:
            self._cancel(one, "No server of it lives; cancelling its job.")
            return
        begin = self.clock()
        try:
            supervisor.ask_to_end(one.attempt)
        except OSError as error:
            if one.job_id is None:
                raise
            self._cancel(one, f"servemark cannot write the stop file ({error}); it cancels job {one.job_id}.")
            return
        bound = self._bound(one.attempt) if wait_s is None else wait_s
        self.say(f"asked the {one.kind} {one.deployment} of run {one.run} to end; waiting up to {bound:.0f} s")
        while self.clock() - begin < bound:
            if self._told(one, one.attempt, begin):
                return
            self.sleep(POLL_S)
        if one.job_id is None:
            raise ServemarkError(
                f"The {one.kind} {one.deployment} did not end within {bound:.0f} s.",
                look=str(one.attempt / "keeper.log"),
                do=f"Look at its processes on {', '.join(one.nodes)}; one in state D waits for a device or a file system.",
                reason="cannot_stop",
            )
        self._cancel(one, f"It did not end within {bound:.0f} s; cancelling its job {one.job_id}.")

    def _bound(self, attempt: Path) -> float:
        state = supervisor.read_state(attempt)
        elsewhere = state is not None and not Identity.parse(state.identity).here
        return attempts.spec(attempt).stop_grace_s + MARGIN_S + (CACHE_S if elsewhere else 0.0)

    def _told(self, one: Living, attempt: Path, begin: float) -> bool:
        """Return whether it has ended; says how."""
        state = supervisor.read_state(attempt)
        if state is None:
            return False
        identity = Identity.parse(state.identity)
        seconds = self.clock() - begin
        if state.state == "ended":
            killed = f"; these had to be killed: {', '.join(state.leftovers)}" if state.leftovers else ""
            how = "" if state.why == "stop_requested" else f" ({state.why})"
            self.say(f"{one.deployment} ended after {seconds:.1f} s{how}{killed}")
            return True
        if identity.here and not identity.alive:
            self.say(f"{one.deployment}: its keeper is gone without a word; what it left is ended at the next start")
            return True
        return False

    def _cancel(self, one: Living, words: str) -> None:
        assert one.job_id is not None, "only a job can be cancelled"
        self.say(words)
        try:
            self.cancel(one.job_id)
        except CommandFailed as error:
            raise ServemarkError(
                f"The job {one.job_id} of {one.deployment} could not be cancelled: {error}",
                do=f"Try `scancel {one.job_id}` on a login node.",
                reason="cannot_stop",
            ) from None
        begin = self.clock()
        while self.clock() - begin < CANCEL_S:
            if Jobs(self.jobs.ask).lives(one.job_id) is False:
                self.say(f"job {one.job_id} is out of the queue; the main snakemake goes on without {one.deployment}")
                return
            self.sleep(5 * POLL_S)
        raise ServemarkError(
            f"The job {one.job_id} of {one.deployment} is still in the queue {CANCEL_S:.0f} s after it was cancelled.",
            do=f"See `squeue --jobs={one.job_id}`; tell the cluster's support when it stays COMPLETING.",
            reason="cannot_stop",
        )


def stop(results: Path, name: str, run: str | None, say: Callable[[str], None]) -> None:
    """Stop the deployment of this name.

    Raises:
        NothingToStop: the name fits none, or several.
        ServemarkError: it did not end.
    """
    jobs = Jobs()
    Stopping(say, jobs).run(choose(living(results, jobs), name, run))
