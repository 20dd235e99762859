"""Check that lm-eval has the tasks that accuracy checks name."""

import re
from collections.abc import Sequence
from pathlib import Path

from servemark.environments import bytecode_cache
from servemark.errors import EnvironmentRefused
from servemark.processes.children import OwnerWatch, run_tool
from servemark.records import Environment
from servemark.variables import passed_on


def require(environment: Environment, tasks: Sequence[str], *, log: Path, timeout_s: float, watch: OwnerWatch) -> None:
    """Look the tasks up in lm-eval, which takes about 12 s of CPU time and no network.

    Args:
        environment: lm-eval's.
        tasks: names of tasks that come with lm-eval.

    Raises:
        EnvironmentRefused: lm-eval does not have one of them, or does not run.
    """
    begin = log.stat().st_size if log.exists() else 0
    argv = [environment.python, "-m", "lm_eval", "validate", "--tasks", ",".join(tasks)]
    ended = run_tool(
        argv, log=log, env=passed_on.clean_environment(bytecode_cache.variables(environment)), timeout_s=timeout_s, watch=watch
    )
    if ended.exit_code == 0 and not ended.stopped:
        return
    with log.open(errors="replace") as stream:
        stream.seek(begin)
        output = stream.read()
    if found := re.search(r"^Tasks not found: (.+)$", output, re.MULTILINE):
        raise EnvironmentRefused(
            f"lm-eval has no task {found[1]}.",
            look=str(log),
            do=f"Correct the name of the check under `checks`. `{environment.python} -m lm_eval ls tasks` lists all tasks.",
            reason="accuracy_task_unknown",
        )
    raise EnvironmentRefused(
        f"lm-eval does not run: {ended.stopped or f'exit code {ended.exit_code}'}.", look=str(log), reason="accuracy_failed"
    )
