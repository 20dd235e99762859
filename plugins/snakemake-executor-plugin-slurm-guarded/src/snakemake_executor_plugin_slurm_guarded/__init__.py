"""Snakemake executor ``slurm-guarded``: submits jobs to Slurm, loses none of them and leaves none behind.

It builds on Snakemake's ``RemoteExecutor`` and, on the nodes, on the executor ``slurm-jobstep``. The README describes resources, settings
and limits. Snakemake takes three names from this package. They are loaded at that moment, so that programs which only use the other
modules, such as :mod:`commands` or :mod:`queries`, do not import Snakemake.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

HOOKS = "snakemake_executor_plugin_slurm_guarded.before_snakemake"
"""Group of entry points: functions without arguments, called before Snakemake reads its command line, in each job too."""

_MODULES = {"Executor": "executor", "ExecutorSettings": "settings", "common_settings": "settings"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Executor":
        # Snakemake imports all executor plugins for its command line, whatever executor is used.
        for hook in entry_points(group=HOOKS):
            hook.load()()
    found = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found
