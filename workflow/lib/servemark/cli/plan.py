"""``servemark plan``: how many GPUs hold a model, and which topologies are legal. Pure arithmetic: needs no GPU, Slurm or environment."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from servemark.cli import plan_text
from servemark.config.reserved import SERVE_OPTIONS, kebab, refusal
from servemark.errors import ConfigError, PlanRefused, ServemarkError
from servemark.planning import assumed, ranking
from servemark.planning.options import whole
from servemark.planning.plan_deployment import refused_options
from servemark.planning.ranking import Question, Ranking
from servemark.weights import shape
from servemark.weights.architecture import Architecture
from servemark.weights.shape import Shape

CACHE = Path("results/cache")
NO_NETWORK = ("hub_unreachable", "hub_offline")
KEYS = "KEY=VALUE,KEY=VALUE (docs/how-to/plan.md)."
LARGEST = {"gpus_per_node": 32, "nodes": ranking.MAX_NODES, "context": 100_000_000, "concurrency": 1_000_000}


@dataclass(frozen=True)
class Asked:
    """What the user asked, with the model's own length where no context is given."""

    model: str
    source: str | None
    question: Question
    nodes: int | None
    context: int


def plan(given: argparse.Namespace) -> None:
    """Print the ranking of topologies.

    Raises:
        ConfigError: a model, GPU or number cannot be used.
        PlanRefused: no topology on these nodes holds the model and the load, or may meet the targets.
    """
    asked = _asked(given)
    found = _ranked(asked.question, asked.nodes)
    name = _name(asked.model)
    same = _without_effect(asked, found, _options(given.option or []))
    if given.json:
        print(plan_text.as_json(found, name, asked.source, same))
    else:
        print(plan_text.table(found, name, asked.source), end="", flush=True)
        if same:
            print(
                f"no effect on this result: {', '.join(same)}. The estimate does not count these options, or they have their default value "
                "(docs/explanation/planning.md)."
            )
    if not found.fits:
        nodes = f"{found.nodes} node(s) of {given.gpus_per_node} GPUs"
        if found.missed:
            raise PlanRefused(
                f"No topology on {nodes} can meet the targets of --slo.",
                do="Relax the targets, or use faster GPUs, a shorter --context or a lower --concurrency.",
                reason="targets_out_of_reach",
            )
        raise PlanRefused(
            f"No topology on {nodes} holds the model with this load.",
            do="Use more nodes or larger GPUs, a shorter --context, a lower --concurrency, or an fp8 KV cache "
            "(--option kv-cache-dtype=fp8).",
            reason="does_not_fit",
        )


def _ranked(question: Question, nodes: int | None) -> Ranking:
    try:
        return ranking.rank(question, nodes) if nodes else ranking.fewest_nodes(question)
    except PlanRefused as error:  # an option that is no number
        raise ConfigError(error.what, do=error.do, reason=error.reason) from None


def _without_effect(asked: Asked, found: Ranking, options: dict[str, Any]) -> list[str]:
    """Return the options whose removal does not change the ranking."""
    given = asked.question.options
    without = {one: {name: value for name, value in given.items() if name != one} for one in options}
    return [one for one, others in without.items() if found.unchanged(replace(asked.question, options=others))]


