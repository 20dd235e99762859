"""Check what was measured: ledger keys follow from their parts, and the parts from plan, hardware, model and environment."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from servemark.measurement import contents, key
from servemark.records import Environment, EnvironmentCheck, Hardware, Manifest, Measurement, Plan, PlannedPoint
from servemark.report.gather import RunRecords, locate
from servemark.verification.facts import Finding, Stated, differ, guarded, words
from servemark.weights import manifest as manifests
from servemark.weights.architecture import Architecture
from servemark.weights.files_read import is_document

_MOST_BYTES = 8
"""Bytes of the largest element of a safetensors file (F64, I64, U64)."""
_PINNED = ("vllm", "torch", "ray")


def check(found: RunRecords, *, older: bool) -> Iterator[Finding]:
    """Yield every contradiction between keys, their parts and the records of their parts.

    Args:
        older: another version sealed the archive. Then compare only the parts of a key that both versions have.
    """
    for name, manifest in found.manifests.items():
        yield from guarded(f"models/{name}/manifest.json", _manifest(name, manifest, older))
    for name in found.checks:
        yield from guarded(f"environments/{name}", _environment(found, name))
    for name, plan in found.plans.items():
        yield from guarded(f"deployments/{name}/plan.json", _plan(found, plan, older))
    for record, files in zip(found.measurements, found.points, strict=True):
        plan, point = found.plans[record.deployment], files.point
        what = f"{record.deployment} {record.load.name}"
        yield from guarded(what, _record(record, plan, point, older))


def follows(stated: str, deployment: Any, point: Any) -> bool:
    """Return whether a ledger key is that of both parts, by any format of keys. A key's format is part of what it hashes."""
    return any(stated == key.digest(deployment, point, number) for number in range(1, key.FORMAT + 1))


def _manifest(name: str, manifest: Manifest, older: bool) -> Iterator[str]:
    file = f"models/{name}/manifest.json"
    size, own = sum(one.size for one in manifest.files), Stated(f"the list of files in {file}", manifests.digest(manifest.files))
    if manifest.digest not in _by_earlier_rules(manifest):
        yield from differ(f"model {name}: digest", Stated(file, manifest.digest), own)
    yield from differ(f"model {name}: bytes", Stated(file, manifest.bytes), Stated(own.file, size))
    if manifest.load_format == "dummy":
        if older:
            return  # Another version may count the parameters of a shape in another way.
        shape = Architecture.from_config(manifest.config).total
        yield from differ(f"model {name}: parameters", Stated(file, manifest.parameters), Stated("the model's config", shape))
        return
    # Names of the same file twice, in folders such as `original`, add to the bytes and not to the tensors.
    tensors, files = manifest.weight_bytes or 0, sum(one.size for one in manifest.files if one.path.endswith(".safetensors"))
    if not tensors <= files:
        yield f"model {name}: {file} states {tensors} bytes of tensors, and its safetensors files have {files}."
    # An element has 1 to 8 bytes, or half a byte (F4).
    if manifest.parameters is None or not tensors / _MOST_BYTES <= manifest.parameters <= 2 * tensors:
        yield f"model {name}: {file} states {manifest.parameters} parameters, which do not fit {tensors} bytes of tensors."


def _by_earlier_rules(manifest: Manifest) -> set[str]:
    """Return a model's digests as earlier versions formed them: of all its files, and of all but documents."""
    lines = sorted((f"{one.path} {one.size} {one.sha256}\n", one.path) for one in manifest.files)
    every, others = "".join(line for line, _ in lines), "".join(line for line, path in lines if not is_document(path))
    return {hashlib.sha256(text.encode()).hexdigest() for text in (every, others)}


def _environment(found: RunRecords, name: str) -> Iterator[str]:
    check, made = found.checks[name], found.environments.get(name)
    if made is None:
        return
    file = f"environments/{name}/environment.json"
    yield from differ(f"environment {name}: digest", Stated(file, made.digest), Stated(f"environments/{name}/check.json", check.digest))
    # A user's own lock file has the environment's name in the archive (archive/contents.py).
    for lock in (f"envs/{made.lock}.lock", f"envs/own-{name}.lock") if made.lock else ():
        if locate(found.folder, lock):
            yield from _locked(found, made, check, lock)


