"""``servemark ticket``: one tar file about a run for the cluster's support: a summary, records and logs, without secrets."""

import getpass
import io
import os
import platform
import re
import tarfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from servemark import __version__, supervisor
from servemark.cli import runs
from servemark.deployment import attempts
from servemark.machine import git_state
from servemark.processes import identity
from servemark.records import utc_now, write_atomically
from servemark.security.redaction import Redactor
from servemark.weights import hub_token
from snakemake_executor_plugin_slurm_guarded import commands, journal
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed
from snakemake_executor_plugin_slurm_guarded.secret_names import looks_secret

# Bytes of text in all, before compression: below the limits of ticket systems for attachments.
LONGEST = 20 * 2**20
# For a long file: bytes at each end that are searched for secrets, and bytes of them that the ticket keeps.
_READ, _KEPT = 2**20, 2**17
_SUFFIXES = {".json", ".jsonl", ".log", ".txt", ".out", ".err"}
# Prompts and outputs of requests; variables of processes.
_LEFT_OUT = {"archive", "points", "rejected", "requests", "tools"}
_JOBS = 20
_SACCT = "JobID,JobName,State,ExitCode,Reason,Partition,NNodes,NodeList,AllocTRES,Submit,Start,End,Elapsed,Timelimit,Restarts"
_NAMED = re.compile(r'"([^"\n]+)": "([^"\n]+)"')


def write(run_folder: Path, output: Path, longest: int = LONGEST) -> dict[str, int]:
    """Write the tar, readable by this user alone; return how many secrets of each kind were replaced.

    Raises:
        NoSuchRun: there is no such run.
    """
    runs.require(run_folder)
    keys = [path.read_text() for name in supervisor.SECRETS for path in run_folder.glob(f"*/*/attempts/*/{name}")]
    redact, left_out, size = Redactor([*keys, *hub_token.stored()]), [], 0
    members: dict[str, bytes] = {}
    for path in _files(run_folder):
        name = str(path.relative_to(run_folder))
        try:
            text = _ends(path, redact)
        except OSError as error:
            left_out.append(f"{name}: {error.strerror}")
            continue
        if size + len(text) > longest:
            left_out.append(f"{name}: the ticket would be too large")
            continue
        members[name] = text
        size += len(text)
    summary = redact("\n".join(_summary(run_folder)))
    found = ", ".join(f"{count} x {kind}" for kind, count in redact.hits.items()) or "none found"
    end = ["", f"Secrets replaced by [REDACTED: kind]: {found}.", *(["", "Files left out:", *left_out] if left_out else []), ""]
    members = {"summary.txt": "\n".join([summary, *end]).encode(errors="replace")} | {f"run/{name}": text for name, text in members.items()}
    write_atomically(output, _packed(f"servemark-ticket-{run_folder.name}", members), mode=0o600)
    return dict(redact.hits)


def _files(run_folder: Path) -> list[Path]:
    """Return records and logs: those of failed attempts first, then the newest."""

    def rank(path: Path) -> tuple[bool, float]:
        inside = path.relative_to(run_folder).parts
        failed = "attempts" in inside and Path(run_folder, *inside[: inside.index("attempts") + 2], "failure.json").exists()
        return not failed, -path.lstat().st_mtime

    found = []
    for folder, below, names in os.walk(run_folder):
        below[:] = [name for name in below if name not in _LEFT_OUT]
        found += [Path(folder, name) for name in names if Path(name).suffix in _SUFFIXES]
    return sorted((path for path in found if path.is_file() and not path.is_symlink()), key=rank)


def _ends(path: Path, redact: Redactor) -> bytes:
    """Return a file, or the first and last 128 KiB of a longer one, without secrets.

    Secrets are replaced in 1 MiB at each end, before the text is cut: nobody recognises half of a secret.
    """
    with open(path, "rb") as stream:
        head = stream.read(2 * _READ)
        size = os.fstat(stream.fileno()).st_size
        if size > len(head):
            head = head[:_READ]
            stream.seek(-_READ, os.SEEK_END)
        tail = stream.read()
    first, last = (redact(part.decode(errors="replace")) for part in (head, tail))
    if path.name == "config.json":
        # The configuration refuses such names; this is a second check.
        first = _NAMED.sub(lambda one: f'"{one[1]}": "[REDACTED: named like a secret]"' if looks_secret(one[1]) else one[0], first)
    if not tail and len(first) <= 2 * _KEPT:
        return first.encode(errors="replace")
    last = last or first
    return f"{first[:_KEPT]}\n[the middle of {size} bytes is left out]\n{last[-_KEPT:]}".encode(errors="replace")


def _summary(run_folder: Path) -> Iterator[str]:
    yield f"servemark support ticket for run {run_folder.name}, made {utc_now()} by {getpass.getuser()} on {identity.host()}"
    yield f"in {Path.cwd()}"
    yield "It holds paths, user, host and node names and addresses. Check it before you send it on."
    yield f"servemark {__version__}, commit {git_state.words([git_state.look(Path.cwd())])}, Snakemake {metadata.version('snakemake')}"
    yield f"Python {platform.python_version()} on {platform.platform()}"
    for folder in sorted(path.parent for path in run_folder.glob("*/*/attempts")):
        for attempt in reversed(attempts.every(folder)):
            yield ""
            try:
                yield from _attempt(folder, attempt)
            except (OSError, ValueError) as error:
                yield f"  a record cannot be read: {str(error).splitlines()[0]}"
    yield from _slurm(run_folder)


def _attempt(folder: Path, attempt: Path) -> Iterator[str]:
    yield f"{folder.parent.name}/{folder.name}, attempt {attempt.name}"
    if state := supervisor.read_state(attempt):
        yield f"  supervisor {state.identity}, {state.owner}: {state.state} {state.why or ''} {state.ended_at or ''}"
    if failure := attempts.noted_failure(attempt):
        yield f"  FAILED in {failure.stage}: {failure.reason}. {failure.detail}"
        yield from (f"  | {line}" for line in failure.quote)
        yield f"  remedy: {failure.remedy or '-'}; log: {failure.log or '-'}"
    yield from (f"  {attempts.how_it_ended(daemon)}" for daemon in supervisor.read_daemons(attempt))


def _slurm(run_folder: Path) -> Iterator[str]:
    """Yield Slurm's own record of the run's newest jobs; the journal and the jobs' logs are among the files."""
    jobs = list(dict.fromkeys(str(entry["job"]) for entry in journal.read(run_folder / "slurm" / "jobs.jsonl") if "job" in entry))[-_JOBS:]
    asked = [["sinfo", "--version"]]
    if jobs:
        asked += [["sinfo", "--long"], ["sacct", "--parsable2", f"--jobs={','.join(jobs)}", f"--format={_SACCT}"]]
        asked += [["scontrol", "show", "job", "-d", job] for job in jobs[-5:]]
    for argv in asked:
        yield f"\n$ {' '.join(argv)}"
        try:
            yield commands.run(argv).strip()
        except CommandFailed as error:
            yield f"no response: {error}"


def _packed(top: str, members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
