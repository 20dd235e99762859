"""Runs through a scheduler: checks before the first job, and the resources of each job."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from servemark.config.model import Config
from servemark.config.restarts import deployment_of, starts
from servemark.config.searches import most_points
from servemark.deployment.trials import missing_trials
from servemark.errors import ConfigError
from servemark.measurement.accuracy import Checks
from servemark.measurement.ledger import Ledger
from servemark.planning import allocation_request as requests
from servemark.records import Plan
from servemark.run import signals
from servemark.run.serve import LONGEST_MIN
from snakemake_executor_plugin_slurm_guarded import commands, journal, leftovers, preflight, queries
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed
from snakemake_executor_plugin_slurm_guarded.errors import TERMS, GuardedError
from snakemake_executor_plugin_slurm_guarded.request import RESOURCES as RESOURCES
from snakemake_executor_plugin_slurm_guarded.request import Request

T = TypeVar("T")
# Exported, so that the jobs of a run inherit it from the main process.
VARIABLE = "SERVEMARK_SCHEDULED"
# Cluster file for a configuration without the key ``cluster``; users may export it.
CLUSTER_VARIABLE = "SERVEMARK_CLUSTER"
DEFAULT_CLUSTER = "slurm"
# Resources that are names of the site, not amounts.
SITE = ("slurm_account", "slurm_partition", "qos", "constraint", "slurm_extra")
# A main process that runs in a job ends this long before that job: cancelling its own jobs takes a few seconds, and Slurm kills it at the
# end.
OWN_MARGIN_S = 30.0
# Names of configuration keys, for the executor's messages.
KEYS = {
    "speaker": "servemark",
    "place": "the cluster file (topology.nodes: in the configuration)",
    "account": "account",
    "partition": "partition",
    "qos": "qos",
    "constraint": "constraint",
    "nodes": "topology.nodes",
    "gres": "gpus_per_node, gpu_type",
    "exclusive": "exclusive",
    "time": "max_minutes, minutes_to_start, minutes_per_point, small_jobs.minutes",
    "memory": "memory",
    "extra": "extra",
    "reservation": "reservation",
}


def is_scheduled(*, is_main: bool, jobs: int | None) -> bool:
    """Return whether jobs go to a scheduler: while Snakemake parses, ``jobs`` is set only for executors that are not local."""
    if is_main:
        os.environ.pop(VARIABLE, None)
        if jobs is not None:
            os.environ[VARIABLE] = "1"
            os.environ.setdefault(CLUSTER_VARIABLE, DEFAULT_CLUSTER)
    return VARIABLE in os.environ


def refuse_servers_outside_a_job(config: Config) -> None:
    """Refuse a run without a scheduler whose configuration is for a cluster, unless it runs in one of the cluster's jobs.

    Raises:
        ConfigError: the servers would start on this machine, which may be a login node.
    """
    if config.cluster is not None and "SLURM_JOB_ID" not in os.environ:
        unset = f", or unset {CLUSTER_VARIABLE}" if default_cluster() else ""
        raise ConfigError(
            "The configuration has a `cluster`, but this profile submits no jobs: the servers would run on this machine, outside a job.",
            do="Use --profile slurm, or start this command inside a job. For a machine without Slurm, add --config cluster= (no "
            f"value){unset}.",
        )


def restore_configuration() -> None:
    """Set SLURM_CONF again in a job, because the inner executor removes it."""
    if configuration := os.environ.get(commands.CONF_VARIABLE):
        os.environ.setdefault("SLURM_CONF", configuration)


def default_cluster() -> str | None:
    """Return the cluster file for a configuration without one."""
    return os.environ.get(CLUSTER_VARIABLE)


def prepare(config: Config, folder: Path) -> None:
    """End jobs of earlier runs, and check that Slurm accepts the jobs of this run, before the first job.

    Raises:
        ConfigError: Slurm is missing, does not respond, or refuses a request; or jobs of an earlier run do not end.
    """
    say: Callable[[str], None] = lambda text: print(f"servemark: {text}", file=sys.stderr)  # noqa: E731
    ask_slurm(config, folder, say)
    try:
        leftovers.cancel(sorted(folder.parent.glob("*/slurm/jobs.jsonl")), folder.parent.parent, say)
    except GuardedError as error:
        raise ConfigError(error.what, look=error.look, do=error.do, reason=error.reason) from error


def ask_slurm(config: Config, folder: Path, say: Callable[[str], None], *, patience_s: float = preflight.PATIENCE_S) -> tuple[str, ...]:
    """Check that Slurm would accept the jobs of a run; return their names.

    Args:
        folder: the run's results.
        say: gets a message for a job that will wait in the queue, and while Slurm does not respond.
        patience_s: how long to wait for a controller that does not respond, seconds.

    Raises:
        ConfigError: Slurm is missing, does not respond, or refuses a request.
    """
    os.environ[journal.VARIABLE] = str((folder / "slurm" / "jobs.jsonl").absolute())
    TERMS.update(KEYS)
    wanted = [*deployment_requests(config, folder), *small_requests(config)]
    try:
        preflight.check(wanted, say, patience_s=patience_s)
    except GuardedError as error:
        raise ConfigError(error.what, look=error.look, do=error.do, reason=error.reason) from error
    return tuple(request.name for request in wanted)


def end_with_own_job() -> None:
    """End the run in order shortly before its own job ends; call it after ``signals.install``."""
    if VARIABLE in os.environ and (ends_at := own_end()):
        why = f"The job that this process runs in ends in {OWN_MARGIN_S:.0f} s."
        why += " To continue, rerun the same command in a job with a longer --time."
        signals.at(ends_at - OWN_MARGIN_S, why)


def own_end() -> float | None:
    """Return the end of the main process's own job, seconds since 1970; None outside of a job, or without a limit."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    try:
        output = commands.run(["squeue", "--noheader", f"--jobs={job}", "--format=%e"])
        return datetime.fromisoformat(output.strip()).timestamp()
    except (CommandFailed, ValueError):
        return None


