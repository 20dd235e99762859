"""RO-Crate 1.1 metadata of an archive, by the profile Process Run Crate 0.5.

Process and not Workflow Run Crate: that one asks for the workflow itself as the crate's main entity, and an archive holds
results, with the commit of the workflow in its run record.
https://w3id.org/ro/crate/1.1, https://w3id.org/ro/wfrun/process/0.5
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from servemark.archive import kinds
from servemark.records import Run
from servemark.records.run import RunDeployment, RunEnvironment

CRATE = "ro-crate-metadata.json"
SPECIFICATION = "https://w3id.org/ro/crate/1.1"
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
LICENSE = "The run states no licence of these results: ask who gave you this archive before you publish or reuse what is in it."
_RUN, _SERVEMARK, _LICENSE = "#run", "#servemark", "#licence"
_COMPLETED, _FAILED = "http://schema.org/CompletedActionStatus", "http://schema.org/FailedActionStatus"
_URLS = {
    "vllm": "https://github.com/vllm-project/vllm",
    "ray": "https://github.com/ray-project/ray",
    "torch": "https://pytorch.org",
    "python": "https://www.python.org",
}
_NAMES = {"vllm": "vLLM", "ray": "Ray", "torch": "PyTorch", "python": "CPython"}


def crate(run: Run, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The JSON-LD document.

    Args:
        sizes: every file of the archive but the document itself -> bytes.
    """
    names = sorted(sizes, key=str.encode)
    actions = [_run_action(run), *(_deployment_action(run, deployment, names) for deployment in run.deployments)]
    software = [entity for environment in run.environments for entity in _software(environment)]
    return {
        "@context": f"{SPECIFICATION}/context",
        "@graph": [
            {
                "@id": CRATE,
                "@type": "CreativeWork",
                "conformsTo": _reference(SPECIFICATION),
                "about": _reference("./"),
            },
            {
                "@id": "./",
                "@type": "Dataset",
                "name": f"Benchmark run {run.run}, measured with servemark",
                "description": _summary(run),
                "datePublished": run.measured_at or run.ended_at,
                "license": _reference(_LICENSE),
                "conformsTo": _reference(PROFILE),
                "hasPart": [_reference(_id(name)) for name in names],
                "mentions": [_reference(action["@id"]) for action in actions],
            },
            {"@id": _LICENSE, "@type": "CreativeWork", "name": "No licence is stated", "description": LICENSE},
            {"@id": PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"},
            {
                "@id": _SERVEMARK,
                "@type": "SoftwareApplication",
                "name": "servemark",
                "description": _sources(run),
                "softwareVersion": run.servemark,
            },
            *software,
            *actions,
            *(
                {
                    "@id": _id(name),
                    "@type": "File",
                    "name": name,
                    "description": kinds.sentence(name),
                    "encodingFormat": kinds.media_type(name),
                    "contentSize": str(sizes[name]),
                }
                for name in names
            ),
        ],
    }


def _id(name: str) -> str:
    return quote(name)


def _reference(identifier: str) -> dict[str, str]:
    return {"@id": identifier}


def _files(names: Iterable[str]) -> list[dict[str, str]]:
    return [_reference(_id(name)) for name in names]


def _counts(measured: Mapping[str, int], asked: int) -> str:
    return f"{asked} load points: " + (
        ", ".join(f"{count} {verdict}" for verdict, count in measured.items()) or "none measured"
    )


def _summary(run: Run) -> str:
    models = ", ".join(
        f"{model.name} ({model.source}{', random weights' if model.load_format == 'dummy' else ''})"
        for model in run.models
    )
    versions = ", ".join(sorted({f"vLLM {item.versions['vllm']}" for item in run.environments if item.versions}))
    hardware = ", ".join(dict.fromkeys(run.hardware.gpus)) or run.hardware.cpu_model
    return (
        f"Measured deployments {', '.join(item.name for item in run.deployments)} of {models}, on {versions or 'an unnamed vLLM'}, "
        f"{hardware}; {_counts(run.measured, run.asked)}. Holds per-request results, records, logs, table and report; "
        "run.json describes the run."
    )


def _sources(run: Run) -> str:
    states = [
        f"commit {state.commit}{' with changes' if state.dirty else ''}"
        if state.commit
        else f"commit unknown: {state.why}"
        for state in run.sources
    ]
    return f"Workflow that ran and recorded everything here; {', '.join(dict.fromkeys(states)) or 'its commit was not recorded'}"


def _software(environment: RunEnvironment) -> list[dict[str, Any]]:
    """vLLM of an environment, and what it stood on."""
    versions = {name: version for name, version in environment.versions.items() if version and name in _URLS}
    return [
        {
            "@id": f"#{name}-{environment.name}",
            "@type": "SoftwareApplication",
            "name": _NAMES[name],
            "url": _URLS[name],
            "softwareVersion": version,
            **(
                {
                    "softwareRequirements": [
                        _reference(f"#{other}-{environment.name}") for other in versions if other != name
                    ]
                }
                if name == "vllm"
                else {}
            ),
        }
        for name, version in versions.items()
    ]


def _status(measured: Mapping[str, int], asked: int, error: str | None = None) -> dict[str, str]:
    """Completed when every load point has an accepted measurement."""
    lacking = asked - measured.get("VALID", 0) - measured.get("SUSPECT", 0)
    if not lacking:
        return {"actionStatus": _COMPLETED}
    told = f"{lacking} of {asked} load points gave no accepted measurement"
    return {"actionStatus": _FAILED, "error": f"{told}: {error}" if error else told}


def _times(began: str | None, ended: str | None) -> dict[str, str]:
    return {key: text for key, text in (("startTime", began), ("endTime", ended)) if text}


def _run_action(run: Run) -> dict[str, Any]:
    inputs = [run.configuration, *(model.record for model in run.models)]
    inputs += [item.package_list for item in run.environments if item.package_list]
    return {
        "@id": _RUN,
        "@type": "CreateAction",
        "name": f"Run {run.run}",
        "description": _counts(run.measured, run.asked),
        "instrument": _reference(_SERVEMARK),
        "object": _files(dict.fromkeys(file.name for file in inputs)),
        "result": _files([*(table.name for table in run.tables), run.report.name, "run.json"]),
        **_times(run.began_at, run.ended_at),
        **_status(run.measured, run.asked),
    }


def _deployment_action(run: Run, deployment: RunDeployment, names: Sequence[str]) -> dict[str, Any]:
    model = next(item for item in run.models if item.name == deployment.model)
    environment = next(item for item in run.environments if item.name == deployment.environment)
    attempts = deployment.attempts
    starts = [attempt.started_at for attempt in attempts if attempt.started_at]
    ends = [attempt.ended_at for attempt in attempts if attempt.ended_at]
    commands = [shlex.join(process.argv) for process in attempts[-1].processes] if attempts else []
    failures = [attempt.failure for attempt in attempts if attempt.failure]
    points = f"deployments/{deployment.name}/points/"
    results = [name for name in names if name.startswith(points)] or [deployment.plan.name]
    return {
        "@id": f"#deployment-{deployment.name}",
        "@type": "CreateAction",
        "name": f"Measure deployment {deployment.name}",
        "description": "\n".join([_counts(deployment.measured, deployment.asked), *commands]),
        "instrument": _reference(f"#vllm-{environment.name}" if environment.versions.get("vllm") else _SERVEMARK),
        "object": _files([run.configuration.name, deployment.plan.name, model.record.name]),
        "result": _files(results),
        **_times(min(starts, default=None), max(ends, default=None)),
        **_status(deployment.measured, deployment.asked, failures[-1] if failures else None),
    }
