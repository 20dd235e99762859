"""The submitting side of Slurm: what is asked for, what became of a job, and that no job outlives its run.

``commands`` runs Slurm's tools, ``listings`` asks them about jobs and reads what they print, ``states`` and ``tracking`` decide what has
become of a job, ``words`` says it, ``journal`` keeps it, ``request`` and ``preflight`` state and check what is asked for, ``guard``
clears up.
"""
