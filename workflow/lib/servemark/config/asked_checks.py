"""The accuracy checks of a deployment with the content of their tasks, and what keeps one from starting."""

import hashlib
import itertools
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml

from servemark.config.model import Config
from servemark.config.problems import Problem, shortened
from servemark.config.restarts import deployment_of
from servemark.environments import lockfiles
from servemark.files import content
from servemark.files.content import Hashes
from servemark.records import AskedCheck

MOST_FILES = 1000
"""Files in the folder of a user's task. A folder with more is probably not the task's own."""


def asked(config: Config, start: str) -> tuple[AskedCheck, ...]:
    """Return the accuracy checks of one start of a deployment, in the order they run after its load points and searches."""
    checks = deployment_of(config, start).checks
    return tuple(
        AskedCheck(
            name=name,
            task=str(check.task) if check.task else None,
            data=digest(check.task, config.cache) if check.task else None,
            **check.model_dump(include={"limit", "shots", "metric", "chat_template"}),
            lock=_lock_digest(),
        )
        for name, check in checks.items()
    )


def digest(task: Path, cache_folder: Path) -> str | None:
    """Return the digest of all files in the folder of a user's task; None if it cannot be read."""
    return content.of_path(str(task.absolute().parent), Hashes(cache_folder, str(task)))


@cache
def _lock_digest() -> str:
    return hashlib.sha256(lockfiles.accuracy(lockfiles.CHECKOUT / "envs").requirements.read_bytes()).hexdigest()


def pointless(config: Config) -> Iterator[Problem]:
    """Yield a problem for the checks of each deployment whose model has random weights."""
    for name, deployment in config.deployments.items():
        if deployment.checks and config.models[deployment.model].load_format == "dummy":
            text = f"needs real weights, and models.{deployment.model}.load_format is `dummy`: remove the checks, or serve the checkpoint"
            yield Problem(("deployments", name, "checks"), text)


def _syntax_fault(path: Path) -> str | None:
    """Return what is wrong with the syntax of a YAML file. lm-eval's own tags, such as ``!function``, are no fault."""
    try:
        yaml.compose(path.read_bytes(), Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        return " ".join(str(error).split())
    return None


def unreadable(config: Config) -> Iterator[Problem]:
    """Yield a problem for each task of a user that this machine cannot read."""
    for name, deployment in config.deployments.items():
        for check, one in deployment.checks.items():
            loc = ("deployments", name, "checks", check, "task")
            if one.task is None:
                continue
            if not os.access(one.task, os.R_OK) or not one.task.is_file():
                yield Problem(loc, f"there is no readable file {shortened(str(one.task), 200)}")
            elif fault := _syntax_fault(one.task):
                yield Problem(loc, f"{shortened(str(one.task), 200)} is not valid YAML: {fault}")
            elif len(list(itertools.islice(content.walk(str(one.task.absolute().parent), hidden=False), MOST_FILES + 1))) > MOST_FILES:
                text = (
                    f"its folder has more than {MOST_FILES} files, and the ledger key contains them all; "
                    "move the task and its data into a folder of their own"
                )
                yield Problem(loc, text)
