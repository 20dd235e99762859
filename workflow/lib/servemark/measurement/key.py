"""The ledger key: the sha256 of everything that decides a load point's results, and of nothing else.

* model: digest of the model's files that servers may read (``weights/manifest.py``)
* environment: digest of the installed files (``environments/installed.py``)
* topology: nodes, devices per node, tensor/pipeline/data parallel size, replicas, executor, place of the client; balancing and routing
  unless they have their default
* options: the server's options, as ``--name`` spells them (kebab case, without dashes in front), in any order
* variables: the server's environment variables, wherever a value comes from. The deployment's own take precedence over the cluster's, and
  these over inherited ones that decide results (``servemark.variables.passed_on``)
* In options and variables, the digest of a file's or folder's content stands for its path (``measurement/contents.py``)
* modules: what ``module load`` loads (the fabric's NCCL plugin, a compiler), in this order
* interface: the configured network between nodes if there is more than one node; else None
* hardware: see :func:`hardware_part`
* workload: the prompts (``Prompts.key_part``: dataset, lengths), requests, warm-ups, client options; the number of client processes if
  there are several, ``ask`` unless it is the endpoint, ``api`` unless it is completions, ramp-up and duration if there are any
* load (concurrency, request rate), repetition, seed

Never in the key: requests to a scheduler, ports, addresses, paths, job ids, host names, secrets, times, and the names of run, deployment
and workload.

Two spellings are normalised to one only if the server gets the same words either way: ``max_model_len`` and ``max-model-len``, the number
512 and the text "512". ``true`` (a bare flag) and ``"true"`` (an argument) stay different. A key that differs too often costs a
measurement; a key that differs too seldom shows a wrong number. So a variable or option is left out only if it is known to name a place.
One that selects code, a network or a table of tunings stays, even if its value looks like a path (see ``variables/table.py``).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from servemark.machine import gpu_topology
from servemark.records import Hardware, LoadPoint, Topology
from servemark.variables.table import in_key

FORMAT = 3
"""Form of new keys. Older forms differ in the content of the parts, not in how :func:`digest` puts them together."""
BUSY_CPUS = 2
"""Logical CPUs of a process that computes all the time: a core of two threads."""

PLACE_OPTIONS = frozenset({
    "api-key", "base-url", "data-parallel-address", "data-parallel-rank", "data-parallel-rpc-port",
    "data-parallel-start-rank", "data-parallel-supervisor-port", "download-dir", "grpc-port", "headless", "host",
    "label", "master-addr", "master-port", "metadata", "model", "node-rank", "port", "result-dir", "result-filename",
    "root-path", "served-model-name",
})  # fmt: skip
"""Options that name the place of a server, a client or its files, and nothing that decides results."""


def deployment_parts(
    *,
    model_digest: str,
    environment_digest: str,
    topology: Topology,
    options: Mapping[str, Any],
    variables: Mapping[str, Any],
    hardware: Hardware,
    modules: Sequence[str] = (),
    interface: str | None = None,
) -> dict[str, Any]:
    """Return the deployment's part of the key, stable in content and order.

    Args:
        options, variables: with contents for paths (:func:`servemark.measurement.contents.by_content`).
        hardware: one node's.

    Raises:
        ValueError: see :func:`normalise_options`.
    """
    # Defaults are left out: keys of measurements without these settings stay the same.
    first = {("balancing", "server"), ("routing", "round_robin")}
    return {
        "model": model_digest,
        "environment": environment_digest,
        "topology": {name: value for name, value in topology.model_dump().items() if (name, value) not in first},
        "options": normalise_options(options),
        "variables": {name: str(value) for name, value in sorted(variables.items()) if in_key(name)},
        "modules": list(modules),
        "interface": interface if topology.all_nodes > 1 else None,
        "hardware": hardware_part(hardware, topology.devices_per_node),
    }


def hardware_part(hardware: Hardware, devices: int) -> dict[str, Any]:
    """Return the properties of a node that decide a deployment's results; nodes of one kind have the same.

    * gpus: name, memory, power limit, ECC and MIG mode of each GPU in use, sorted. If the node has several kinds: of all visible ones,
      because the ones in use may be any of them. GPUs that are not in use do not count
    * gpu_links: how the GPUs in use are connected (``machine/gpu_topology.py``); None: not known, see there. nvlinks: active NVLinks of
      each, which a probe with one GPU sees too. Both are empty for one GPU
    * driver, kernel release, C library, model of the node (DMI), CPU model, architecture
    * cpu_count: logical CPUs that the servers may use, if they compute there or are short of them. Else the machine's: one more or less
      makes no difference to servers on GPUs

    Args:
        devices: devices in use on each node.
    """
    on_gpus = hardware.accelerator == "cuda"
    # On a node of GPUs: API server and client; a worker and at most one engine core for each device. vLLM's manual counts them in the same
    # way ("CPU Resources for GPU Deployments" in docs/configuration/optimization.md).
    enough = BUSY_CPUS * (2 + 2 * devices)
    counts_machine = on_gpus and hardware.cpu_count >= enough and hardware.cpus_online is not None
    return {
        "accelerator": hardware.accelerator,
        "gpus": _gpus(hardware, devices) if on_gpus else [],
        "gpu_links": gpu_topology.links(hardware, devices) if on_gpus else [],
        "nvlinks": sorted((gpu.nvlinks for gpu in hardware.gpus[:devices]), key=str) if on_gpus and devices > 1 else [],
        "driver": hardware.driver,
        "kernel": hardware.kernel,
        "glibc": hardware.glibc,
        "node_model": hardware.node_model,
        "cpu_model": hardware.cpu_model,
        "cpu_count": hardware.cpus_online if counts_machine else hardware.cpu_count,
        "architecture": hardware.architecture,
    }


def _gpus(hardware: Hardware, devices: int) -> list[list[Any]]:
    every = [[gpu.name, gpu.memory_mib, gpu.power_limit_w, gpu.ecc, gpu.mig] for gpu in hardware.gpus]
    one_kind = all(gpu == every[0] for gpu in every)
    return every[:devices] if one_kind else sorted(every, key=str)


def point_parts(load: LoadPoint) -> dict[str, Any]:
    """Return the load point's part of the ledger key."""
    own = {"requests": load.requests, "warmups": load.warmups, "options": load.client_options}
    workload = load.prompts.key_part() | own
    # Defaults are left out, as in `deployment_parts`.
    workload |= {} if load.warmup_tokens is None else {"warmup_tokens": load.warmup_tokens}
    workload |= {"clients": load.clients} if load.clients > 1 else {}
    workload |= {"ask": load.ask} if load.ask != "endpoint" else {}
    workload |= {"api": load.api} if load.api != "completions" else {}
    workload |= {name: value for name in ("ramp_up_s", "sending_s") if (value := getattr(load, name)) is not None}
    # A repetition of one start must not stand for that of another.
    workload |= {"restart": load.restart} if load.restart else {}
    return {
        "workload": dict(sorted(workload.items())),
        "load": {"concurrency": load.concurrency, "request_rate": load.request_rate and str(float(load.request_rate))},
        "repetition": load.repetition,
        "seed": load.seed,
    }


def digest(deployment: Mapping[str, Any], point: Mapping[str, Any], format: int = FORMAT) -> str:
    """Return the ledger key: sha256 (hex) of both parts as canonical JSON.

    Args:
        format: of the key; a record states it as ``key_format``.

    Raises:
        TypeError, ValueError: a part is not JSON, for example NaN.
    """
    parts = {"format": format, "deployment": deployment, "point": point}
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def normalise_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options in kebab case, sorted, without ``PLACE_OPTIONS``.

    Raises:
        ValueError: two spellings of an option have different values.
    """
    result: dict[str, Any] = {}
    for spelling, value in options.items():
        name = spelling.lstrip("-").replace("_", "-")
        if name in PLACE_OPTIONS:
            continue
        word = _word(value)
        if name in result and result[name] != word:
            raise ValueError(f"option {name} is given twice, with different values")
        result[name] = word
    return dict(sorted(result.items()))


def _word(value: Any) -> Any:
    """Return a value as a command line has it; flags, lists and JSON objects keep their shape."""
    if value is None or isinstance(value, bool | Mapping):
        return value
    if isinstance(value, list | tuple):
        return [_word(item) for item in value]
    return str(value)
