"""What a Snakemake job is called in messages, in the journal and in folder names. Pure functions."""

from snakemake_interface_executor_plugins.jobs import JobExecutorInterface


def label_of(job: JobExecutorInterface) -> str:
    """``deployment NAME`` for the group of a deployment, else ``RULE (WILDCARD=VALUE, ...)``."""
    same = wildcards(job)
    if job.is_group() and "deployment" in same:
        return f"deployment {same['deployment']}"
    values = ", ".join(f"{name}={value}" for name, value in sorted(same.items()))
    return f"{job.name} ({values})" if values else str(job.name)


def wildcards(job: JobExecutorInterface) -> dict[str, str]:
    """The wildcards whose value is the same in all jobs of a group."""
    members = list(job.jobs) if job.is_group() else [job]
    every = [dict(member.wildcards.items()) for member in members]
    return {name: value for name, value in every[0].items() if all(other.get(name) == value for other in every)}


def file_name(label: str) -> str:
    """A label as the name of a folder."""
    return "".join(letter if letter.isalnum() or letter in "-_.=" else "_" for letter in label)
