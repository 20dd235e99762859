"""``servemark init``: write a first configuration, and a cluster file where there is Slurm, from what this machine offers."""

import re
import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from servemark.config.cluster import FOLDER
from servemark.config.cluster import Site as ClusterFile
from servemark.config.load import read_mapping
from servemark.environments import lockfiles
from servemark.errors import ConfigError
from servemark.init import machine as machine_facts
from servemark.init import models, site, write
from servemark.init import slurm as slurm_facts
from servemark.init.machine import Machine
from servemark.init.models import Found
from servemark.init.slurm import Slurm
from servemark.init.terminal import Asker, Defaults, Terminal

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
RESERVED = "slurm"
"""The cluster file that comes with servemark: an example, so no file is made under its name."""
LONGEST_LEN = 4096
"""Tokens of prompt and output together. Enough for the first workload, and small enough for the KV cache of most GPUs."""


def init(output: Path, model: str | None, cluster: str | None, *, yes: bool) -> None:
    """Write the configuration ``output`` and, where there is Slurm, config/clusters/NAME.yaml; print what was found and what to run.

    Args:
        model: a folder, ``hf:ORG/NAME@REVISION`` or a built-in model; None to ask.
        cluster: NAME of the cluster file; None for Slurm's name of the cluster.
        yes: take the defaults without asking.

    Raises:
        ConfigError: a file is there already, an argument is wrong, or there is no terminal to ask at.
    """
    write.refuse_existing(output, f"Name another file: --output {output.with_name('other.yaml')}")
    if not (yes or (sys.stdin.isatty() and sys.stdout.isatty())):
        raise ConfigError(
            "servemark cannot ask questions: input or output is not a terminal.",
            do="Add --yes to take the defaults, and --model to name a model.",
        )
    ask: Asker = Defaults() if yes else Terminal()
    machine, slurm, cached = machine_facts.find(), slurm_facts.find(), models.in_hub_cache()
    _print_facts(machine, slurm, cached)
    slurm = slurm if slurm and slurm.responds else None
    name, path = _cluster_file(cluster, slurm)
    chosen = _model(model, cached, ask)
    made = site.choose(name, slurm, machine, ask) if name and path and slurm and not path.exists() else None
    if made:
        gpus = made.gpus
    elif path:
        gpus = _gpus_of(path)
    else:
        gpus = len(machine.hardware.gpus) if machine.hardware else 0
    text = write.render("my.yaml", **_facts(output, chosen, cached, machine, name, gpus))
    new = (path, write.render("cluster.yaml", site=made, machine=machine)) if made and path else None
    write.write(output, text, new, name)
    if path and not new:
        print(f"\nkept the existing {path}")
    print(f"\nwrote {path}\nwrote {output}" if new else f"\nwrote {output}")
    profile = "slurm" if name else "profiles/local"
    run = f".venv/bin/snakemake --profile {profile} --configfile {output}"
    print("\nRead the new files; each choice has a comment. Then run:")
    print(f"  .venv/bin/servemark check {output}          # checks this machine{' and Slurm' if name else ''}; starts nothing")
    print(f"  {run} -n --quiet rules host     # lists what would run")
    print(f"  {run}")


def _cluster_file(wanted: str | None, slurm: Slurm | None) -> tuple[str | None, Path | None]:
    """Return name and path of the cluster file; None without Slurm."""
    if wanted is not None and not re.fullmatch(NAME_PATTERN, wanted):
        raise ConfigError(f"--cluster {wanted!r} is not a valid name: use letters, digits, dots, dashes and underscores.",
                          do=f"Give NAME of {FOLDER}/NAME.yaml.")  # fmt: skip
    if wanted:
        name = wanted
    elif slurm:
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", slurm.cluster or "").strip("-._") or RESERVED
        name = "my-cluster" if name == RESERVED else name
    else:
        return None, None
    path = FOLDER / f"{name}.yaml"
    if slurm is None and not path.exists():
        raise ConfigError(
            f"There is no {path}, and Slurm does not respond on this machine, so servemark cannot make this file.",
            do="Run servemark init on the cluster's login node (`sinfo` responds there), or leave --cluster out for a run on this machine.",
        )
    return name, path


