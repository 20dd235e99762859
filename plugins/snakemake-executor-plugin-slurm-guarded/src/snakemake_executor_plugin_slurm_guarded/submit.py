"""Submit a job once: wait for a controller that does not respond, and never submit again what only seemed to have failed."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from snakemake_executor_plugin_slurm_guarded import commands, queries
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, Trouble
from snakemake_executor_plugin_slurm_guarded.secret_names import looks_secret

_SILENCE_S = 8.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 3.0, 30.0
# A submission that seemed to fail may still be on its way to the controller; the tracker finds one that took longer.
_SETTLE_S = 2.0


@dataclass
class Outage:
    """Print once that Slurm does not respond, and once that it does again. Shared by all threads of an executor."""

    say: Callable[[str], None]
    _since: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begins(self, error: CommandFailed | str) -> None:
        """Note that Slurm did not respond."""
        with self._lock:
            if self._since is None:
                self._since = time.monotonic()
                self.say(f"Slurm does not answer ({error}). Waiting for it.")

    def ends(self) -> None:
        """Note that Slurm responded."""
        with self._lock:
            if self._since is not None:
                self.say(f"Slurm answers again after {time.monotonic() - self._since:.0f} s.")
                self._since = None


def job_id_of(printed: str) -> str | None:
    """Return the id in the output of ``sbatch --parsable``, also when a site's wrapper prints more; None when there is none."""
    return next(reversed(re.findall(r"^(\d+)(?:;\S+)?\s*$", printed, re.MULTILINE)), None)


def exported(env: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that a job gets: all variables but those whose name says that they hold a secret.

    Slurm keeps a job's environment on the controller's disk while it remembers the job, and in accounting for good where a site sets so
    (AccountingStoreFlags=job_env of slurm.conf).
    """
    return {name: value for name, value in env.items() if not looks_secret(name)}


def submit(flags: Sequence[str], script: str, *, name: str, token: str, patience_s: float, stop: threading.Event, outage: Outage) -> str:
    """Submit one job and return its id.

    Args:
        name: of the job: the name of the run.
        token: the job's comment, unique in the run, by which a submission without a response is found again.
        patience_s: how long to wait for a controller that does not respond, seconds.
        stop: when set, the submission is given up.

    Raises:
        CommandFailed: sbatch refused, or Slurm did not respond for ``patience_s``, or ``stop`` was set.
    """

    def known() -> str | None:
        return next((job.id for job in queries.squeue([name], finished=True, stop=stop) if job.comment == token), None)

    argv = ["sbatch", "--parsable", f"--job-name={name}", f"--comment={token}", *flags]
    deadline, pause, may_be_there = time.monotonic() + patience_s, _FIRST_PAUSE_S, False
    while True:
        # sbatch tries again for up to a minute and prints nothing meanwhile.
        silence = threading.Timer(_SILENCE_S, outage.begins, [f"sbatch: no response for {_SILENCE_S:.0f} s"])
        try:
            job, printed = known() if may_be_there else None, ""
            if job is None:
                silence.start()
                printed = commands.run(argv, stdin=script, timeout_s=commands.SUBMIT_S, stop=stop, env=exported(os.environ))
                silence.cancel()
                job = job_id_of(printed) or known()
            outage.ends()
            if job is None:
                raise CommandFailed(Trouble.REFUSED, argv, f"printed no job id: {printed.strip()[:300]!r}")
            return job
        except CommandFailed as error:
            if error.trouble is not Trouble.UNREACHABLE or time.monotonic() >= deadline:
                raise
            may_be_there = True
            outage.begins(error)
        finally:
            silence.cancel()
        if stop.wait(max(pause, _SETTLE_S)):
            raise CommandFailed(Trouble.STOPPED, argv, "stopped")
        pause = min(2 * pause, _LONGEST_PAUSE_S)
