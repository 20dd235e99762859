"""RO-Crate 1.1 metadata of an archive (``ro-crate-metadata.json``), by the profile Process Run Crate 0.5.

Made while the archive is sealed, from the run's records alone. Clock, host and user of that moment have no part in it, so the same
results give the same bytes.

Process and not Workflow Run Crate: that one asks for the workflow itself as the crate's main entity. An archive holds results, and
the commit of the workflow.
https://w3id.org/ro/crate/1.1, https://w3id.org/ro/wfrun/process/0.5
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import yaml

from servemark import __version__
from servemark.archive.seal import MANIFEST, Digest, manifest_size
from servemark.errors import ServemarkError
from servemark.machine import git_state
from servemark.records import EnvironmentCheck, Measurement, Plan
from servemark.report import gather
from servemark.report.gather import RunRecords

CRATE = "ro-crate-metadata.json"
FORMAT = 2
"""Of the archive, stated as the crate's ``schemaVersion``. 1, not stated: also holds run.json, and report.html has no block of data."""
SPECIFICATION = "https://w3id.org/ro/crate/1.1"
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
LICENSE = "The run states no licence of these results: ask who gave you this archive before you publish or reuse what is in it."
SERVEMARK = "#servemark"
_LICENSE = "#licence"
_STATUS = "http://schema.org/{}ActionStatus"
_SOFTWARE = {
    "python": ("CPython", "https://www.python.org"),
    "vllm": ("vLLM", "https://github.com/vllm-project/vllm"),
    "torch": ("PyTorch", "https://pytorch.org"),
    "ray": ("Ray", "https://github.com/ray-project/ray"),
}
_RESULTS = ("measurements.csv", "measurements.parquet", "report.html")