def _locked(found: RunRecords, made: Environment, check: EnvironmentCheck, file: str) -> Iterator[str]:
    """Compare the versions in an environment that servemark built with its lock file in the archive."""
    if made.installed != made.digest:
        return  # Packages were changed or added after the build.
    text = (found.folder / file).read_text(encoding="utf-8", errors="replace")
    for package in _PINNED:
        pins = {_public(pin) for pin in re.findall(rf"^{package}==([^\s;\\]+)", text, re.MULTILINE)}
        stated = getattr(check, package)
        if pins and stated and _public(stated) not in pins:
            place = f"environments/{made.name}/check.json"
            yield f"environment {made.name}: {package}: {place} states {stated}, {file} pins {words(sorted(pins))}."


def _public(version: str) -> str:
    """Return a version without its local part: ``2.13.0`` for ``2.13.0+cpu``."""
    return version.partition("+")[0]


def _plan(found: RunRecords, plan: Plan, older: bool) -> Iterator[str]:
    name, file = plan.deployment, f"deployments/{plan.deployment}/plan.json"
    if manifest := found.manifests.get(plan.model):
        other = Stated(f"models/{plan.model}/manifest.json", manifest.digest)
        yield from differ(f"{name}: model_digest", Stated(file, plan.model_digest), other)
    if made := found.checks.get(plan.environment):
        other = Stated(f"environments/{plan.environment}/check.json", made.digest)
        yield from differ(f"{name}: environment_digest", Stated(file, plan.environment_digest), other)
    if found.hardware:
        parts = key.deployment_parts(
            model_digest=plan.model_digest,
            environment_digest=plan.environment_digest,
            topology=plan.topology,
            options=contents.by_content(plan.options, plan.contents),
            variables=contents.by_content(plan.inherited | plan.variables, plan.contents),
            hardware=found.hardware,
            modules=plan.modules,
            interface=(found.config.get("cluster") or {}).get("interface"),
        )
        if plan.key_format < key.FORMAT:
            parts["hardware"] = _hardware_of_format_2(found.hardware)
        sources = {"hardware": "hardware.json", "interface": "config.json"}
        for part in dict.fromkeys((*parts, *(() if older else plan.key_parts))):
            if part in plan.key_parts or not older:
                mine = Stated(sources.get(part, f"another field of {file}"), parts.get(part))
                yield from differ(f"{name}: key_parts: {part}", Stated(file, plan.key_parts.get(part)), mine, common=older)
    for point in plan.points if not older else ():
        if not follows(point.key, plan.key_parts, key.point_parts(point.load)):
            yield f"{name} {point.load.name}: key: {file} states {point.key}, which its key_parts and load do not give."


def _hardware_of_format_2(hardware: Hardware) -> dict[str, Any]:
    """Return the hardware in ledger keys of format 1 and 2."""
    same = ("accelerator", "driver", "cpu_model", "cpu_count", "architecture")
    gpus = sorted([gpu.name, gpu.memory_mib] for gpu in hardware.gpus)
    return {name: getattr(hardware, name) for name in same} | {"gpus": gpus}


def _record(record: Measurement, plan: Plan, planned: PlannedPoint, older: bool) -> Iterator[str]:
    what, file = f"{record.deployment} {record.load.name}", f"deployments/{record.deployment}/points/{record.load.name}.json"
    parts = {part: record.key_parts.get(part) for part in ("deployment", "point")}
    for part, value in parts.items():
        if not isinstance(value, Mapping):
            yield f"{what}: key_parts: {file} states no {part}."
            return
    if not follows(record.key, parts["deployment"], parts["point"]):
        yield f"{what}: key: {file} states {record.key}, which its key_parts do not give."
    plans = f"deployments/{record.deployment}/plan.json"
    yield from differ(f"{what}: key_format", Stated(file, record.key_format), Stated(plans, plan.key_format))
    yield from differ(f"{what}: key", Stated(file, record.key), Stated(plans, planned.key))
    yield from differ(f"{what}: key_parts", Stated(file, parts["deployment"]), Stated(plans, plan.key_parts), common=older)
    ours = key.point_parts(planned.load)
    yield from differ(f"{what}: key_parts", Stated(file, parts["point"]), Stated(f"the load in {plans}", ours), common=older)
    yield from differ(f"{what}: load", Stated(file, record.load.model_dump()), Stated(plans, planned.load.model_dump()))
