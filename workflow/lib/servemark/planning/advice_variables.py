"""Variables of a server that do nothing in its version of vLLM, slow it down while it is measured, or come from the shell alone."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator

from servemark.planning.demand import Asked
from servemark.variables import table

REPLACED = {"VLLM_MXFP4_USE_MARLIN": ("moe-backend", "options.moe-backend: marlin")}
"""Variables whose place an option has taken: that option, and how it is written. Not in vllm/envs.py of 0.32.0 and 0.33.0."""

DEBUGGING = {
    "VLLM_LOGGING_LEVEL": ("DEBUG", "TRACE"),
    "VLLM_TRACE_FUNCTION": ("1",),
    "CUDA_LAUNCH_BLOCKING": ("1",),
    "NCCL_DEBUG": ("TRACE",),
}
"""Variables, and values of them, that vLLM's page on troubleshooting sets to find a fault."""


def unknown(asked: Asked) -> Iterator[str]:
    """``VLLM_`` variables that are not in the installed vllm/envs.py: vLLM warns of them at its start, and goes on.

    Seen in scripts written for vLLM 0.15.1: VLLM_USE_RAY_COMPILED_DAG, VLLM_USE_RAY_SPMD_WORKER, VLLM_USE_RAY_SPMD_HEAD, of which
    0.15.1 already read none. A few names are read past that list, of 0.32.0 six, none of them for users of NVIDIA GPUs.
    """
    known = asked.check.variables
    for name in sorted(asked.variables):
        if not known or not name.startswith("VLLM_") or name in known:
            continue
        option, instead = REPLACED.get(name, ("", ""))
        if option in asked.check.serve_options:
            way_out = f"{instead} has taken its place."
        elif near := difflib.get_close_matches(
            name, [one for one in known if not table.row(one).refused], n=1, cutoff=0.85
        ):
            way_out = f"Did you mean {near[0]}? Otherwise remove it."
        else:
            way_out = "Remove it."
        yield f"variables.{name}: vLLM {asked.check.vllm} does not have it among its variables, so it does nothing. {way_out}"


def misnamed(asked: Asked) -> Iterator[str]:
    """NCCL's variable is called NCCL_NET_FORCE_FLUSH (NVIDIA's list of NCCL's variables); scripts that leave NET out go about."""
    if "NCCL_FORCE_FLUSH" in asked.variables:
        yield "variables.NCCL_FORCE_FLUSH: NCCL has no such variable, so it does nothing. Did you mean NCCL_NET_FORCE_FLUSH?"


def debugging(asked: Asked) -> Iterator[str]:
    """Aids to find a fault with, left on while measuring.

    Source: vLLM's docs/usage/troubleshooting.md: to be turned off again, "otherwise, the system might be slow". How much was not measured.
    """
    for name, values in DEBUGGING.items():
        if (value := asked.variables.get(name, "")).upper() in values:
            yield (
                f"variables.{name}: {value} is for finding faults, and vLLM's own page says that the server may be slow with it. Remove it "
                "before figures matter."
            )


def of_the_shell(asked: Asked) -> Iterator[str]:
    """Variables that decide figures and stand in no configuration: whoever measures from another shell has another key."""
    if asked.inherited:
        names = sorted(asked.inherited)
        reach, them = ("reaches", "it") if len(names) == 1 else ("reach", "them")
        yield (
            f"From the shell, {', '.join(names)} {reach} the servers and may decide figures, so the ledger's key has {them}: a run from a "
            f"shell without {them} measures anew. Write {them} under deployments.NAME.variables, or under `variables` of the cluster file, "
            "to have the same for everybody; the key stays as it is then."
        )


RULES: tuple[Callable[[Asked], Iterator[str]], ...] = (unknown, misnamed, debugging, of_the_shell)