def _asked(given: argparse.Namespace) -> Asked:
    for name, most in LARGEST.items():
        value = getattr(given, name)
        if value is not None and not 1 <= value <= most:
            raise ConfigError(f"--{kebab(name)} is {value}.", do=f"Give a number from 1 to {most:,}.", reason="bad_number")
    gpu, device = assumed.gpu(given.gpu)
    targets = _targets(given.slo)
    model, architecture = _model(given)
    own = _options(given.option or [])
    longest = _longest(own)
    context = given.context or longest or architecture.max_positions or 4096
    if longest is not None and longest < context:
        raise ConfigError(
            f"--option max-model-len={own['max-model-len']} is less than --context {context}: the server would refuse these requests.",
            do="Leave the option out: --context sets max-model-len. Or give the same or a smaller --context.",
            reason="too_long",
        )
    output = max(1, context // 2) if given.output_tokens is None else given.output_tokens
    if not 1 <= output < context:
        raise ConfigError(
            f"--output-tokens is {output} and --context is {context}; a request needs at least one token of both prompt and output.",
            do="Set --output-tokens to 1 or more, and --context to more than that.",
            reason="bad_number",
        )
    options = {"max-model-len": context, **own}
    question = Question(
        architecture,
        model.weight_bytes,
        assumed.node(gpu, given.gpus_per_node),
        assumed.environment(),
        (assumed.load(given.concurrency, context - output, output),),
        options,
        {},
        device,
        targets,
    )
    if targets and (why := question.no_bound):
        raise ConfigError(
            f"--slo needs a roofline bound, and {why}.",
            do="Leave --slo out, or state memory, bandwidth and arithmetic of the GPU: --gpu '24GiB,0.6TB/s,125TFLOP/s'.",
            reason="no_bound",
        )
    if unknown := refused_options(own, question.points, question.check):
        raise ConfigError(" ".join(unknown), do="Correct --option; it takes the options of `vllm serve`.", reason="unknown_option")
    return Asked(given.model, model.source, question, given.nodes, context)


def _model(given: argparse.Namespace) -> tuple[Shape, Architecture]:
    """Return the model's shape; a ConfigError names MODEL in place of config.json if the command line states the keys."""
    by_hand = shape.is_by_hand(given.model)
    try:
        model = shape.read(given.model, given.cache or CACHE)
        architecture = Architecture.from_config(model.config)
    except ServemarkError as error:
        if by_hand:
            what = error.what.replace("config.json", "MODEL")
            raise ConfigError(what, do=f"Correct MODEL. It takes the keys of config.json as {KEYS}", reason=error.reason) from None
        more = f" Without a network, give the shape: {KEYS}" if error.reason in NO_NETWORK else ""
        raise ConfigError(error.what, look=error.look, do=f"{error.do}{more}", reason=error.reason) from None
    if architecture.unknown:
        named, look = ("MODEL", None) if by_hand else (given.model, "config.json of the model")
        raise ConfigError(
            f"The memory of {named} cannot be calculated ({architecture.unknown.replace('config.json', named)}).",
            look=look,
            do="docs/explanation/planning.md lists what a shape must state.",
            reason="architecture_unknown",
        )
    return model, architecture


def _longest(options: dict[str, Any]) -> int | None:
    """Return the max-model-len of the options; None if it is not given, or vLLM chooses it."""
    most = LARGEST["context"]
    try:
        found = whole(options, "max-model-len")
    except PlanRefused:
        found = 0
    if found is not None and not 1 <= found <= most:
        what = f"--option max-model-len is {options['max-model-len']!r}, which is no whole number from 1 to {most:,}."
        raise ConfigError(what, do="Give such a number, or auto.", reason="bad_number")
    return found


def _targets(text: str | None) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in () if text is None else text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in ranking.TARGETS or not re.fullmatch(r"\d+(\.\d+)?", value) or float(value) == 0 or name in found:
            example = ",".join(f"{target}=N" for target in ranking.TARGETS)
            raise ConfigError(f"--slo {text!r} is wrong at {part.strip()!r}.", do=f"Write {example}, in milliseconds, each at most once.")
        found[name] = float(value)
    return found


def _options(given: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not re.fullmatch(r"[a-z][a-z0-9_.-]*", name) or (equals and not value):
            raise ConfigError(f"--option {text!r} is wrong.", do="Write --option NAME=VALUE, or NAME for a switch, as of `vllm serve`.")
        if why := refusal(kebab(name), SERVE_OPTIONS):
            raise ConfigError(f"--option {kebab(name)} cannot be used: {why}.", do="Leave it out.", reason="bad_option")
        if re.fullmatch(r"\d{16,}", value):
            raise ConfigError(f"--option {kebab(name)} has {len(value)} digits.", do="Give a smaller number.", reason="bad_option")
        if kebab(name) in found:
            raise ConfigError(f"--option {kebab(name)} is given twice.", do="Give it once.", reason="bad_option")
        found[kebab(name)] = {"true": True, "false": False}.get(value.lower(), value) if equals else True
    return found


def _name(model: str) -> str:
    """Return a name under ``models`` for what the user gave."""
    path = model.partition("@")[0].rstrip("/")
    parts = [part for part in re.split(r"[/:]", path.removesuffix("/config.json")) if part]
    text = "model" if "=" in model or not parts else parts[-1].removesuffix(".json")
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:40].strip("-.") or "model"
