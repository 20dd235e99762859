"""What an environment says of itself on the machine that will run it, and whether that machine and it belong together."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from servemark.environments import bytecode_cache
from servemark.environments.build import IN_MODEL_ENV
from servemark.errors import EnvironmentRefused
from servemark.machine import visible_gpus
from servemark.processes.children import LifelineWatch, run_tool
from servemark.progress import Progress
from servemark.records import Environment, EnvironmentCheck, Hardware
from servemark.supervisor import process_request
from servemark.variables import passed_on


def check(
    environment: Environment,
    hardware: Hardware,
    *,
    needs_ray: bool,
    needs_router: bool,
    modules: Sequence[str] = (),
    log: Path,
    progress: Progress,
    watch: LifelineWatch,
) -> EnvironmentCheck:
    """Ask the environment's own interpreter what it can do: imports, versions, a tensor, the server's options.

    Args:
        hardware: of this machine.
        modules: loaded first, as for the servers: a module may bring the CUDA toolkit.

    Raises:
        EnvironmentRefused: an import fails, Ray or the router is asked for and missing, or torch does not reach the GPUs that are here.
    """
    facts_file = log.with_suffix(".facts.json")
    facts_file.unlink(missing_ok=True)
    # Importing vLLM makes a folder there, and a killed script removes nothing: below the run's folder, and the next check removes it.
    temporary = log.with_suffix(".tmp").absolute()
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    private = {
        **dict.fromkeys(process_request.TEMPORARY, str(temporary)),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        **bytecode_cache.variables(environment),
    }
    env = passed_on.with_tools_of(environment.python, passed_on.clean_environment(private))
    steps = {
        "importing torch, vLLM and Ray": [
            environment.python,
            str(IN_MODEL_ENV / "check_environment.py"),
            str(facts_file),
        ],
        "asking vLLM for its options": [environment.python, str(IN_MODEL_ENV / "serve_options.py")],
    }
    for words, argv in steps.items():
        progress.say(words)
        target = log if "importing" in words else log.with_suffix(".help.txt")
        target.unlink(missing_ok=True)
        try:
            result = run_tool(process_request.with_modules(argv, modules), log=target, env=env, timeout_s=600, watch=watch)
        except OSError as error:
            target.write_text(f"{argv[0]}: {error.strerror}\n")
            raise _broken(environment, words, target) from None
        if result.exit_code != 0 or result.stopped:
            shutil.rmtree(temporary, ignore_errors=True)
            raise _broken(environment, words, target)
    shutil.rmtree(temporary, ignore_errors=True)
    facts = json.loads(facts_file.read_text())
    facts_file.unlink()
    if needs_ray and not facts["ray"]:
        raise EnvironmentRefused(
            f"The environment {environment.name} has no Ray, and a deployment asks for executor: ray.",
            do="Install ray there (vLLM no longer brings it along), or use executor: mp.",
            reason="ray_missing",
        )
    if needs_router and not facts["router"]:
        raise EnvironmentRefused(
            f"The environment {environment.name} has no vllm-router, and a deployment asks for several replicas or for balancing: router.",
            do="Install vllm-router there (envs/README.md names the version of the locks), or do without: replicas: 1, balancing: server.",
            reason="router_missing",
        )
    options = tuple(sorted(set(re.findall(r"--([a-z][a-z0-9-]+)", log.with_suffix(".help.txt").read_text(errors="replace")))))
    found = EnvironmentCheck(name=environment.name, digest=environment.digest, serve_options=options, **facts)
    return found.model_copy(update={"warnings": (*found.warnings, *judge(found, hardware))})


def judge(found: EnvironmentCheck, hardware: Hardware) -> tuple[str, ...]:
    """Return what speaks against this environment on this machine, and what could not be found out there: one sentence each.

    Raises:
        EnvironmentRefused: there are GPUs, and torch does not reach them; or it reaches one that nobody has told of.
    """
    if hardware.accelerator == "cpu":
        if found.tensor_on == "cuda":
            raise EnvironmentRefused(
                f"torch in environment {found.name} reaches a GPU of {hardware.host}, and no GPU is known there: nvidia-smi, which is "
                "asked for them, is not in the PATH.",
                do="Put nvidia-smi in the PATH (in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility), delete "
                "results/RUN/hardware.json and run again.",
                reason="gpu_not_reached",
            )
        hiding = visible_gpus.hiding(hardware)
        told = (f"On {hardware.host} {hiding}: every figure is the CPU's.",) if hiding else ()
        if found.torch_cuda is None:
            return told
        return (
            *told,
            f"Environment {found.name} is a CUDA {found.torch_cuda} build and {hardware.host} has no GPU{' for us' if hiding else ''}: "
            "its versions, imports and options are known; that its kernels load, that a tensor reaches a GPU, and that the driver is new "
            "enough, is not.",
        )
    gpus = f"{hardware.host} has {len(hardware.gpus)} x {hardware.gpus[0].name}"
    if found.vllm_platform == "cpu":
        return (f"{gpus}, and environment {found.name} is a CPU build: no GPU is used, and every figure is the CPU's.",)
    if found.tensor_on == "cuda":
        return ()
    if found.torch_cuda is None:
        what = f"{gpus}, and torch {found.torch} in environment {found.name} was built without CUDA"
        do = "Install a torch of the CUDA build that vLLM was built for, or use `lock: auto`."
    elif hardware.cuda and int(found.torch_cuda.split(".")[0]) > int(hardware.cuda.split(".")[0]):
        what = (
            f"torch {found.torch} in environment {found.name} needs CUDA {found.torch_cuda}, and the driver {hardware.driver} of "
            f"{hardware.host} can do CUDA {hardware.cuda}"
        )
        do = "Use `lock: auto`, which chooses by the driver, or a prefix built for an older CUDA; or have the driver renewed."
    else:
        what = f"{gpus}, and torch {found.torch} in environment {found.name} sees none of them"
        do = "See whether CUDA_VISIBLE_DEVICES is set to nothing, and whether the scheduler gave the job its GPUs (nvidia-smi -L)."
    raise EnvironmentRefused(f"{what}.", do=do, reason="gpu_not_reached")


def _broken(environment: Environment, words: str, log: Path) -> EnvironmentRefused:
    last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["(no output)"]
    return EnvironmentRefused(
        f"The environment {environment.name} ({environment.prefix}) does not work: {words} failed: {last[0]}",
        look=str(log),
        do="Mend it (the log has its words), or give another environments.NAME.prefix."
        if environment.origin == "prefix"
        else f"Delete {environment.prefix} and results/RUN/environments/{environment.name}/environment.json and run "
        "again: it is built anew.",
        reason="environment_broken",
    )
