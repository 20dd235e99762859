"""Find the deployments that may be compared: the same model, precision and load format."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from servemark.planning import precision
from servemark.records import Plan
from servemark.records.restarts import configured
from servemark.report.gather import RunRecords


class Identity(NamedTuple):
    """The model's digest, and the settings that decide what a server calculates (``planning.precision.arithmetic``), sorted."""

    model: str
    settings: tuple[tuple[str, str], ...]


def identities(data: RunRecords) -> dict[str, Identity]:
    """Return the identity of each planned deployment."""
    return {name: _identity(data, plan) for name, plan in data.plans.items()}


def _identity(data: RunRecords, plan: Plan) -> Identity:
    manifest = data.manifests.get(plan.model)
    settings = precision.arithmetic(plan.options, _variables(plan), manifest.config if manifest else {})
    return Identity(plan.model_digest, tuple(sorted(settings.items())))


def differences(data: RunRecords, names: Iterable[str]) -> dict[Identity, str]:
    """Return for each identity of these deployments the model and settings in which it differs from another; "" if there is only one."""
    found: dict[Identity, str] = {}
    for name in names:
        found.setdefault(_identity(data, data.plans[name]), data.plans[name].model)
    settings = {identity: dict(identity.settings) for identity in found}
    varying = [key for key in sorted({key for of in settings.values() for key in of}) if len({of.get(key) for of in settings.values()}) > 1]
    models = len({identity.model for identity in found}) > 1
    return {
        identity: ", ".join([f"model {model}"] * models + [f"{key} {settings[identity].get(key, 'not set')}" for key in varying])
        for identity, model in found.items()
    }


def rounded(data: RunRecords) -> dict[str, str]:
    """Return the deployments that calculate in fewer bits than their model was trained for, with the settings in words."""
    found = {}
    for name, plan in data.plans.items():
        manifest = data.manifests.get(plan.model)
        settings = manifest.config.get("quantization_config") if manifest else None
        method = str(settings.get("quant_method") or "") if isinstance(settings, Mapping) else ""
        if given := precision.fewer_bits(plan.options, _variables(plan), method):
            found[configured(name)] = "; ".join(f"{place}: {value}" for place, value in given.items())
    return found


def _variables(plan: Plan) -> dict[str, str]:
    return {**plan.inherited, **plan.variables}
