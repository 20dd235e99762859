"""The ticket's sections, most telling first, and its bounds."""

from __future__ import annotations

import getpass
import json
import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from servemark import __version__, supervisor
from servemark.cli.ticket import attempt as attempt_part
from servemark.cli.ticket import scheduler
from servemark.errors import ServemarkError
from servemark.machine import git_state
from servemark.processes import identity
from servemark.records import EnvironmentCheck, Hardware, utc_now
from servemark.security.redaction import Quoting, Redactor
from snakemake_executor_plugin_slurm_guarded import commands
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed
from snakemake_executor_plugin_slurm_guarded.secret_names import looks_secret

# Characters of the whole text: pasted in one go, and below the limits of ticket systems for attachments.
LONGEST = 400_000
CONFIG_LINES = 250
RULE = "=" * 100


class NoSuchRun(ServemarkError):
    """The run that is asked for has no results here."""

    exit_code = 2
    default_reason = "no_such_run"


@dataclass(frozen=True)
class Ticket:
    """The text, and how many secrets of each kind were taken out of it."""

    text: str
    redacted: dict[str, int]


def compile_ticket(run_folder: Path, longest: int = LONGEST) -> Ticket:
    """Return everything that a site's support needs to know about one run.

    Raises:
        ServemarkError: there is no such run.
    """
    if not (run_folder / "config.json").exists():
        there = ", ".join(sorted(path.parent.name for path in run_folder.parent.glob("*/config.json"))) or "none"
        raise NoSuchRun(f"There is no run {run_folder.name!r} here; there are: {there}.", do="Call it in the checkout.")
    redact = Redactor(_live_secrets(run_folder))
    quoting = Quoting(redact)
    config = _config(run_folder)
    body = _bounded(_sections(run_folder, config, quoting), longest)
    # Once more over the whole: nothing that a section put in unquoted may slip through.
    body = redact(body)
    hits = dict(redact.hits)
    return Ticket(_head(run_folder, hits) + body, hits)


def _sections(run_folder: Path, config: dict[str, Any], quoting: Quoting) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """Yield titles, and what makes their lines: reading logs takes time, and not all of them may be wanted."""
    folders = attempt_part.folders(run_folder)
    yield "Deployments and endpoints", lambda: list(map(attempt_part.overview, folders)) or ["none was started"]
    yield "Versions", lambda: _versions(run_folder)
    yield "Hardware", lambda: _hardware(run_folder)
    text = json.dumps(config, indent=1).splitlines()
    yield "What was run: the resolved configuration", lambda: quoting.lines(text, CONFIG_LINES)
    yield "Scheduler", lambda: scheduler.section(run_folder, quoting)
    for folder in folders:
        for attempt in attempt_part.chosen(folder):
            title = f"{attempt_part.kind(folder)} {folder.name}, attempt {attempt.name}"
            yield title, partial(attempt_part.section, run_folder, folder, attempt, quoting)


def _bounded(sections: Iterable[tuple[str, Callable[[], list[str]]]], longest: int) -> str:
    """Return the sections as text, as many as fit; the others are named."""
    parts: list[str] = []
    left_out: list[str] = []
    size = 0
    for title, make in sections:
        if not left_out:
            part = "\n".join([RULE, title, RULE, *make(), "", ""])
            if size + len(part) <= longest:
                parts.append(part)
                size += len(part)
                continue
        left_out.append(title)
    if left_out:
        parts.append(f"Left out, because the text would be too long: {'; '.join(left_out)[:2000]}\n")
    return "".join(parts)


def _head(run_folder: Path, hits: dict[str, int]) -> str:
    found = ", ".join(f"{count} x {kind}" for kind, count in hits.items()) or "none was found"
    return (
        f"servemark support ticket for run {run_folder.name}, made {utc_now()} by {getpass.getuser()} on {identity.host()}\n"
        f"in {Path.cwd()}\n\n"
        "For the cluster's support. It holds paths, user, host and node names and addresses; look it over before it goes further.\n"
        f"Secrets were looked for and replaced by [REDACTED: kind]: {found}.\n\n"
    )


def _config(run_folder: Path) -> dict[str, Any]:
    """Return the run's configuration without values named like secrets, which the configuration refuses: this is a second net."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: "[REDACTED: its name looks like a secret]" if _holds_secret(key, inner) else clean(inner)
                for key, inner in value.items()
            }
        return [clean(inner) for inner in value] if isinstance(value, list) else value

    cleaned: dict[str, Any] = clean(json.loads((run_folder / "config.json").read_text()))
    return cleaned


def _holds_secret(key: str, value: Any) -> bool:
    return isinstance(value, str) and looks_secret(key)


def _live_secrets(run_folder: Path) -> list[str]:
    return [path.read_text() for name in supervisor.SECRETS for path in run_folder.glob(f"*/*/attempts/*/{name}")]


def _versions(run_folder: Path) -> list[str]:
    lines = [
        f"servemark {__version__}, commit {git_state.words([git_state.look(Path.cwd())])}",
        f"Python {platform.python_version()}, Snakemake {_version('snakemake')}, on {platform.platform()}",
    ]
    for path in sorted(run_folder.glob("environments/*/check.json")):
        check = EnvironmentCheck.read(path)
        lines.append(
            f"environment {check.name}: Python {check.python_version}, vLLM {check.vllm} ({check.vllm_platform}), torch {check.torch} "
            f"(CUDA {check.torch_cuda or 'none'}), NCCL {check.nccl or 'none'}, Ray {check.ray or 'none'}"
        )
        lines += [f"  warning: {warning}" for warning in check.warnings]
    try:
        lines.append(commands.run(["sinfo", "--version"]).strip())
    except CommandFailed as error:
        lines.append(f"Slurm: no answer ({error})")
    return lines


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _hardware(run_folder: Path) -> list[str]:
    path = run_folder / "hardware.json"
    if not path.exists():
        return ["not looked at yet"]
    found = Hardware.read(path)
    lines = [
        f"{found.host}: {found.cpu_model}, {found.cpu_count} CPUs, {found.memory_gib:.0f} GiB, /dev/shm {found.shm_gib:.0f} GiB",
        f"{found.os}, kernel {found.kernel}, {found.architecture}, glibc {found.glibc}, nofile {found.nofile}, nproc {found.nproc}",
        f"driver {found.driver or 'none'}, CUDA {found.cuda or 'none'}",
        *(f"GPU {gpu.name}, {gpu.memory_mib} MiB" for gpu in found.gpus),
        *(f"interface {interface.name}: {interface.address}" for interface in found.interfaces),
    ]
    return lines + (found.gpu_topology or "").splitlines()[:40]