def describe(folder: Path, digests: Mapping[str, Digest]) -> dict[str, bytes]:
    """Return the metadata as a file of a run's archive; ``digests`` are of every other file but the manifest.

    Raises:
        ServemarkError: a record is missing or cannot be read.
    """
    sizes = {name: digest.size for name, digest in digests.items()}
    sizes[MANIFEST] = manifest_size((*digests, CRATE))
    document = crate(gather.read(folder, strict=True), sizes)
    return {CRATE: (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()}


def crate(found: RunRecords, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the JSON-LD document of a complete run; ``sizes`` are the bytes of every other file of the archive.

    Raises:
        ServemarkError: a record states a time that is none.
    """
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
            {"@id": _LICENSE, "@type": "CreativeWork", "name": "No licence is stated", "description": LICENSE},
            {"@id": PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"},
            {
                "@id": SERVEMARK,
                "@type": "SoftwareApplication",
                "name": "servemark",
                "description": f"Workflow that ran and recorded everything here; sources {git_state.words(found.sources)}",
                "softwareVersion": __version__,
            },
            *(entity for check in found.checks.values() for entity in _software(check)),
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
    """Return references to the files that the archive holds, each once."""
    return [_reference(quote(name)) for name in dict.fromkeys(wanted) if name in names]


def _counts(asked: int, records: Sequence[Measurement]) -> str:
    counted = Counter(record.verdict for record in records)
    told = [f"{counted[verdict]} {verdict}" for verdict in ("VALID", "SUSPECT", "INVALID") if counted[verdict]]
    return f"{asked} load points: {', '.join(told) or 'none measured'}"


def _summary(found: RunRecords) -> str:
    models = ", ".join(
        f"{model.name} ({model.source}{', random weights' if model.load_format == 'dummy' else ''})" for model in found.manifests.values()
    )
    versions = ", ".join(sorted({f"vLLM {check.vllm}" for check in found.checks.values()}))
    gpus = ", ".join(dict.fromkeys(f"{gpu.name}, {gpu.memory_mib} MiB" for gpu in found.machine.gpus))
    return (
        f"Measured deployments {', '.join(found.plans)} of {models}, on {versions or 'an unnamed vLLM'}, "
        f"{gpus or found.machine.cpu_model}; {_counts(_asked(found), found.measurements)}. "
        "Holds per-request results, records, logs, table and report."
    )


def _asked(found: RunRecords) -> int:
    return sum(len(plan.points) for plan in found.plans.values())


def _software(check: EnvironmentCheck) -> Iterator[dict[str, Any]]:
    """Yield vLLM of an environment, and what it requires."""
    stated = {"python": check.python_version, "vllm": check.vllm, "torch": check.torch, "ray": check.ray}
    others = [_reference(f"#{name}-{check.name}") for name, version in stated.items() if version and name != "vllm"]
    for name, version in stated.items():
        if version:
            known, url = _SOFTWARE[name]
            entity = {"@id": f"#{name}-{check.name}", "@type": "SoftwareApplication", "name": known, "url": url}
            yield {**entity, "softwareVersion": version, **({"softwareRequirements": others} if name == "vllm" else {})}


def _status(asked: int, records: Sequence[Measurement], error: str | None = None) -> dict[str, str]:
    """Return Completed when every load point has an accepted measurement, else Failed and why."""
    without = asked - sum(record.verdict != "INVALID" for record in records)
    if not without:
        return {"actionStatus": _STATUS.format("Completed")}
    text = f"{without} of {asked} load points gave no accepted measurement"
    return {"actionStatus": _STATUS.format("Failed"), "error": f"{text}: {error}" if error else text}


def _run_action(found: RunRecords, names: Collection[str], times: Sequence[str]) -> dict[str, Any]:
    inputs = ["config.json", *(f"models/{name}/manifest.json" for name in found.manifests)]
    inputs += [f"envs/{made.lock}.lock" for made in found.environments.values()]
    return {
        "@id": "#run",
        "@type": "CreateAction",
        "name": f"Run {found.run}",
        "description": _counts(_asked(found), found.measurements),
        "instrument": _reference(SERVEMARK),
        "object": _files(inputs, names),
        "result": _files(_RESULTS, names),
        **{"startTime": times[0], "endTime": times[-1]},
        **_status(_asked(found), found.measurements),
    }


def _deployment_action(found: RunRecords, plan: Plan, names: Collection[str]) -> dict[str, Any]:
    place = f"deployments/{plan.deployment}"
    records = [record for record in found.measurements if record.deployment == plan.deployment]
    attempts = [item for item in found.attempts if item.deployment == plan.deployment]
    starts, ends = _times(item.started_at for item in attempts), _times(item.ended_at for item in attempts)
    stopped = found.stopped.get(plan.deployment)
    commands = [shlex.join(process.argv) for process in stopped.daemons] if stopped else []
    failures = [f"{item.failure.stage}: {item.failure.reason}" for item in attempts if item.failure]
    return {
        "@id": f"#deployment-{plan.deployment}",
        "@type": "CreateAction",
        "name": f"Measure deployment {plan.deployment}",
        "description": "\n".join([_counts(len(plan.points), records), *commands]),
        "instrument": _reference(f"#vllm-{plan.environment}" if plan.environment in found.checks else SERVEMARK),
        "object": _files(["config.json", f"{place}/plan.json", f"models/{plan.model}/manifest.json"], names),
        "result": _files([name for name in names if name.startswith(f"{place}/points/")] or [f"{place}/plan.json"], names),
        **({"startTime": starts[0]} if starts else {}),
        **({"endTime": ends[-1]} if ends else {}),
        **_status(len(plan.points), records, failures[-1] if failures else None),
    }


def _times(texts: Iterable[str | None]) -> list[str]:
    """Return the times, earliest first, in UTC and one form, which RO-Crate's validator asks for.

    Raises:
        ServemarkError: a text is no time.
    """
    try:
        moments = [datetime.fromisoformat(text) for text in texts if text]
    except ValueError as error:
        raise ServemarkError(f"A record states a time that is none: {error}", reason="record_broken") from None
    aware = (moment if moment.tzinfo else moment.replace(tzinfo=UTC) for moment in moments)
    return [moment.astimezone(UTC).isoformat(timespec="milliseconds") for moment in sorted(aware)]


@cache
def _kinds() -> tuple[dict[str, str], list[tuple[re.Pattern[str], str]]]:
    kinds = yaml.safe_load((Path(__file__).parent / "kinds.yaml").read_text(encoding="utf-8"))
    return kinds["media_types"], [(re.compile(pattern), text) for pattern, text in kinds["sentences"].items()]


def media_type(name: str) -> str:
    """Return the file's encodingFormat, by its name."""
    return _kinds()[0].get(PurePosixPath(name).suffix, "text/plain")


def sentence(name: str) -> str:
    """Return what the file is."""
    return next((text for pattern, text in _kinds()[1] if pattern.fullmatch(name)), "File of the run")
