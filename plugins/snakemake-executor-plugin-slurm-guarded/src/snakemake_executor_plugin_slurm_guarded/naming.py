"""Names of a Snakemake job in messages, in the journal and of its folder. Pure functions."""

from __future__ import annotations

from snakemake_interface_executor_plugins.jobs import JobExecutorInterface


def label_of(job: JobExecutorInterface) -> str:
    """Return ``RULE (WILDCARD=VALUE, ...)``; for a group, the wildcards that all of its jobs share: ``sample A``."""
    shared = wildcards(job)
    if job.is_group() and shared:
        return ", ".join(f"{name} {value}" for name, value in sorted(shared.items()))
    values = ", ".join(f"{name}={value}" for name, value in sorted(shared.items()))
    return f"{job.name} ({values})" if values else str(job.name)


def wildcards(job: JobExecutorInterface) -> dict[str, str]:
    """Return the wildcards of a job; for a group, those that have the same value in all of its jobs."""
    members = list(job.jobs) if job.is_group() else [job]
    every = [dict(member.wildcards.items()) for member in members]
    return {name: value for name, value in every[0].items() if all(other.get(name) == value for other in every)}


def file_name(label: str) -> str:
    """Return a label as the name of a folder."""
    return "".join(letter if letter.isalnum() or letter in "-_.=" else "_" for letter in label)
