"""Write ``ro-crate-metadata.json`` (RO-Crate 1.1, profile Process Run Crate 0.5) from the records of a run.

A Workflow Run Crate would need the workflow itself as its main entity. An archive holds results and the workflow's commit.
https://w3id.org/ro/crate/1.1, https://w3id.org/ro/wfrun/process/0.5
"""

import json
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from servemark import __version__
from servemark.archive.seal import MANIFEST, Digest, manifest_size
from servemark.errors import ServemarkError
from servemark.files.yaml_data import read_yaml
from servemark.machine import git_state
from servemark.records import EnvironmentCheck, Measurement, Plan
from servemark.report import gather
from servemark.report.gather import CRATE, RunRecords

FORMAT = 6
"""The archive's format, which the crate states as ``schemaVersion``.

Format 1 has run.json and no data block in report.html. Measurements of format 2 lack steady state, thresholds and servers' counters, and
were judged without the reasons that have ``since: 3`` in measurement/reasons.yaml. The data block of format 2 has no intervals. Per-request
results of format 3 contain the outputs' texts, and its data block has no share of prefix cache hits. Measurements of format 4 were judged
without `requests_overtaken`. In format 5, a SUSPECT repetition could make the VALID ones of its load SUSPECT (`repetitions_differ`).
The record of a search in format 5 states verdicts without the comparison of its trials. VALID and SUSPECT trials of a load had one limit.
"""
SPECIFICATION = "https://w3id.org/ro/crate/1.1"
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
LICENSE = "The run states no licence for these results. Ask the sender of this archive before you publish or reuse them."
SERVEMARK = "#servemark"
_LICENSE = "#licence"
_RESULTS = ("measurements.csv", "measurements.parquet", "report.html")