def _model(wanted: str | None, cached: tuple[Found, ...], ask: Asker) -> Found:
    def read(text: str) -> Found:
        return models.named(text, cached)

    if wanted is not None:
        return read(wanted)
    tiny = models.builtin()
    if isinstance(ask, Defaults):
        return tiny
    question = "Which model? Type a number, the path of a folder, or hf:ORG/NAME@REVISION."
    return ask.choose(question, [(one, one.title) for one in (*cached[:10], tiny)], read)


def _gpus_of(path: Path) -> int:
    """Return gpus_per_node of an existing cluster file; 0 for a wrong one, which the validation of the new files reports."""
    try:
        return ClusterFile.model_validate(read_mapping(path).data).gpus_per_node
    except ValidationError:
        return 0


def _facts(output: Path, model: Found, cached: tuple[Found, ...], machine: Machine, cluster: str | None, gpus: int) -> dict[str, Any]:
    """Return what the template of the configuration shows."""
    accelerator = "cuda" if gpus else "cpu"
    parallel = models.tensor_parallel(model, gpus)
    longest = min(LONGEST_LEN, (model.architecture and model.architecture.max_positions) or LONGEST_LEN)
    small = model.builtin or accelerator == "cpu"
    lengths = {"max_model_len": 512, "input_tokens": 64, "output_tokens": 32} if small else {
        "max_model_len": longest, "input_tokens": min(1024, longest // 2), "output_tokens": min(256, longest // 4)}  # fmt: skip
    lock = lockfiles.table(Path("envs"))["cpu"]
    unmet = lockfiles.unmet(lock, machine.hardware, sys.version_info[:2]) if machine.hardware else ()
    return {
        "output": output,
        "at_top": output.absolute().parent == Path.cwd(),
        "model": model,
        "found": cached,
        "machine": machine,
        "cluster": cluster,
        "accelerator": accelerator,
        "why_cpu": "jobs on this cluster request no GPU" if cluster else "this machine has no NVIDIA GPU that servemark can use",
        "cpu_unmet": unmet,
        "deployment": f"tp{parallel}" if gpus else "cpu",
        "tensor_parallel": parallel,
        "gpus": gpus,
        "small": small,
        **lengths,
        "max_model_len": min(lengths["max_model_len"], longest),
    }


def _print_facts(machine: Machine, slurm: Slurm | None, cached: tuple[Found, ...]) -> None:
    """Print what was found, a line for each source."""
    if found := machine.hardware:
        gpus = f"{len(found.gpus)} x {found.gpus[0].name}, driver {found.driver}" if found.gpus else "no NVIDIA GPU"
        print(f"This machine   {machine.host}: {gpus}, {found.cpu_count} CPUs, {found.memory_gib:.0f} GiB memory")
    print(f"Networks       {', '.join(map(str, machine.networks)) or 'none but loopback'}")
    print(f"Folders        {', '.join(f'{disk.name} {disk}' for disk in (*machine.disks, machine.checkout))}")
    print(f"Modules        {', '.join(machine.modules) or 'none loaded'}")
    print(f"Models         {', '.join(one.title for one in cached) or 'none in the Hugging Face cache'}")
    if slurm is None or not slurm.responds:
        print(f"Slurm          {'does not respond' if slurm else 'none'}: the configuration is for this machine alone")
    else:
        gpu = [one.name for one in slurm.partitions if one.gpus]
        names = f"{len(slurm.partitions)} partition(s), with GPUs: {', '.join(gpu) or 'none'}"
        accounts = ", ".join(dict.fromkeys(one.name for one in slurm.accounts))
        print(f"Slurm          {slurm.cluster or 'cluster without a name'}: {names}; accounts: {accounts or 'not listed'}")
    for sentence in (*machine.unknown, *(slurm.unknown if slurm else ())):
        print(f"Not found      {sentence}")
