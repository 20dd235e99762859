"""What a ledger has measured of a model on GPUs of one kind, by topology: advice next to a chosen topology."""

import json
from pathlib import Path
from typing import Any

from servemark.measurement.ledger import RECORD
from servemark.records import Hardware

MOST = 6
"""Topologies that are named, those with the highest rate first."""
_SIZES = ("nodes", "tensor_parallel", "pipeline_parallel", "data_parallel", "replicas")


def sentences(ledger: Path, model_digest: str, hardware: Hardware) -> tuple[str, ...]:
    """Return a sentence for each measured topology with its highest rate of output tokens; entries that cannot be read are left out.

    Args:
        model_digest: only measurements of these weights count.
        hardware: only measurements on GPUs with these names count, on CPU with this CPU.
    """
    best: dict[str, tuple[float, str]] = {}
    for path in sorted(ledger.glob(f"??/*/{RECORD}")):
        try:
            text = path.read_text(encoding="utf-8")
            found = _read(json.loads(text), model_digest, hardware) if model_digest in text else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
            continue
        if found and found[1] > best.get(found[0], (0.0, ""))[0]:
            best[found[0]] = found[1:]
    ordered = sorted(best.items(), key=lambda item: -item[1][0])[:MOST]
    return tuple(
        f"Measured in the ledger: {topology} reached {rate:,.0f} output tokens/s with {load}." for topology, (rate, load) in ordered
    )


def _read(record: dict[str, Any], model_digest: str, hardware: Hardware) -> tuple[str, float, str] | None:
    """Return topology, rate and load of a measurement; None if it is of another model or hardware, or not VALID."""
    parts = record["key_parts"]["deployment"]
    theirs = {gpu[0] for gpu in parts["hardware"]["gpus"]} or {parts["hardware"]["cpu_model"]}
    own = {gpu.name for gpu in hardware.gpus} or {hardware.cpu_model}
    if parts["model"] != model_digest or theirs != own or record["verdict"] != "VALID":
        return None
    sizes = parts["topology"]
    topology = ", ".join(f"{name} {sizes[name]}" for name in _SIZES if sizes.get(name, 1) > 1) or "one process"
    load, prompts = record["load"], record["load"]["prompts"]
    words = f"concurrency {load['concurrency']}" if load["request_rate"] is None else f"{load['request_rate']:g} requests/s"
    lengths = f"{prompts['input_tokens']} + {prompts['output_tokens']} tokens"
    return topology, float(record["output_throughput"]), f"{words}, {lengths}"
