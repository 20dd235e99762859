"""Check that lm-eval has the tasks that accuracy checks name."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from servemark.environments import bytecode_cache
from servemark.environments.build import IN_MODEL_ENV
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
        EnvironmentRefused: lm-eval does not have one of them, one is a tag, which has no result of its own, or lm-eval does not run.
    """
    begin = log.stat().st_size if log.exists() else 0
    argv = [environment.python, str(IN_MODEL_ENV / "look_up_tasks.py"), *tasks]
    ended = run_tool(
        argv, log=log, env=passed_on.clean_environment(bytecode_cache.variables(environment)), timeout_s=timeout_s, watch=watch
    )
    with log.open(errors="replace") as stream:
        stream.seek(begin)
        printed = re.findall(r"^servemark: (\{.*\})$", stream.read(), re.MULTILINE)
    if ended.exit_code != 0 or ended.stopped or not printed:
        raise EnvironmentRefused(
            f"lm-eval does not run: {ended.stopped or f'exit code {ended.exit_code}'}.", look=str(log), reason="accuracy_failed"
        )
    found = json.loads(printed[-1])
    lists = f"`{environment.python} -m lm_eval ls tasks` lists all tasks."
    if found["missing"]:
        raise EnvironmentRefused(
            f"lm-eval has no task {', '.join(found['missing'])}.",
            look=str(log),
            do=f"Correct the name of the check under `checks`. {lists}",
            reason="accuracy_task_unknown",
        )
    if found["tags"]:
        raise EnvironmentRefused(
            f"{', '.join(found['tags'])} is a tag of lm-eval: a list of tasks without a result of its own.",
            look=str(log),
            do=f"Write one check for each of its tasks. {lists}",
            reason="accuracy_task_unknown",
        )
