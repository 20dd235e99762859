"""What each kind of file in an archive is: its media type, and a sentence for a reader who has never seen one."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

JSON, TEXT = "application/json", "text/plain"
_BY_SUFFIX = {
    ".json": JSON,
    ".raw": JSON,
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".parquet": "application/vnd.apache.parquet",
    ".html": "text/html",
    ".md": "text/markdown",
    ".py": "text/x-python",
    ".toml": "application/toml",
    **dict.fromkeys((".log", ".txt", ".lock", ".in", ".out", ".err"), TEXT),
}
_ATTEMPT = r"deployments/[^/]+/attempts/\d+"
# The first that fits the whole name.
_SENTENCES = tuple(
    (re.compile(pattern), sentence)
    for pattern, sentence in (
        (r"README\.txt", "How to check this archive and to unpack it again"),
        (r"manifest-sha256\.txt", "sha256 of every other file; its own sha256 is the archive's identity"),
        (r"report\.html", "The report: one page that needs nothing else"),
        (r"measurements\.(csv|parquet)", "The table: one row a measurement, units in the column names"),
        (r"config\.json", "Configuration as it was used: sweeps applied, every default filled in"),
        (r"hardware\.json", "Machine and limits as probed"),
        (r"plans\.json", "Every deployment had a plan before anything was started"),
        (r"environments/[^/]+/environment\.json", "An interpreter with vLLM: where it came from, digest of what was installed"),
        (r"environments/[^/]+/check\.json", "What an environment said of itself on a node: versions, the server's options"),
        (r"models/[^/]+/manifest\.json", "Model: every file with size and sha256, its configuration"),
        (r"deployments/[^/]+/plan\.json", "Plan of a deployment: topology, options, memory expected, load points"),
        (r"deployments/[^/]+/fabric\.json", "Whether all ranks reached each other, and by which transport"),
        (r"deployments/[^/]+/startup\.json", "How the server came up, phase by phase, and what it said of its memory"),
        (r"deployments/[^/]+/stopped\.json", "How a deployment ended, and that nothing of it was left"),
        (r"deployments/[^/]+/accounting\.json", "The scheduler's own record of a deployment's jobs"),
        (r"deployments/[^/]+/owner", "The job that worked on a deployment last"),
        (r"deployments/[^/]+/points/[^/]+\.requests\.json", "Per-request results of a load point, from all processes of the client"),
        (r"deployments/[^/]+/points/[^/]+\.json", "Measurement of a load point: verdict, reasons, figures, the client's command line"),
        (rf"{_ATTEMPT}/sources\.json", "The sources that an attempt was started from, and the configuration as given"),
        (rf"{_ATTEMPT}/keeper\.json", "Why an attempt's processes were ended, and when"),
        (rf"{_ATTEMPT}/failure\.json", "Why an attempt failed"),
        (rf"{_ATTEMPT}/startup\.json", "How an attempt's server came up"),
        (rf"{_ATTEMPT}/accounting\.json", "The scheduler's record of the jobs up to this attempt"),
        (rf"{_ATTEMPT}/daemons/[^/]+\.json", "A long-lived process of an attempt: command line, node, times, exit"),
        (rf"{_ATTEMPT}/survey/.*", "What a node was asked, or said, before or after an attempt"),
        (rf"{_ATTEMPT}/timelines/[^/]+\.json", "The servers' own metrics while a load point was measured"),
        (rf"{_ATTEMPT}/durations", "Seconds that each load point of an attempt took"),
        (rf"{_ATTEMPT}/.*\.kept/.*", "A file that a process left on its node when it died"),
        (rf"{_ATTEMPT}/.*\.log", "Log of a process of an attempt"),
        (rf"{_ATTEMPT}/.*", "File of an attempt, one start of a deployment"),
        (r"rejected/.*\.raw", "Per-request results of a rejected measurement"),
        (r"rejected/.*", "A measurement that was INVALID and set aside: no figure"),
        (r"logs/.*", "Log of a step of the workflow"),
        (r"benchmarks/.*", "Time and memory that a step of the workflow took"),
        (r"slurm/.*", "Log of a job of the scheduler"),
        (r"envs/.*\.lock", "Hash-locked list of the packages of an environment"),
        (r"envs/.*\.in", "What was asked for when a locked list was made"),
        (r"envs/.*", "How environments are made"),
    )
)  # fmt: skip


def media_type(name: str) -> str:
    """Return the file's encodingFormat, by its name."""
    return _BY_SUFFIX.get(PurePosixPath(name).suffix, TEXT)


def sentence(name: str) -> str:
    """Return what the file is."""
    return next((said for pattern, said in _SENTENCES if pattern.fullmatch(name)), "File of the run")
