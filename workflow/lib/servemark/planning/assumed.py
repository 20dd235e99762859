"""The nodes and the environment of a plan that is made before either exists."""

import difflib
import re

from servemark.environments.known_options import shipped
from servemark.environments.lockfiles import vllm_versions
from servemark.errors import ConfigError
from servemark.planning import devices
from servemark.planning.devices import Device
from servemark.records import EnvironmentCheck, Gpu, Hardware, LoadPoint, RandomPrompts

LOCK = "cuda13"
"""The lock file whose vLLM a plan without an environment assumes."""


def node(gpu: Gpu, count: int) -> Hardware:
    """Return a node with ``count`` GPUs; everything else about it is empty, and no estimate on GPUs depends on it."""
    return Hardware(
        accelerator="cuda", host="", cpu_model="", cpu_count=1, memory_gib=0, shm_gib=0, architecture="", kernel="", os="", glibc="",
        gpus=(gpu,) * count, nofile=0, nproc=0, probed_at="",
    )  # fmt: skip


def environment(lock: str = LOCK) -> EnvironmentCheck:
    """Return what planning needs of an environment that does not exist yet: the vLLM of its lock file."""
    version = next(iter(vllm_versions(lock)), "")
    known = shipped(version)
    return EnvironmentCheck(
        name="", digest="", python_version="", vllm=version, torch="", torch_cuda=None, ray=None, vllm_platform="cuda",
        serve_arguments=known.serve if known else (),
    )  # fmt: skip


def load(concurrency: int, input_tokens: int, output_tokens: int) -> LoadPoint:
    """Return a load of random prompts."""
    prompts = RandomPrompts(dataset="random", input_tokens=input_tokens, output_tokens=output_tokens)
    return LoadPoint(
        name="load", workload="load", prompts=prompts, concurrency=concurrency, repetition=1, seed=0, requests=concurrency, warmups=0
    )


_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*(GiB|GB)")
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?)\s*(TB/s)")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(TFLOP/s)")
LIMITS = {"GiB": (1, 100_000), "GB": (1, 100_000), "TB/s": (0.01, 1000), "TFLOP/s": (0.1, 1_000_000)}
"""Least and most of a number by its unit. Published GPUs have 16 to 288 GiB, 0.3 to 8 TB/s and 65 to 2,500 TFLOP/s."""


def gpu(text: str) -> tuple[Gpu, Device | None]:
    """Return the GPU that a user names, with its peaks: a name of devices.yaml, or ``24GiB,0.6TB/s,125TFLOP/s`` (memory, or all three).

    The arithmetic is that of 16 bits, dense. Peaks are None if the text states the memory alone.

    Raises:
        ConfigError: there is no such GPU, or a number is outside :data:`LIMITS`.
    """
    known = devices.by_short_name()
    name = re.sub(r"[\s_]+", "-", text.strip().lower()).removeprefix("nvidia-")
    if found := known.get(name):
        return found, devices.find(found)
    parts = [part.strip() for part in text.split(",")]
    sizes, speeds, rates = ([m for part in parts if (m := form.fullmatch(part))] for form in (_MEMORY, _BANDWIDTH, _RATE))
    if len(sizes) != 1 or len(speeds) != len(rates) or len(speeds) > 1 or len(parts) != 1 + 2 * len(speeds):
        near = difflib.get_close_matches(name, known, n=4, cutoff=0.5) or [one for one in known if one.startswith(name[:2])]
        meant = f" Did you mean {', '.join(near)}?" if near else ""
        raise ConfigError(
            f"There is no GPU {text!r}.{meant}",
            do=f"Give one of {', '.join(known)}; or its memory '24GiB'; or memory, bandwidth and dense 16-bit rate "
            "'24GiB,0.6TB/s,125TFLOP/s'.",
            reason="unknown_gpu",
        )
    for number, unit in (found.groups() for found in (*sizes, *speeds, *rates)):
        least, most = LIMITS[unit]
        if not least <= float(number) <= most:
            do = f"Give a number from {least:g} to {most:,} {unit}."
            raise ConfigError(f"The GPU {text!r} cannot have {number} {unit}.", do=do, reason="bad_number")
    mib = float(sizes[0][1]) * (1024 if sizes[0][2] == "GiB" else 1e9 / 2**20)
    own = Gpu(name=f"GPU of {sizes[0][0]}", memory_mib=int(mib))
    if not speeds:
        return own, None
    return own, Device(name=".*", bandwidth=float(speeds[0][1]), bf16=float(rates[0][1]), source="the command line")
