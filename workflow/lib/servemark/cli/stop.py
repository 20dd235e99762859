"""``servemark stop``: ask one deployment to end, from any machine with access to its files, and wait for its end."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from servemark import supervisor
from servemark.cli.live import PURPOSES, Jobs, Living, living
from servemark.errors import ServemarkError
from servemark.processes.identity import Identity
from snakemake_executor_plugin_slurm_guarded import commands
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed

# Beyond the servers' own grace: killing what is left, cleaning nodes.
MARGIN_S = 15.0
# Network file systems show the stop file there, and the state here, with this delay at most (NFS: acdirmax, 60 s).
CACHE_S = 60.0
# Cancelled jobs leave the queue after KillWait, 30 s by default.
CANCEL_S = 90.0
POLL_S = 0.2


class NothingToStop(ServemarkError):
    """The name matches no active deployment, or several."""

    exit_code = 2
    default_reason = "nothing_to_stop"


def choose(found: Sequence[Living], name: str, run: str | None) -> Living:
    """Return the active deployment of this name; raise NothingToStop with a list of all."""
    fitting = [one for one in found if one.deployment == name and run in (None, one.run)]
    if len(fitting) == 1:
        return fitting[0]
    there = "\n".join(f"  {one.deployment} (run {one.run}, {PURPOSES[one.purpose]}): {one.state}" for one in found) or "  nothing"
    if fitting:
        raise NothingToStop(
            f"{len(fitting)} active deployments have the name {name!r}:\n{there}", do="Name the run: --run RUN.", reason="ambiguous"
        )
    of = f" of run {run!r}" if run else ""
    raise NothingToStop(
        f"No active deployment {name!r}{of} in this checkout. Active:\n{there}", do="Use a name that `servemark status` shows."
    )


@dataclass(frozen=True)
class Stopping:
    """Ends one deployment; ``say`` prints what happens."""

    say: Callable[[str], None]
    jobs: Jobs
    cancel: Callable[[str], None] = lambda job_id: commands.scancel(ids=[job_id])
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def run(self, one: Living) -> None:
        """Ask the deployment to end, wait, and cancel its job if it does not end.

        Raises:
            ServemarkError: it did not end.
        """
        if one.attempt is None:
            self._cancel(one, f"{one.deployment} has no running server; cancelling its job {one.job_id}.")
            return
        begin = self.clock()
        try:
            supervisor.ask_to_end(one.attempt)
        except OSError as error:
            if one.job_id is None:
                raise
            self._cancel(one, f"servemark cannot write the stop file ({error}); cancelling job {one.job_id}.")
            return
        state = supervisor.read_state(one.attempt)
        elsewhere = state is not None and not Identity.parse(state.identity).here
        bound = supervisor.read_spec(one.attempt).stop_grace_s + MARGIN_S + (CACHE_S if elsewhere else 0.0)
        self.say(f"asked {one.deployment} of run {one.run} to end; waiting up to {bound:.0f} s")
        while self.clock() - begin < bound:
            if words := self._ended(one.attempt, begin):
                self.say(f"{one.deployment} {words}")
                return
            self.sleep(POLL_S)
        if one.job_id is None:
            raise ServemarkError(
                f"{one.deployment} did not end within {bound:.0f} s.",
                look=str(supervisor.own_file(one.attempt, supervisor.LOG)),
                do=f"Look at its processes on {', '.join(one.nodes)} with ps. A process in state D waits for a device or a file system.",
                reason="cannot_stop",
            )
        self._cancel(one, f"{one.deployment} did not end within {bound:.0f} s; cancelling its job {one.job_id}.")

    def _ended(self, attempt: Path, begin: float) -> str | None:
        """Return how it ended; None while it lives."""
        state = supervisor.read_state(attempt)
        if state is None:
            return None
        if state.state == "ended":
            how = "" if state.why == "stop_requested" else f" ({state.why})"
            killed = f"; killed: {', '.join(state.leftovers)}" if state.leftovers else ""
            return f"ended after {self.clock() - begin:.1f} s{how}{killed}"
        identity = Identity.parse(state.identity)
        if identity.here and not identity.alive:
            return "ended: its supervisor exited without recording a reason. The next start ends the remaining processes."
        return None

    def _cancel(self, one: Living, words: str) -> None:
        assert one.job_id is not None, "only a job can be cancelled"
        self.say(words)
        try:
            self.cancel(one.job_id)
        except CommandFailed as error:
            raise ServemarkError(
                f"Job {one.job_id} of {one.deployment} could not be cancelled: {error}",
                do=f"Try `scancel {one.job_id}` on a login node.",
                reason="cannot_stop",
            ) from None
        begin = self.clock()
        while self.clock() - begin < CANCEL_S:
            if Jobs(self.jobs.ask).lives(one.job_id) is False:
                self.say(f"job {one.job_id} has left the queue; the main Snakemake continues without {one.deployment}")
                return
            self.sleep(5 * POLL_S)
        raise ServemarkError(
            f"Job {one.job_id} of {one.deployment} is still in the queue {CANCEL_S:.0f} s after its cancellation.",
            do=f"Run `squeue --jobs={one.job_id}`. If it stays COMPLETING, report it to the cluster's support.",
            reason="cannot_stop",
        )


def stop(results: Path, name: str, run: str | None, say: Callable[[str], None]) -> None:
    """Stop the deployment of this name."""
    jobs = Jobs()
    Stopping(say, jobs).run(choose(living(results, jobs), name, run))
