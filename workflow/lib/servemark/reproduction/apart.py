"""What cannot be the same on this machine as in an archive's run, before anything runs."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from servemark import __version__
from servemark.errors import ServemarkError
from servemark.machine import git_state, hardware
from servemark.records import Hardware, Topology
from servemark.report.gather import RunRecords
from servemark.variables import passed_on

_SHOWN = 5


def notes(found: RunRecords, checkout: Path, *, scheduled: bool) -> Iterator[str]:
    """Yield a sentence for each difference between an archive's run and this machine.

    Args:
        scheduled: the new run gets its nodes from Slurm, so this machine's hardware does not matter.
    """
    yield from _code(found, checkout)
    if scheduled:
        there = ", ".join(filter(None, _words(found.machine).values()))
        yield f"hardware: measured on {there}. The run probes the nodes that Slurm gives it."
    else:
        yield from _hardware(found.machine)
    yield from _variables(found)
    for name, model in found.config.get("models", {}).items():
        if model.get("trust_remote_code"):
            yield f"model {name}: `trust_remote_code` lets vLLM run Python code from the model's folder. Read that code first."


def missing_gpus(found: RunRecords) -> Iterator[str]:
    """Yield a sentence for each deployment that used more GPUs than this machine has. A machine that cannot be probed gives none."""
    try:
        here = hardware.probe()
    except ServemarkError:
        return
    for name, plan in found.plans.items():
        check, needed = found.checks.get(plan.environment), plan.topology.devices_per_node
        if check and check.torch_cuda and needed > len(here.gpus):
            hidden = f"; CUDA_VISIBLE_DEVICES hides {here.hidden_gpus}" if here.hidden_gpus else ""
            yield (
                f"deployments.{name}: needs {needed} GPU(s), and this machine has {len(here.gpus)}{hidden}. Run it on a machine with "
                "as many GPUs, or through Slurm with --cluster NAME."
            )


def _code(found: RunRecords, checkout: Path) -> Iterator[str]:
    versions = ", ".join(sorted({state.servemark for state in found.sources})) or "unknown"
    here = git_state.look(checkout)
    before, now = f"{versions} ({found.commit})", f"{__version__} ({git_state.words([here])})"
    if before != now or here.dirty:
        yield f"servemark: {before} there, {now} here"


def _hardware(there: Hardware) -> Iterator[str]:
    try:
        here = hardware.probe()
    except ServemarkError as error:
        yield f"hardware: this machine cannot be probed: {error.what}"
        return
    before, now = _words(there), _words(here)
    for name, value in before.items():
        if value != now[name]:
            yield f"{name}: {value or 'none'} there, {now[name] or 'none'} here"


def _words(machine: Hardware) -> dict[str, str]:
    kinds = Counter(f"{gpu.name}, {gpu.memory_mib} MiB" for gpu in machine.gpus)
    return {
        "GPUs": "; ".join(f"{count} x {kind}" for kind, count in kinds.items()),
        "NVIDIA driver": machine.driver or "",
        "CPU": f"{machine.cpu_model}, {machine.cpu_count} CPUs",
        "host": machine.host,
        "kernel": machine.kernel,
    }


def _variables(found: RunRecords) -> Iterator[str]:
    """Yield the inherited variables that decide results and differ between the archive's shell and this one."""
    there: dict[str, str] = {}
    for plan in found.plans.values():
        there |= plan.inherited
    changed = [name for name, value in there.items() if os.environ.get(name) != value]
    if changed:
        yield f"variables: set there in the shell that started snakemake, not so here: {_listed(changed, there)}"
    added = passed_on.deciding(os.environ, Topology(), there)
    if added:
        yield f"variables: this shell sets {_listed(list(added), {})}, which decide results and were not set there"


def _listed(names: list[str], values: Mapping[str, str]) -> str:
    words = [f"{name}={values[name]}" if name in values else name for name in names[:_SHOWN]]
    return ", ".join(words) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
