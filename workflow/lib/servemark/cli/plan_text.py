"""The output of ``servemark plan``: a table, JSON, and YAML for a configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from servemark.config.topology import AskedTopology
from servemark.planning import ranking
from servemark.planning.memory import DRIVER_RESERVE_GIB, overhead_gib
from servemark.planning.options import GIB, Server
from servemark.planning.ranking import Candidate, Ranking

ROWS = 12
"""Topologies in the terminal; JSON has all."""
SIZES = ("nodes", "tensor_parallel", "pipeline_parallel", "data_parallel", "replicas")
HEAD = ("", "nodes", "GPUs", "tp", "pp", "dp", "replicas", "weights", "left", "KV tokens", "requests", "tokens/s <", "TTFT >", "TPOT >", "")


def table(found: Ranking, name: str, source: str | None) -> str:
    """Return the ranking for the terminal."""
    question, load = found.question, found.question.heaviest
    gpus = question.hardware.gpus
    total = question.architecture.parameters().total
    lines = [
        f"{name}: {total / 1e9:.1f} billion parameters, {ranking.whole_weights(question) / GIB:.1f} GiB of weights",
        f"load: {load.concurrency} request(s) in flight, each of {load.prompts.input_tokens} + {load.prompts.output_tokens} tokens",
        f"node: {len(gpus)} x {gpus[0].name}, {gpus[0].memory_mib / 1024:.1f} GiB each",
        "",
        *_summary(found),
    ]
    if found.candidates:
        rows = [_row(number, one) for number, one in enumerate(found.candidates[:ROWS], 1)]
        lines += ["", *_aligned([HEAD, *rows])]
        if len(found.candidates) > ROWS:
            lines.append(f"and {len(found.candidates) - ROWS} more (--json prints all)")
        lines += [
            "",
            "weights, left: GiB on each GPU; left is for the KV cache. KV tokens: of all engines. requests: how many the cache holds.",
            "tokens/s <, TTFT >, TPOT >: bounds by the roofline (ms), which no server reaches; real servers are slower.",
        ]
        if question.no_bound:
            lines[-1] = f"There is no roofline bound: {question.no_bound}."
        first = found.candidates[0]
        lines += ["", *(f"advice on 1 ({code}): {text}" for code, text in first.advice.items())]
        lines += ["", "To use 1, paste into a configuration:", "", *snippet(first, name, source).splitlines()]
    return "\n".join(lines) + "\n"


def _summary(found: Ranking) -> Iterator[str]:
    if found.fits:
        first, targets = found.candidates[0].topology, " and may meet the targets" if found.question.targets else ""
        fewest = min(found.enough, key=lambda one: (one.world_size, one.nodes))
        whole, some = fewest.world_size == first.world_size, " without pipeline stages inside a node"
        yield f"{_size(first)}: the fewest that hold the model and the load{targets}{'' if whole else some}."
        if not whole:
            yield f"With pipeline stages inside a node, {_size(fewest)} suffice."
    elif found.missed:
        yield f"No topology on {found.nodes} node(s) can meet the targets; {len(found.missed)} topologies hold the model and the load."
    else:
        yield f"Nothing on {found.nodes} node(s) holds the model and the load."
    holds = min((one.topology.nodes for one in (*found.candidates, *found.missed)), default=0)
    if found.fits and holds < found.candidates[0].topology.nodes:
        yield f"`topology: auto` takes {holds} node(s): the fewest that hold the model. A higher load gets no more nodes."
    if fewer := found.not_fewer:
        topology, why = fewer
        less = all(topology.nodes < one.nodes for one in found.enough)
        size = f"{topology.nodes} node(s)" if less else f"{topology.world_size} GPU(s)"
        yield f"{size} do not suffice, at best with {words(topology)}: {why}"
    if room := _no_room(found):
        yield room
    if division := _division(found):
        yield division
    if found.missed and found.fits:
        yield f"{len(found.missed)} topologies hold the load but miss a target already by the bound."


def _size(topology: AskedTopology) -> str:
    return f"{topology.nodes} node(s), {topology.world_size} GPU(s)"


def _no_room(found: Ranking) -> str | None:
    """Return what a GPU of the best smaller topology lacks, in numbers."""
    fewer = found.not_fewer
    one = next((one for one in found.refused if fewer and one.topology == fewer[0]), None)
    if one is None or one.estimate.weights_gib is None or one.estimate.kv_cache_gib is None:
        return None
    request = (one.estimate.kv_bytes_per_token or 0) * one.estimate.max_model_len + one.estimate.state_bytes_per_request
    left, question = one.estimate.kv_cache_gib, found.question
    if question.hardware.accelerator != "cuda":
        return None
    other = overhead_gib(question.architecture, _server(found, one.topology))
    weights = one.estimate.weights_gib
    return (
        f"There, vLLM may use {weights + other + left:.1f} GiB of each GPU. Weights take {weights:.1f} GiB, "
        f"and activations, NCCL, CUDA context and CUDA graphs {other:.1f} GiB. {max(left, 0):.1f} GiB are left for the KV cache, and "
        f"one request of {one.estimate.max_model_len} tokens needs {request / GIB:.2f} GiB."
    )


def _division(found: Ranking) -> str | None:
    """Return why a division of sizes gives fewer nodes than needed; None if it does not."""
    nodes = ranking.by_division(found.question)
    needed = min((one.nodes for one in found.enough), default=found.nodes + 1)
    if nodes is None or nodes >= needed:
        return None
    weights, memory = ranking.whole_weights(found.question) / GIB, sum(gpu.memory_mib for gpu in found.question.hardware.gpus) / 1024
    server = _server(found, AskedTopology())
    return (
        f"Dividing the weights by the memory of a node's GPUs would give {nodes} node(s) "
        f"({weights:.1f} / {memory:.1f} GiB). That counts memory that vLLM does not get (it uses "
        f"{server.utilisation:.0%} of each GPU less {DRIVER_RESERVE_GIB:g} GiB of the driver), and leaves out activations, NCCL, CUDA "
        "graphs and the KV cache."
    )


def _server(found: Ranking, topology: AskedTopology) -> Server:
    question = found.question
    return Server.read(topology.record(), (), question.weight_bytes, question.options, question.variables, question.hardware)


def _row(number: int, one: Candidate) -> tuple[str, ...]:
    shape, estimate, least = one.topology, one.estimate, one.latencies
    engines = shape.replicas * shape.data_parallel
    of = one.question.heaviest.concurrency
    return (
        *(str(value) for value in (number, shape.nodes, shape.world_size, shape.tensor_parallel)),
        *(str(value) for value in (shape.pipeline_parallel, shape.data_parallel, shape.replicas)),
        f"{estimate.weights_gib:.1f}",
        f"{estimate.kv_cache_gib:.1f}",
        f"{(estimate.kv_cache_tokens or 0) * engines:,}",
        f"{one.held}/{of}",
        f"{one.bound.output_tokens_per_s:,.0f}" if one.bound else "-",
        f"{least.ttft_ms:.0f}" if least else "-",
        f"{least.tpot_ms:.1f}" if least else "-",
        ", ".join(one.advice),
    )


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [text.rjust(width) for text, width in zip(row[:-1], widths, strict=False)]
        yield "  ".join([*cells, row[-1]]).rstrip()


def words(topology: AskedTopology) -> str:
    """Return the sizes of a topology that are above 1, as in a configuration."""
    return ", ".join(f"{name} {value}" for name, value in sizes(topology).items()) or "one process"


def sizes(topology: AskedTopology) -> dict[str, int]:
    """Return the keys of a topology that differ from the default."""
    return {name: value for name in SIZES if (value := getattr(topology, name)) > 1}


def snippet(one: Candidate, name: str, source: str | None) -> str:
    """Return the YAML of a deployment; with its model where the source is known."""
    data: dict[str, Any] = {"models": {name: {"source": source}}} if source else {}
    deployment: dict[str, Any] = {"model": name, "environment": "cuda"}
    deployment |= {"topology": shape} if (shape := sizes(one.topology)) else {}
    data |= {"environments": {"cuda": {"lock": "auto"}}, "deployments": {name: deployment | {"options": dict(one.question.options)}}}
    text = str(yaml.safe_dump(data, sort_keys=False, default_flow_style=None))
    return text if source else f"# Under `models`, add your model with the name `{name}`.\n{text}"


def as_json(found: Ranking, name: str, source: str | None, same: Sequence[str]) -> str:
    """Return the whole ranking as JSON; ``same``: options whose removal does not change it."""
    fewer, first = found.not_fewer, found.candidates[0] if found.candidates else None
    data = {
        "fits": found.fits,
        "nodes": first.topology.nodes if first and found.fits else None,
        "gpus": first.topology.world_size if first and found.fits else None,
        "nodes_by_division": ranking.by_division(found.question),
        "not_fewer": {"topology": sizes(fewer[0]), "why": fewer[1]} if fewer else None,
        "no_bound": found.question.no_bound,
        "topologies": [_entry(one) for one in found.candidates],
        "miss_targets": [_entry(one) for one in found.missed],
        "refused": [{"topology": sizes(one.topology), "why": one.obstacle} for one in found.refused],
        "options_without_effect": list(same),
        "yaml": snippet(first, name, source) if first else None,
    }
    return json.dumps(data, indent=2)


def _entry(one: Candidate) -> dict[str, Any]:
    shape, least = one.topology, one.latencies
    return {
        "topology": sizes(shape),
        "gpus": shape.world_size,
        **one.estimate.model_dump(include={"weights_gib", "kv_cache_gib", "kv_cache_tokens", "max_model_len"}),
        "requests_held": one.held,
        "holds_load": one.holds_load,
        "bound_output_tokens_per_s": one.bound.output_tokens_per_s if one.bound else None,
        "bound_by": one.bound.limit if one.bound else None,
        "least_ttft_ms": least.ttft_ms if least else None,
        "least_tpot_ms": least.tpot_ms if least else None,
        "least_e2el_ms": least.e2el_ms if least else None,
        "advice": one.advice,
    }
