"""Snakemake executor ``slurm-guarded``: submits jobs to Slurm, loses none of them and leaves none behind.

The README describes resources, settings and limits. The three names for Snakemake are imported on first use, so that programs with only
the other modules, such as :mod:`commands` or :mod:`queries`, do not import Snakemake.
"""

import importlib
from importlib.metadata import entry_points
from typing import Any

HOOKS = "snakemake_executor_plugin_slurm_guarded.before_snakemake"
"""Entry point group: functions without arguments that run before Snakemake reads its command line, also in each job."""

_MODULES = {"Executor": "executor", "ExecutorSettings": "settings", "common_settings": "settings"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Executor":
        # Snakemake imports every executor plugin to build its command line.
        for hook in entry_points(group=HOOKS):
            hook.load()()
    found = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found
