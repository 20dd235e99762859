"""stop_deployment: end all processes of a deployment, check that none is left, and record how each ended."""

import time
from pathlib import Path

from servemark import supervisor
from servemark.deployment import attempts, node_checks
from servemark.deployment.launcher import Launcher
from servemark.errors import ServemarkError
from servemark.nodes import allocation, survey
from servemark.processes import identity
from servemark.progress import Progress
from servemark.records import Plan, Stopped
from servemark.supervisor import ownership


def stop(plan: Plan, folder: Path, *, stop_s: float, log: Path, progress: Progress) -> Stopped:
    """Stop the latest attempt, remove its secrets, and return how it ended. After a replay that is the attempt that served.

    Raises:
        ServemarkError: a process could not be ended.
    """
    attempt = attempts.latest(folder)
    if attempt is None:
        return Stopped(deployment=plan.deployment, replay=True)
    begin = time.monotonic()
    progress.say("stopping" if supervisor.is_alive(attempt) else "has ended already")
    state = supervisor.stop(attempt, stop_s + 15)
    # Users may delete files of old attempts.
    spec = supervisor.read_spec(attempt) if supervisor.own_file(attempt, supervisor.SPEC).exists() else None
    named = survey.kill(lambda: attempts.left_over(attempt))
    if left := attempts.left_over(attempt):
        raise ServemarkError(
            f"A process of deployment {plan.deployment} cannot be ended: {identity.describe(left[0])}",
            look=str(supervisor.own_file(attempt, supervisor.LOG)),
            do="Look at it with ps. A process in state D waits for a device or a file system.",
            reason="cannot_stop",
        )
    alloc = allocation.current()
    if spec and alloc.job_id is not None and spec.owner == ownership.mine():
        # Another allocation's nodes have no processes of this attempt.
        launcher = Launcher(alloc, attempt, Path(spec.scratch))
        named += node_checks.sweep(launcher, stop_s + 60, log)
    supervisor.remove_secrets(attempt)
    return Stopped(
        deployment=plan.deployment,
        failure=attempts.noted_failure(attempt),
        attempt=str(attempt),
        daemons=supervisor.read_daemons(attempt),
        leftovers=(*(state.leftovers if state else ()), *named),
        seconds=round(time.monotonic() - begin, 2),
    )
