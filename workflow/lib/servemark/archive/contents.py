"""What of a run's files goes into the archive."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from servemark.archive import seal as sealing
from servemark.archive.crate import describe
from servemark.machine import git_state
from servemark.records import Environment, Plan
from servemark.security import secret_scan
from servemark.supervisor import SECRETS

# Live records, what describes the run's own machinery, and the archive itself stay out. jobs.jsonl and guard.log still grow while the
# archive is made; accounting.json has what matters of them.
_LEFT_OUT = {
    *("cluster.json", "endpoint.json", "ready.json", "keeper-spec.json", "progress.jsonl", "stage", "summary.txt"),
    *("jobs.jsonl", "guard.log"),
    *SECRETS,
}
# At the top of the run's folder; files of the same name elsewhere belong to the archive. The final check's record comes after the
# archive, and the sources that a run was started from matter where it started an attempt.
_LEFT_OUT_AT_THE_TOP = {"check.json", git_state.NAME}
# An endpoint that was served is no measurement; tools/ and requests/ are how processes were started, which their records hold too.
_LEFT_OUT_FOLDERS = {"archive", "ledger", "requests", "tools", "serving"}
# These rules write their logs while or after the archive is made, or note how long table and page took, which is another
# time whenever they are made again from the same results.
_LATE = {"collect_measurements", "write_report", "archive_results", "check_measurements"}
_ENVIRONMENT_FILES = {".lock", ".in", ".toml", ".py", ".md"}


def archived_files(run_folder: Path, envs: Path) -> dict[str, Path]:
    """Name in the archive -> file: every record, raw result, log, table and page of the run, and how its environments were made.

    Load points that an earlier configuration left stay out, and lock files of environments that the run did not use: another
    lock file in the checkout is no other result.
    """
    files = {}
    planned = {
        (run_folder / "deployments" / plan.deployment / "points" / f"{load.name}{suffix}")
        for plan in (Plan.read(path) for path in run_folder.glob("deployments/*/plan.json"))
        for load in plan.loads
        for suffix in (".json", ".requests.json")
    }
    for path in sorted(run_folder.rglob("*")):
        inside = path.relative_to(run_folder)
        if path.is_symlink() or not path.is_file() or path.name in _LEFT_OUT or path.name.startswith(".") or path.stem in _LATE:
            continue
        if inside.as_posix() in _LEFT_OUT_AT_THE_TOP or _LEFT_OUT_FOLDERS.intersection(inside.parts[:-1]):
            continue
        if inside.parts[0] != "deployments" or path.parent.name != "points" or path in planned:
            files[inside.as_posix()] = path
    # The last one ran the workflow itself.
    used = {*(Environment.read(path).lock for path in run_folder.glob("environments/*/environment.json")), "workflow"}
    for path in sorted(envs.rglob("*")):
        locks = path.suffix in (".lock", ".in")
        if path.suffix in _ENVIRONMENT_FILES and path.is_file() and "__pycache__" not in path.parts and (not locks or path.stem in used):
            files[f"envs/{path.relative_to(envs).as_posix()}"] = path
    return files


def archive(run_folder: Path, envs: Path, destination: Path, environ: Mapping[str, str]) -> sealing.ArchiveInfo:
    """Seal a run, with a record and metadata that describe it.

    Args:
        envs: the folder of the environments' lock files.
        environ: this process's environment, whose secrets may be in no file.

    Raises:
        ArchiveRefused: a secret was found, or a file is not fit for an archive; nothing was written.
        ServemarkError: a record is missing or cannot be read.
    """
    secrets = known_secrets(run_folder, environ)
    return sealing.seal(archived_files(run_folder, envs), destination, secrets=secrets, describe=functools.partial(describe, run_folder))


def known_secrets(run_folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return texts that may be in no archived file -> what each is.

    Keys and tokens of attempts and endpoints that have not been cleaned up, and what the environment holds under names of secrets.
    Those that are gone are found by how they begin, see :data:`servemark.security.secret_scan.KEY_PREFIX`.
    """
    live = {
        path.read_text().strip(): f"{name} of this run" for name in SECRETS for path in sorted(run_folder.glob(f"*/*/attempts/*/{name}"))
    }
    return secret_scan.of_environment(environ) | live
