"""What the scheduler says of a run's jobs: our journal, Slurm's own record where it answers, the jobs' logs."""

from __future__ import annotations

import json
from pathlib import Path

from servemark.errors import ServemarkError
from servemark.records import Accounting
from servemark.security.redaction import Quoting
from snakemake_executor_plugin_slurm_guarded import commands, journal
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed

EVENTS, JOBS, LOG_LINES = 60, 20, 20
SACCT = "JobID,JobName,State,ExitCode,Reason,Partition,NNodes,NodeList,AllocTRES,Submit,Start,End,Elapsed,Timelimit,Restarts"


def section(run_folder: Path, quoting: Quoting) -> list[str]:
    """Return everything that is known; words where there is nothing."""
    file = run_folder / "slurm" / "jobs.jsonl"
    entries = list(journal.read(file))
    jobs = list(dict.fromkeys(str(entry["job"]) for entry in entries if "job" in entry))
    if not jobs:
        return ["No job was submitted: the run went without a scheduler, or inside a job.", *_accounting(run_folder)]
    newest = jobs[-JOBS:]
    lines = [
        f"{len(jobs)} job(s): {', '.join(newest)}{' and older ones' if len(jobs) > JOBS else ''}",
        *_accounting(run_folder),
    ]
    lines += ["Our journal (slurm/jobs.jsonl)", *quoting.lines(map(_event, entries), EVENTS)]
    lines += [
        "sacct",
        *quoting.lines(_ask("sacct", "--parsable2", f"--jobs={','.join(newest)}", f"--format={SACCT}"), EVENTS),
    ]
    lines += ["scontrol show job (jobs that the controller still knows)"]
    for job in newest[-5:]:
        lines += quoting.lines(_ask("scontrol", "show", "job", "-d", job), 40)
    lines += ["sinfo", *quoting.lines(_ask("sinfo", "--long"), 20)]
    logs = sorted((path for job in newest for path in (run_folder / "slurm").glob(f"*/{job}.log")), key=str)
    for log in logs:
        lines += [f"last lines of {log}", *quoting.tail(log, LOG_LINES, "    > ")]
    return lines


def _event(entry: dict[str, object]) -> str:
    return json.dumps(entry, ensure_ascii=False)


def _ask(*argv: str) -> list[str]:
    try:
        return commands.run(argv).splitlines()
    except CommandFailed as error:
        return [f"no answer: {error}"]


def _accounting(run_folder: Path) -> list[str]:
    lines = []
    for path in sorted(run_folder.glob("deployments/*/accounting.json")):
        try:
            record = Accounting.read(path)
        except ServemarkError as error:
            lines.append(f"{path}: {error.what.splitlines()[0]}")
            continue
        lines += [f"accounting of {record.deployment}: {job.model_dump_json(exclude_none=True)}" for job in record.jobs]
    return lines