def deployment_requests(config: Config, folder: Path) -> list[Request]:
    """Return the job of each start of a deployment, for the load points that the ledger does not have. ``folder``: the run's results."""
    counts = {name: missing_points(config, folder / "deployments" / name / "plan.json") for name in starts(config)}
    return [deployment_request(config, name, most_points(config, name) if count is None else count) for name, count in counts.items()]


def deployment_request(config: Config, name: str, missing: int | None) -> Request:
    """Return one deployment's job for ``missing`` points that are not in the ledger; None: the shortest job."""
    assert config.cluster is not None, "a run through a scheduler has a cluster"
    return requests.request(name, deployment_of(config, name).topology, config.cluster, missing or 0, _limit(config))


def allocation_request(config: Config, folder: Path, name: str, *, serving: bool, timed: bool = True) -> Request:
    """Return the request for a deployment's job; for ``serving``, a day or what the cluster file and the partition allow.

    Args:
        folder: the run's results.
        timed: whether the caller needs the time limit, which depends on the ledger.
    """
    if serving:
        # This many points need more time than the longest job has.
        request = deployment_request(config, name, LONGEST_MIN)
        return replace(request, minutes=min(LONGEST_MIN, request.minutes or LONGEST_MIN))
    points = missing_points(config, folder / "deployments" / name / "plan.json") if timed else 0
    return deployment_request(config, name, points)


def small_request(config: Config, rule: str) -> Request:
    """Return the short job of a rule."""
    assert config.cluster is not None, "a run through a scheduler has a cluster"
    return requests.small_job(rule, config.cluster, _limit(config), gpus_there=_gpus_there(config))


def small_requests(config: Config) -> list[Request]:
    """Return the short jobs that a run may submit."""
    cluster = config.cluster
    assert cluster is not None, "a run through a scheduler has a cluster"
    on_login = {"build_environment": cluster.build_on == "login", "stage_weights": cluster.stage_on == "login"}
    return [small_request(config, rule) for rule in requests.NEEDS if not on_login.get(rule)]


def share(config: Config) -> dict[str, Any] | None:
    """Return the share of each node that a deployment's job gets; None if the probe has to find it."""
    assert config.cluster is not None, "a run through a scheduler has a cluster"
    found = requests.share(config.cluster)
    return found.model_dump() if found else None


def missing_points(config: Config, plan: Path) -> int | None:
    """Return the number of a plan's points, trials and accuracy checks that are not in the ledger, at most; None without a plan."""
    found, ledger = Plan.read_or_none(plan), Ledger(config.ledger_folder)
    if found is None:
        return None
    return (
        len(ledger.missing(point.key for point in found.points))
        + missing_trials(config, found, ledger)
        + Checks(ledger.root).missing(found)
    )


def _gpus_there(config: Config) -> bool:
    """Return whether the short jobs' partition has GPUs; look it up only if an exclusive job may get GPUs that it does not request."""
    cluster = config.cluster
    if cluster is None or cluster.gpus_per_node or not cluster.exclusive or cluster.small_jobs.whole_node:
        return True
    return _ask(queries.has_gpus, cluster.small_jobs.partition or cluster.partition) is not False


def _limit(config: Config) -> float | None:
    cluster = config.cluster
    return None if cluster is None or cluster.max_minutes else _ask(queries.partition_limit, cluster.partition)


@cache
def _ask(question: Callable[[str | None], T], partition: str | None) -> T | None:
    try:
        return question(partition)
    except CommandFailed:
        return None
