"""Choose the files of a run for its archive, and seal them."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path

from servemark.archive import seal as sealing
from servemark.archive.crate import describe
from servemark.config.resolved import read_resolved
from servemark.config.workload import StagedWorkload
from servemark.environments.build import OWN_LOCK
from servemark.machine import git_state
from servemark.measurement.accuracy import CSV, RECORD, RESULT
from servemark.records import Accuracy, Dataset, Environment, Search, StagedPrompts, read_with_trials
from servemark.security import secret_scan
from servemark.supervisor import EARLIER_NAMES, SECRETS, SPEC
from servemark.weights import hub_token

# Live records, the supervisor's own files and secrets. jobs.jsonl and guard.log still grow during sealing; accounting.json sums them up.
_LEFT_OUT = {
    *("cluster.json", "endpoint.json", "ready.json", SPEC, EARLIER_NAMES[SPEC], "progress.jsonl", "stage", "summary.txt"),
    *("jobs.jsonl", "guard.log"),
    *SECRETS,
}
# Only at the top of the run's folder. The final check runs after sealing. Each attempt keeps its own copy of the sources.
_LEFT_OUT_AT_THE_TOP = {"check.json", "published.json", git_state.NAME}
# serving/ holds no measurements. Records repeat the content of tools/ and requests/.
_LEFT_OUT_FOLDERS = {"archive", "ledger", "requests", "tools", "serving"}
# Logs and durations of these rules differ each time, although the results are the same.
_LATE = {"collect_measurements", "write_report", "archive_results", "check_measurements", "publish_archive"}
_ENVIRONMENT_FILES = {".lock", ".in", ".toml", ".py", ".md"}


def archived_files(run_folder: Path, envs: Path) -> dict[str, Path]:
    """Return name in the archive -> file: records, raw results, logs, table and report of the run, and files of its environments.

    The rows of a dataset are among them only with ``share_prompts``.
    Excluded are load points, searches and exports of an earlier configuration, and lock files of environments that the run did not use.
    """
    files = {}
    plans = [read_with_trials(path.parent) for path in run_folder.glob("deployments/*/plan.json")]
    prompts = {load.prompts.name for plan in plans for load in plan.loads if isinstance(load.prompts, StagedPrompts)}
    shared = sorted(prompts & _shared(run_folder)) if prompts else []
    planned = {
        (run_folder / "deployments" / plan.deployment / "points" / f"{load.name}{suffix}")
        for plan in plans
        for load in plan.loads
        for suffix in (".json", ".requests.json")
    } | {run_folder / Search.path_name(plan.deployment, search.workload) for plan in plans for search in plan.searches}
    planned |= {
        Accuracy.path(run_folder / "deployments" / plan.deployment, check.name).with_name(name)
        for plan in plans
        for check in plan.checks
        for name in (RECORD, RESULT)
    }
    checked = any(plan.checks for plan in plans)
    exports = json.loads((run_folder / "config.json").read_text()).get("exports", ()) if (run_folder / "exports").is_dir() else ()
    for path in sorted(run_folder.rglob("*")):
        inside = path.relative_to(run_folder)
        if path.is_symlink() or not path.is_file() or path.name in _LEFT_OUT or path.name.startswith(".") or path.stem in _LATE:
            continue
        if inside.parts[0] == "exports" and inside.parts[1] not in exports:
            continue
        if inside.as_posix() in _LEFT_OUT_AT_THE_TOP or _LEFT_OUT_FOLDERS.intersection(inside.parts[:-1]):
            continue
        if inside.parts[0] == "datasets" and inside.parts[1] not in prompts:
            continue
        if inside.parts[0] in ("accuracy", CSV) and not checked:
            continue
        if inside.parts[0] != "deployments" or inside.parts[2:3] not in (("points",), ("searches",), ("checks",)) or path in planned:
            files[inside.as_posix()] = path
    files |= {f"datasets/{name}/prompts.jsonl": Path(Dataset.read(run_folder / "datasets" / name / "dataset.json").path) for name in shared}
    # Environment "workflow" runs the workflow itself.
    made = [Environment.read(path) for path in sorted(run_folder.glob("environments/*/environment.json"))]
    used = {*(one.lock for one in made), "workflow", *(["accuracy"] if checked else [])}
    files |= {f"envs/own-{one.name}.lock": own for one in made if (own := Path(one.prefix) / OWN_LOCK).is_file()}
    for path in sorted(envs.rglob("*")):
        locks = path.suffix in (".lock", ".in")
        if path.suffix in _ENVIRONMENT_FILES and path.is_file() and "__pycache__" not in path.parts and (not locks or path.stem in used):
            files[f"envs/{path.relative_to(envs).as_posix()}"] = path
    return files


def _shared(run_folder: Path) -> set[str]:
    """Return the names of the datasets whose prompts the configuration shares."""
    workloads = read_resolved(run_folder / "config.json").workloads.values()
    return {one.dataset.name for one in workloads if isinstance(one, StagedWorkload) and one.share_prompts}


def archive(run_folder: Path, envs: Path, destination: Path, environ: Mapping[str, str]) -> sealing.ArchiveInfo:
    """Seal a run together with its RO-Crate metadata.

    Args:
        envs: the folder of the environments' lock files.
        environ: environment variables. No archived file may contain their secrets.

    Raises:
        ArchiveRefused: a file contains a secret or cannot be archived. No file was written.
        ServemarkError: a record is missing or damaged.
    """
    secrets = known_secrets(run_folder, environ) | hub_token.stored()
    return sealing.seal(archived_files(run_folder, envs), destination, secrets=secrets, describe=functools.partial(describe, run_folder))


def known_secrets(run_folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return texts that no archived file may contain -> what each is.

    These are API keys and Ray tokens that still exist, and the values of environment variables with names of secrets. The scan finds
    deleted API keys by their prefix, :data:`servemark.security.secret_scan.KEY_PREFIX`.
    """
    live = {
        path.read_text().strip(): f"{name} of this run" for name in SECRETS for path in sorted(run_folder.glob(f"*/*/attempts/*/{name}"))
    }
    return secret_scan.of_environment(environ) | live
