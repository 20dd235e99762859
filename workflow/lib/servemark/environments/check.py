"""Check an environment on the machine that will run it: versions, imports, options, GPUs."""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from servemark.containers import entering
from servemark.environments import bytecode_cache, known_options
from servemark.environments.build import IN_MODEL_ENV
from servemark.errors import EnvironmentRefused
from servemark.machine import visible_gpus
from servemark.processes.children import OwnerWatch, run_tool
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
    watch: OwnerWatch,
) -> EnvironmentCheck:
    """Run the environment's interpreter: import the packages, add a tensor, return versions and the server's options.

    Args:
        hardware: this machine's.
        modules: environment modules to load first, as for the servers. One may bring the CUDA toolkit.

    Raises:
        EnvironmentRefused: an import fails, Ray or the router is needed and missing, or torch does not reach this machine's GPUs.
    """
    facts_file, options_file = log.with_suffix(".facts.json"), log.with_suffix(".options.json")
    options_log = log.with_suffix(".options.log")
    temporary = temporary_folder(log)
    steps = (
        ("importing torch, vLLM and Ray", log, [IN_MODEL_ENV / "check_environment.py", "facts", facts_file]),
        ("listing the options of vLLM", options_log, [known_options.SCRIPT, options_file]),
    )
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        for words, output, arguments in steps:
            progress.say(words)
            output.unlink(missing_ok=True)
            try:
                argv, env = command(environment, hardware, arguments, modules=modules, temporary=temporary, folders=[log.parent])
                result = run_tool(argv, log=output, env=env, timeout_s=600, watch=watch)
            except OSError as error:
                output.write_text(f"{environment.python}: {error.strerror}\n")
                raise _broken(environment, words, output) from None
            if result.exit_code != 0 or result.stopped:
                raise _broken(environment, words, output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    facts = json.loads(facts_file.read_text())
    known = known_options.parsed(options_file, facts["vllm"])
    for file in (facts_file, options_file, options_log):
        file.unlink()
    if needs_ray and not facts["ray"]:
        raise EnvironmentRefused(
            f"The environment {environment.name} has no Ray, and a deployment sets executor: ray.",
            do="Install ray there, or set executor: mp.",
            reason="ray_missing",
        )
    if needs_router and not facts["router"]:
        raise EnvironmentRefused(
            f"The environment {environment.name} has no vllm-router, and a deployment sets several replicas or balancing: router.",
            do="Install vllm-router there (versions: docs/reference/environments.md), or set replicas: 1 and balancing: server.",
            reason="router_missing",
        )
    options: dict[str, Any] = {
        "serve_options": tuple(sorted(name for argument in known.serve for name in argument.names)),
        "serve_arguments": known.serve,
        "client_arguments": known.client,
    }
    found = EnvironmentCheck(name=environment.name, digest=environment.digest, **options, **facts)
    return found.model_copy(update={"warnings": (*found.warnings, *judge(found, hardware))})


def temporary_folder(log: Path) -> Path:
    """Return the folder for temporary files, which vLLM's import makes.

    It is below the run's folder, so the next check removes it if this one was killed.
    """
    return log.with_suffix(".tmp").absolute()


def command(
    environment: Environment,
    hardware: Hardware,
    arguments: Sequence[object],
    *,
    modules: Sequence[str],
    temporary: Path,
    folders: Sequence[Path],
    variables: Mapping[str, str] | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return command line and environment that run a script with the environment's interpreter on this machine.

    Args:
        arguments: the script and its arguments.
        temporary: folder for temporary files.
        folders: folders that a container also gets.
        variables: further variables.

    Raises:
        OSError: a folder in the container image cannot be made.
    """
    private = {
        **dict.fromkeys(process_request.TEMPORARY, str(temporary)),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        **bytecode_cache.variables(environment),
        **(variables or {}),
    }
    env = passed_on.clean_environment(private)
    argv = [environment.python, *map(str, arguments)]
    if environment.container:
        image = environment.container.model_copy(update={"gpus": hardware.accelerator == "cuda"})
        bytecode = [Path(environment.bytecode)] if environment.bytecode else []
        argv, env = entering.enter(image, argv, env, given=private, folders=[*folders, *bytecode])
    else:
        env = passed_on.with_tools_of(environment.python, env)
    return process_request.with_modules(argv, modules), env


def judge(found: EnvironmentCheck, hardware: Hardware) -> tuple[str, ...]:
    """Return warnings about this environment on this machine.

    Raises:
        EnvironmentRefused: there are GPUs and torch does not reach them, or torch reaches a GPU that the probe did not find.
    """
    name, host = found.name, hardware.host
    if hardware.accelerator == "cpu":
        if found.tensor_on == "cuda":
            raise EnvironmentRefused(
                f"torch in environment {name} reaches a GPU of {host}; the probe found no GPU, because nvidia-smi is not in the PATH.",
                do="Put nvidia-smi in the PATH (in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility), delete "
                "results/RUN/hardware.json and rerun.",
                reason="gpu_not_reached",
            )
        hiding = visible_gpus.hiding(hardware)
        on_cpu = (f"On {host} {hiding}: all results are results of the CPU.",) if hiding else ()
        if found.torch_cuda is None:
            return on_cpu
        return (
            *on_cpu,
            f"Environment {name} is a CUDA {found.torch_cuda} build and {host} has no {'visible ' if hiding else ''}GPU. Checked: "
            "versions, imports and options. Not checked: whether its kernels load, a tensor reaches a GPU, and the driver is new enough.",
        )
    gpus = f"{host} has {len(hardware.gpus)} x {hardware.gpus[0].name}"
    if found.vllm_platform == "cpu":
        return (f"{gpus}, and environment {name} is a CPU build: it uses no GPU, and all results are results of the CPU.",)
    if found.tensor_on == "cuda":
        return ()
    if found.torch_cuda is None:
        what = f"{gpus}, and torch {found.torch} in environment {name} was built without CUDA"
        do = "Install the CUDA build of torch that vLLM needs, or set `lock: auto`."
    elif hardware.cuda and int(found.torch_cuda.split(".")[0]) > int(hardware.cuda.split(".")[0]):
        what = (
            f"torch {found.torch} in environment {name} needs CUDA {found.torch_cuda}, and the driver {hardware.driver} of {host} supports "
            f"CUDA {hardware.cuda}"
        )
        do = "Set `lock: auto`, which chooses by the driver, use a prefix built for an older CUDA, or have the driver updated."
    else:
        what = f"{gpus}, and torch {found.torch} in environment {name} detects none of them"
        do = "Check whether CUDA_VISIBLE_DEVICES is empty, and whether the scheduler gave the job its GPUs (nvidia-smi -L)."
    raise EnvironmentRefused(f"{what}.", do=do, reason="gpu_not_reached")


def _broken(environment: Environment, words: str, log: Path) -> EnvironmentRefused:
    last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["(no output)"]
    missing = re.fullmatch(r"ModuleNotFoundError: No module named '(torch|vllm)'", last[0].strip())
    if missing:
        of = f"The lock file {environment.lock}" if environment.lock else f"The environment {environment.prefix}"
        other = "container.image" if environment.container else "prefix"
        return EnvironmentRefused(
            f"The environment {environment.name} cannot serve a model: {of} has no {missing[1]}.",
            look=str(log),
            do="Add vllm to the requirements, make the lock file again (`envs/lock MY.in -o MY.lock`) and rerun."
            if environment.lock
            else f"Install it there, or set another environments.{environment.name}.{other}.",
            reason="vllm_missing",
        )
    do = f"Delete {environment.prefix} and results/RUN/environments/{environment.name}/environment.json and rerun to build it again."
    if environment.container:
        do = f"Repair the image, or set another environments.{environment.name}.container.image."
    elif environment.origin == "prefix":
        do = f"Repair it, or set another environments.{environment.name}.prefix."
    what = f"The environment {environment.name} ({environment.prefix}) does not work: {words} failed: {last[0]}"
    return EnvironmentRefused(what, look=str(log), do=do, reason="environment_broken")
