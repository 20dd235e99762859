"""Inputs of a plan: an environment check, nodes, load points."""

from __future__ import annotations

from builders import report_data
from builders.deployed import HARDWARE
from builders.loads import load
from servemark.config.cluster import Site
from servemark.records import Gpu, LoadPoint

KNOWN = (
    "max-model-len",
    "dtype",
    "enforce-eager",
    "gpu-memory-utilization",
    "kv-cache-memory-bytes",
    "kv-cache-dtype",
    "block-size",
    "max-num-batched-tokens",
    "compilation-config",
    "enable-prefix-caching",
    "max-cudagraph-capture-size",
    "trust-remote-code",
)
CHECK = report_data.check(serve_options=KNOWN, warnings=("Ray cannot be imported: no ray",))
GPUS = HARDWARE.model_copy(update={"accelerator": "cuda", "gpus": tuple(Gpu(name="NVIDIA H200", memory_mib=m) for m in (143771, 100000))})
CLUSTER = Site(scheduler="slurm", variables={"NCCL_NET": "IB", "OMP_NUM_THREADS": 4}, modules="brics/nccl", interface="hsn*")


def point(repetition=1, **changes) -> LoadPoint:
    values = {"name": f"chat-c4-r{repetition}", "repetition": repetition, "seed": repetition, "requests": 32}
    values |= {"input_tokens": 64, "output_tokens": 32, "warmups": 3, "warmup_tokens": 32}
    return load(**(values | changes))
