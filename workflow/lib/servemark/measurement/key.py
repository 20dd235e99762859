"""The ledger's key: a normalised list of everything that decides a load point's figures, and nothing else.

* model: the model's digest (every file's sha256)
* environment: the environment's digest (every installed package)
* topology: nodes, devices per node, tensor/pipeline/data parallel size, replicas, executor, place of the client; balancing and routing
  when they are not the first choice
* options: the server's options, as ``--name`` would spell them (kebab case, no dashes in front), in any order
* variables: the server's environment variables: the deployment's own over the cluster's over those of the shell that decide
  (``servemark.variables.inherited``), wherever a value comes from
* modules: what ``module load`` brings (the fabric's NCCL plugin, a compiler), in the order it is loaded
* interface: the network between nodes as configured, when there is more than one node; else None
* hardware: accelerator; GPU names and memory, sorted; driver; CPU model and logical count; architecture
* workload: what the prompts' kind states (``Prompts.key_part``: dataset, lengths), requests, warm-ups, client options; the number of client
  processes when there are several, and ``ask`` when it is not the endpoint
* load (concurrency, request rate), repetition, seed

Never in the key: what is asked of a scheduler, ports, addresses, places, job ids, host names, secrets, names of run,
deployment and workload, times.

Two spellings are made one only where the server gets the same words either way: ``max_model_len`` and
``max-model-len``, the number 512 and the text "512". ``true`` (a bare flag) and ``"true"`` (an argument) stay two: a
key that differs too often costs a measurement, one that differs too seldom shows a wrong number. For the same reason a
variable or option is left out only when it is known to name a place; one that selects code, a network or a table of
tunings stays, even when its value looks like a path (see ``variables/table.py``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from servemark.records import Hardware, LoadPoint, Topology
from servemark.variables.table import in_key

FORMAT = 2

PLACE_OPTIONS = frozenset({
    "api-key", "base-url", "data-parallel-address", "data-parallel-rank", "data-parallel-rpc-port",
    "data-parallel-start-rank", "data-parallel-supervisor-port", "download-dir", "grpc-port", "headless", "host",
    "label", "master-addr", "master-port", "metadata", "model", "node-rank", "port", "result-dir", "result-filename",
    "root-path", "served-model-name",
})  # fmt: skip
"""Options that say where or under which name a server, a client or its files live."""


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
    """Return the deployment's share of the key, stable in content and order. ``hardware``: one node's; ValueError: see options."""
    # Left out, so that keys from before there was a choice stay.
    first = {("balancing", "server"), ("routing", "round_robin")}
    return {
        "model": model_digest,
        "environment": environment_digest,
        "topology": {name: value for name, value in topology.model_dump().items() if (name, value) not in first},
        "options": normalise_options(options),
        "variables": {name: str(value) for name, value in sorted(variables.items()) if in_key(name)},
        "modules": list(modules),
        "interface": interface if topology.all_nodes > 1 else None,
        "hardware": hardware_part(hardware),
    }


def hardware_part(hardware: Hardware) -> dict[str, Any]:
    """Return what of the hardware decides figures: nodes that differ in it are not of one kind."""
    return {
        "accelerator": hardware.accelerator,
        "gpus": sorted([gpu.name, gpu.memory_mib] for gpu in hardware.gpus),
        "driver": hardware.driver,
        "cpu_model": hardware.cpu_model,
        "cpu_count": hardware.cpu_count,
        "architecture": hardware.architecture,
    }


def point_parts(load: LoadPoint) -> dict[str, Any]:
    """Return the load point's share of the ledger key."""
    own = {"requests": load.requests, "warmups": load.warmups, "options": load.client_options}
    workload = load.prompts.key_part() | own
    # Left out where they are the default, so that what was measured before there was a choice keeps its key.
    workload |= {} if load.warmup_tokens is None else {"warmup_tokens": load.warmup_tokens}
    workload |= {"clients": load.clients} if load.clients > 1 else {}
    workload |= {"ask": load.ask} if load.ask != "endpoint" else {}
    return {
        "workload": dict(sorted(workload.items())),
        "load": {"concurrency": load.concurrency, "request_rate": load.request_rate and str(float(load.request_rate))},
        "repetition": load.repetition,
        "seed": load.seed,
    }


def digest(deployment: Mapping[str, Any], point: Mapping[str, Any]) -> str:
    """Return the key: sha256 (hex) of both parts as canonical JSON; ValueError or TypeError if a part is not JSON (NaN included)."""
    parts = {"format": FORMAT, "deployment": deployment, "point": point}
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def normalise_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options in kebab case, sorted, without those that only name a place; ValueError: two spellings with different values."""
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
    """Return a value as the command line would carry it; flags, lists and JSON objects keep their shape."""
    if value is None or isinstance(value, bool | Mapping):
        return value
    if isinstance(value, list | tuple):
        return [_word(item) for item in value]
    return str(value)