def describe(folder: Path, digests: Mapping[str, Digest]) -> dict[str, bytes]:
    """Return the metadata as a file of the archive. ``digests`` covers every other file except the manifest.

    Raises:
        ServemarkError: a record is missing, damaged, or states a time that is not one.
    """
    sizes = {name: digest.size for name, digest in digests.items()}
    sizes[MANIFEST] = manifest_size((*digests, CRATE))
    document = crate(gather.read(folder, strict=True).collected(), sizes)
    return {CRATE: (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()}


def crate(found: RunRecords, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the JSON-LD document of a complete run. ``sizes`` holds the bytes of every other file of the archive."""
    names = dict.fromkeys(sorted(sizes, key=str.encode))
    attempts = [text for item in found.attempts for text in (item.started_at, item.ended_at)]
    times = _times([found.machine.probed_at, *(item.started_at for item in found.measurements), *attempts])
    actions = [_run_action(found, names, times), *(_deployment_action(found, plan, names) for plan in found.plans.values())]
    return {
        "@context": f"{SPECIFICATION}/context",
        "@graph": [
            {"@id": CRATE, "@type": "CreativeWork", "conformsTo": _reference(SPECIFICATION), "about": _reference("./")},
            {
                "@id": "./",
                "@type": "Dataset",
                "name": f"Benchmark run {found.run}, measured with servemark",
                "description": _summary(found),
                "schemaVersion": str(FORMAT),
                "datePublished": times[-1],
                "license": _reference(_LICENSE),
                "conformsTo": _reference(PROFILE),
                "hasPart": [_reference(quote(name)) for name in names],
                "mentions": [_reference(action["@id"]) for action in actions],
            },
            {"@id": _LICENSE, "@type": "CreativeWork", "name": "No licence stated", "description": LICENSE},
            {"@id": PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"},
            {
                "@id": SERVEMARK,
                "@type": "SoftwareApplication",
                "name": "servemark",
                "description": f"Workflow that measured and recorded these results; sources {git_state.words(found.sources)}",
                "softwareVersion": __version__,
            },
            *map(_software, found.checks.values()),
            *actions,
            *(
                {
                    "@id": quote(name),
                    "@type": "File",
                    "name": name,
                    "description": sentence(name),
                    "encodingFormat": media_type(name),
                    "contentSize": str(sizes[name]),
                }
                for name in names
            ),
        ],
    }


def _reference(identifier: str) -> dict[str, str]:
    return {"@id": identifier}


def _files(wanted: Iterable[str], names: Collection[str]) -> list[dict[str, str]]:
    """Return one reference to each wanted file that the archive holds."""
    return [_reference(quote(name)) for name in dict.fromkeys(wanted) if name in names]


def _counts(asked: int, records: Sequence[Measurement]) -> str:
    counted = Counter(record.verdict for record in records)
    parts = [f"{counted[verdict]} {verdict}" for verdict in ("VALID", "SUSPECT", "INVALID") if counted[verdict]]
    return f"{asked} load points: {', '.join(parts) or 'none measured'}"


def _summary(found: RunRecords) -> str:
    models = ", ".join(
        f"{model.name} ({model.source}{', random weights' if model.load_format == 'dummy' else ''})" for model in found.manifests.values()
    )
    versions = ", ".join(sorted({f"vLLM {check.vllm}" for check in found.checks.values()}))
    gpus = ", ".join(dict.fromkeys(f"{gpu.name}, {gpu.memory_mib} MiB" for gpu in found.machine.gpus))
    return (
        f"Measured deployments {', '.join(found.plans)} of {models}, on {versions or 'an unknown vLLM'}, "
        f"{gpus or found.machine.cpu_model}; {_counts(_asked(found), found.measurements)}. "
        "Contains per-request results, records, logs, table and report."
    )


def _asked(found: RunRecords) -> int:
    return sum(len(plan.points) for plan in found.plans.values())


def _software(check: EnvironmentCheck) -> dict[str, Any]:
    requirements = {"Python": check.python_version, "torch": check.torch, "Ray": check.ray}
    return {
        "@id": f"#vllm-{check.name}",
        "@type": "SoftwareApplication",
        "name": "vLLM",
        "url": "https://github.com/vllm-project/vllm",
        "softwareVersion": check.vllm,
        "softwareRequirements": ", ".join(f"{name} {version}" for name, version in requirements.items() if version),
    }


def _run_action(found: RunRecords, names: Collection[str], times: Sequence[str]) -> dict[str, Any]:
    inputs = ["config.json", *(f"models/{name}/manifest.json" for name in found.manifests)]
    inputs += [f"envs/{lock}.lock" for made in found.environments.values() for lock in (made.lock, f"own-{made.name}")]
    return {
        **_action("run", f"Run {found.run}", SERVEMARK, _asked(found), found.measurements),
        **{"object": _files(inputs, names), "result": _files(_RESULTS, names), "startTime": times[0], "endTime": times[-1]},
    }


def _deployment_action(found: RunRecords, plan: Plan, names: Collection[str]) -> dict[str, Any]:
    place = f"deployments/{plan.deployment}"
    instrument = f"#vllm-{plan.environment}" if plan.environment in found.checks else SERVEMARK
    records = [record for record in found.measurements if record.deployment == plan.deployment]
    attempts = [item for item in found.attempts if item.deployment == plan.deployment]
    starts, ends = _times(item.started_at for item in attempts), _times(item.ended_at for item in attempts)
    stopped = found.stopped.get(plan.deployment)
    failures = [f"{item.failure.stage}: {item.failure.reason}" for item in attempts if item.failure]
    action = _action(f"deployment-{plan.deployment}", f"Measure deployment {plan.deployment}", instrument, len(plan.points), records)
    action["description"] = "\n".join(
        [action["description"], *(shlex.join(daemon.argv) for daemon in (stopped.daemons if stopped else ()))]
    )
    action["object"] = _files(["config.json", f"{place}/plan.json", f"models/{plan.model}/manifest.json"], names)
    made = (f"{place}/points/", f"{place}/searches/")
    action["result"] = _files([name for name in names if name.startswith(made)] or [f"{place}/plan.json"], names)
    action |= ({"startTime": starts[0]} if starts else {}) | ({"endTime": ends[-1]} if ends else {})
    if "error" in action and failures:
        action["error"] += f": {failures[-1]}"
    return action


def _action(identifier: str, name: str, instrument: str, asked: int, records: Sequence[Measurement]) -> dict[str, Any]:
    """Return the CreateAction of ``asked`` load points: Completed if each has an accepted measurement, otherwise Failed."""
    action = {"@id": f"#{identifier}", "@type": "CreateAction", "name": name, "description": _counts(asked, records)}
    without = asked - sum(record.verdict != "INVALID" for record in records)
    status = {"actionStatus": f"http://schema.org/{'Failed' if without else 'Completed'}ActionStatus"}
    if without:
        status["error"] = f"{without} of {asked} load points have no accepted measurement"
    return {**action, "instrument": _reference(instrument), **status}


def _times(texts: Iterable[str | None]) -> list[str]:
    """Return the times in UTC, earliest first, in the one form that RO-Crate's validator accepts."""
    try:
        moments = [datetime.fromisoformat(text) for text in texts if text]
    except ValueError as error:
        raise ServemarkError(f"A record states a time that cannot be read: {error}", reason="record_broken") from None
    aware = (moment if moment.tzinfo else moment.replace(tzinfo=UTC) for moment in moments)
    return [moment.astimezone(UTC).isoformat(timespec="milliseconds") for moment in sorted(aware)]


@cache
def _kinds() -> tuple[dict[str, str], list[tuple[re.Pattern[str], str]]]:
    kinds = read_yaml(Path(__file__).with_name("kinds.yaml"))
    return kinds["media_types"], [(re.compile(pattern), text) for pattern, text in kinds["sentences"].items()]


def media_type(name: str) -> str:
    """Return the encodingFormat for a file name."""
    return _kinds()[0].get(PurePosixPath(name).suffix, "text/plain")


def sentence(name: str) -> str:
    """Return the description for a file name."""
    return next((text for pattern, text in _kinds()[1] if pattern.fullmatch(name)), "File of the run")
