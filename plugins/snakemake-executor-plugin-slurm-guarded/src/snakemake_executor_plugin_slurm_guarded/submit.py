"""Submit a job exactly once, also when the controller does not respond or its response is lost."""

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
# A submission that seemed to fail may reach the controller within this time; the tracker finds later ones.
_SETTLE_S = 2.0


@dataclass
class Outage:
    """Report once that Slurm does not respond, and once that it responds again. Shared by all threads of an executor."""

    say: Callable[[str], None]
    _since: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begins(self, error: CommandFailed | str) -> None:
        """Note that Slurm did not respond."""
        with self._lock:
            if self._since is None:
                self._since = time.monotonic()
                self.say(f"Slurm does not respond ({error}). Waiting for it.")

    def ends(self) -> None:
        """Note that Slurm responded."""
        with self._lock:
            if self._since is not None:
                self.say(f"Slurm responds again after {time.monotonic() - self._since:.0f} s.")
                self._since = None


def job_id_of(printed: str) -> str | None:
    """Return the id in the output of ``sbatch --parsable``, even if a site's wrapper prints more; None without one."""
    return next(reversed(re.findall(r"^(\d+)(?:;\S+)?\s*$", printed, re.MULTILINE)), None)


def exported(env: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that a job gets: all variables except those with the name of a secret.

    Slurm keeps a job's environment on the controller's disk and, with AccountingStoreFlags=job_env in slurm.conf, for good in accounting.
    """
    return {name: value for name, value in env.items() if not looks_secret(name)}


def submit(flags: Sequence[str], script: str, *, name: str, token: str, patience_s: float, stop: threading.Event, outage: Outage) -> str:
    """Submit one job and return its id.

    Args:
        name: of the job: the name of the run.
        token: the job's comment, unique in the run; it identifies a submission whose response was lost.
        patience_s: how long to wait for a controller that does not respond, seconds.
        stop: when set, no further attempt is made.

    Raises:
        CommandFailed: sbatch refused, Slurm did not respond for ``patience_s``, or ``stop`` was set.
    """

    def known() -> str | None:
        return next((job.id for job in queries.squeue([name], finished=True, stop=stop) if job.comment == token), None)

    argv = ["sbatch", "--parsable", f"--job-name={name}", f"--comment={token}", *flags]
    deadline, pause, may_be_there = time.monotonic() + patience_s, _FIRST_PAUSE_S, False
    while True:
        # sbatch retries for up to a minute and prints nothing meanwhile.
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
