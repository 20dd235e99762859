"""The facts of a deployment that can differ between two sides, and the list of those that do."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from servemark.compare.reference import Deployment, Reference
from servemark.measurement import key
from servemark.records import Difference, Plan
from servemark.report import formatting
from servemark.report.gather import RunRecords

Facts = Mapping[tuple[str, str], str]
"""Part and name -> value in words. A fact that is not set or not recorded is left out."""
COMPLETE = ("topology", "options", "variables")
"""Parts of which a reference states everything. Of the others, only what it states is compared."""
_PACKAGES = ("software", "installed files")
_GPU = ("GPU power limit, W", "GPU ECC", "GPU MIG mode")


def of_run(data: RunRecords, plan: Plan) -> Facts:
    """Return the facts of a deployment: its part of the ledger key, and the versions in its environment."""
    return {(part, name): words(value) for part, name, value in _facts(data, plan) if value is not None}


def _facts(data: RunRecords, plan: Plan) -> Iterator[tuple[str, str, Any]]:
    parts = plan.key_parts
    if manifest := data.manifests.get(plan.model):
        yield "model", "source", manifest.source
    if check := data.checks.get(plan.environment):
        yield from (("software", name, value) for name, value in (
            ("vLLM", check.vllm), ("torch", check.torch), ("CUDA", check.torch_cuda), ("Ray", check.ray), ("NCCL", check.nccl),
            ("FlashInfer", check.kernels.flashinfer if check.kernels else None), ("Python", check.python_version),
        ))  # fmt: skip
    yield (*_PACKAGES, str(parts.get("environment", plan.environment_digest))[:12])
    yield "software", "servemark", ", ".join(sorted({state.servemark for state in data.sources})) or None
    yield from (("hardware", name, value) for name, value in _hardware(key.hardware_part(data.machine, plan.topology.devices_per_node)))
    yield "hardware", "node", data.machine.host
    yield from (("topology", name, value) for name, value in plan.topology.model_dump().items())
    yield from (("options", name, value) for name, value in _given(parts.get("options", key.normalise_options(plan.options))))
    yield from (("variables", name, value) for name, value in _given(parts.get("variables", plan.variables)))
    yield "modules", "modules", " ".join(map(str, parts.get("modules") or ())) or None
    yield "network", "interface", parts.get("interface")
    yield from (("verdict", name, value) for name, value in _mapping(data.config.get("verdict")).items())


def _hardware(parts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    gpus = parts["gpus"]
    kinds = Counter(f"{gpu[0]}, {gpu[1]} MiB" for gpu in gpus)
    yield "GPUs", "; ".join(f"{count} x {kind}" for kind, count in kinds.items()) or None
    for at, name in enumerate(_GPU, 2):
        found = dict.fromkeys(words(gpu[at]) for gpu in gpus if gpu[at] is not None)
        yield name, ", ".join(found) or None
    yield from ((name.replace("_", " "), value) for name, value in parts.items() if name != "gpus" and value != [])


def of_reference(given: Reference, deployment: Deployment) -> Facts:
    """Return the facts that a reference states of one of its deployments."""
    facts = {("model", "source"): given.model}
    facts |= {("software", name): value for name, value in given.software.items()}
    facts |= {("hardware", name): value for name, value in given.hardware.items()}
    facts |= {("topology", name): words(value) for name, value in deployment.topology.record().model_dump().items()}
    facts |= {("options", name): words(value) for name, value in _given(key.normalise_options(deployment.options))}
    return facts | {("variables", name): words(value) for name, value in _given(deployment.variables)}


def _given(values: Any) -> Iterator[tuple[str, Any]]:
    """Yield options or variables without the text of secrets."""
    yield from formatting.plain(_mapping(values)).items()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def words(value: Any) -> str:
    """Return a value in words: lists without Python's brackets and quotes."""
    if isinstance(value, list | tuple):
        return ", ".join(map(words, value)) or "empty"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {words(item)}" for name, item in value.items()) or "empty"
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)


def apart(a: Facts, b: Facts, *, reference: bool = False) -> dict[tuple[str, str], tuple[str | None, str | None]]:
    """Return the facts that differ, with both values, in the order of the facts.

    Digests of the installed files are left out if a version differs, because they follow from it.

    Args:
        reference: one of the sides is a reference.
    """
    found = {}
    for fact in dict.fromkeys((*a, *b)):
        one, other = a.get(fact), b.get(fact)
        stated = not reference or fact[0] in COMPLETE or (one is not None and other is not None)
        if one != other and stated:
            found[fact] = (one, other)
    if any(part == "software" and (part, name) != _PACKAGES and name != "servemark" for part, name in found):
        found.pop(_PACKAGES, None)
    return found


def listed(pairs: Mapping[str, Mapping[tuple[str, str], tuple[str | None, str | None]]]) -> tuple[Difference, ...]:
    """Return the differences of all pairs, each once with the pairs that have it."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for pair, facts in pairs.items():
        for fact, values in facts.items():
            found.setdefault((*fact, *values), []).append(pair)
    order = {part: at for at, part in enumerate(_PARTS)}
    entries = sorted(found.items(), key=lambda entry: order.get(entry[0][0], len(order)))
    return tuple(
        Difference(part=part, name=name, a=a, b=b, pairs=() if len(names) == len(pairs) else tuple(names))
        for (part, name, a, b), names in entries
    )


_PARTS = ("model", "software", "hardware", "topology", "options", "variables", "modules", "network", "load", "verdict")
