"""The run record, compiled from the records of a run: pure but for reading them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath

from servemark import __version__
from servemark.archive.attempts import compile_attempt
from servemark.archive.reading import Reader
from servemark.archive.seal import Digest
from servemark.errors import ServemarkError
from servemark.records import (
    Accounting,
    Environment,
    EnvironmentCheck,
    Hardware,
    Manifest,
    Measurement,
    Plan,
    Run,
    Sources,
)
from servemark.records.run import RunAttempt, RunDeployment, RunEnvironment, RunHardware, RunModel, RunSources
from servemark.weights.hub_source import stated_commit

RUN_RECORD = "run.json"
CONFIG, HARDWARE, REPORT = "config.json", "hardware.json", "report.html"
TABLES = ("measurements.csv", "measurements.parquet")


def compile_run(folder: Path, digests: Mapping[str, Digest]) -> Run:
    """Everything that is said of a run as a whole.

    Args:
        folder: holds the run's files under the names that they have in the archive.
        digests: name in the archive -> digest; a file that is not among them does not count.

    Raises:
        ServemarkError: a record is missing or cannot be read.
    """
    reader = Reader(folder, digests)
    config = reader.json(CONFIG)
    names = [name for name in config.get("deployments") or {} if reader.has(f"deployments/{name}/plan.json")]
    name = str(config.get("run"))
    hardware = reader.record(Hardware, HARDWARE)
    plans = {deployment: reader.record(Plan, f"deployments/{deployment}/plan.json") for deployment in names}
    measured = {deployment: _measurements(reader, plan) for deployment, plan in plans.items()}
    deployments = tuple(_deployment(reader, name, plan, measured[key]) for key, plan in plans.items())
    every = [record for records in measured.values() for record in records]
    ends = [end for record in every if (end := _end(record))]
    times = sorted([*ends, *_times(hardware, every, deployments)])
    return Run(
        run=name,
        servemark=__version__,
        began_at=_text(times[0]) if times else None,
        measured_at=_text(max(ends)) if ends else None,
        ended_at=_text(times[-1]) if times else None,
        configuration=reader.file(CONFIG),
        sources=_sources(reader, deployments),
        hardware=_hardware(reader, hardware),
        environments=tuple(_environment(reader, key) for key in sorted({plan.environment for plan in plans.values()})),
        models=tuple(_model(reader, key) for key in sorted({plan.model for plan in plans.values()})),
        deployments=deployments,
        tables=tuple(reader.file(table) for table in TABLES if reader.has(table)),
        report=reader.file(REPORT),
        asked=sum(len(plan.points) for plan in plans.values()),
        measured=verdicts(every),
    )


def verdicts(records: Iterable[Measurement]) -> dict[str, int]:
    """Number of records by verdict, the best first; none of what there is none of."""
    counted = Counter(record.verdict for record in records)
    return {verdict: counted[verdict] for verdict in ("VALID", "SUSPECT", "INVALID") if counted[verdict]}


def _measurements(reader: Reader, plan: Plan) -> list[Measurement]:
    names = (f"deployments/{plan.deployment}/points/{point.name}.json" for point in plan.points)
    return [reader.record(Measurement, name) for name in names if reader.has(name)]


def _deployment(reader: Reader, run: str, plan: Plan, measured: Sequence[Measurement]) -> RunDeployment:
    place = f"deployments/{plan.deployment}"
    accounting = f"{place}/accounting.json"
    jobs = reader.record(Accounting, accounting).jobs if reader.has(accounting) else ()
    return RunDeployment(
        name=plan.deployment,
        plan=reader.file(f"{place}/plan.json"),
        model=plan.model,
        environment=plan.environment,
        topology=plan.topology,
        variables=plan.variables,
        inherited=plan.inherited,
        modules=plan.modules,
        stopped=reader.find(f"{place}/stopped.json"),
        fabric=reader.find(f"{place}/fabric.json"),
        accounting=reader.find(accounting),
        jobs=tuple(dict.fromkeys(job.job_id for job in jobs)),
        asked=len(plan.points),
        measured=verdicts(measured),
        attempts=tuple(
            compile_attempt(reader, folder, [item for item in measured if _ran_in(item, run, folder)], verdicts)
            for folder in sorted(reader.folders(f"{place}/attempts"), key=_number)
            if _number(folder)
        ),
    )


def _number(folder: str) -> int:
    """The number of an attempt's folder; 0 for another folder."""
    name = PurePosixPath(folder).name
    return int(name) if name.isdecimal() else 0


def _ran_in(record: Measurement, run: str, folder: str) -> bool:
    """Whether an attempt of this run measured the point; its figures may come from another run by a shared ledger."""
    parts = PurePosixPath(record.attempt or "").parts
    return parts[-5:] == (run, *PurePosixPath(folder).parts)


def _environment(reader: Reader, name: str) -> RunEnvironment:
    record, check = f"environments/{name}/environment.json", f"environments/{name}/check.json"
    made = reader.record(Environment, record)
    said = reader.record(EnvironmentCheck, check) if reader.has(check) else None
    versions = (
        {"python": said.python_version, "vllm": said.vllm, "torch": said.torch, "cuda": said.torch_cuda, "nccl": said.nccl, "ray": said.ray}
        if said
        else {}
    )  # fmt: skip
    return RunEnvironment(
        name=name,
        record=reader.file(record),
        check=reader.find(check),
        origin=made.origin,
        digest=made.digest,
        packages=made.packages,
        package_list=reader.find(f"envs/{made.lock}.lock") if made.lock else None,
        versions=versions,
    )


def _model(reader: Reader, name: str) -> RunModel:
    record = f"models/{name}/manifest.json"
    manifest = reader.record(Manifest, record)
    return RunModel(
        name=name,
        record=reader.file(record),
        source=manifest.source,
        revision=stated_commit(manifest.source),
        digest=manifest.digest,
        load_format=manifest.load_format,
        bytes=manifest.bytes,
    )


def _hardware(reader: Reader, found: Hardware) -> RunHardware:
    same = set(RunHardware.model_fields) - {"record", "gpus"}
    return RunHardware(
        record=reader.file(HARDWARE),
        gpus=tuple(f"{gpu.name}, {gpu.memory_mib} MiB" for gpu in found.gpus),
        **{name: getattr(found, name) for name in same},
    )


def _sources(reader: Reader, deployments: Iterable[RunDeployment]) -> tuple[RunSources, ...]:
    """Every state of the sources, in the order in which attempts were started from them."""
    started: dict[Sources, list[str]] = {}
    for deployment in deployments:
        for attempt in deployment.attempts:
            if attempt.sources:
                state = reader.record(Sources, attempt.sources.name).model_copy(update={"configuration": ()})
                started.setdefault(state, []).append(f"{deployment.name}/{PurePosixPath(attempt.folder).name}")
    return tuple(
        RunSources(
            servemark=state.servemark,
            commit=state.commit,
            why=state.why,
            dirty=state.dirty,
            changes_sha256=state.changes_sha256,
            attempts=tuple(attempts),
        )
        for state, attempts in started.items()
    )


def _end(record: Measurement) -> datetime | None:
    if record.started_at is None:
        return None
    return _time(record.started_at) + timedelta(seconds=record.duration_s or 0.0)


def _times(
    hardware: Hardware, measured: Iterable[Measurement], deployments: Iterable[RunDeployment]
) -> Iterable[datetime]:
    attempts: list[RunAttempt] = [attempt for deployment in deployments for attempt in deployment.attempts]
    texts = [
        hardware.probed_at,
        *(record.started_at for record in measured),
        *(attempt.started_at for attempt in attempts),
        *(attempt.ended_at for attempt in attempts),
    ]
    return [_time(text) for text in texts if text]


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ServemarkError(f"A record states the time {text!r}, which is none.", reason="record_broken") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")
