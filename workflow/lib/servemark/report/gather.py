"""Read the records of one run from its folder or its unpacked archive. Report, archive and ``servemark verify`` are made from them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from servemark import __version__, records
from servemark.errors import ServemarkError
from servemark.machine import git_state
from servemark.measurement import accuracy, repetitions, slo
from servemark.measurement.slo import Attainment
from servemark.records import Measurement, RecordT
from servemark.records.restarts import MOST, configured, start_names
from servemark.report import attempts, distributions, measured, timelines
from servemark.report.attempts import Attempt
from servemark.report.distributions import Distribution

CRATE = "ro-crate-metadata.json"
"""The file that states the format of an archive."""


class PointFiles(NamedTuple):
    """A planned load point and the path of its per-request results."""

    point: records.PlannedPoint
    raw: Path


@dataclass(kw_only=True)
class RunRecords:
    """The records of a run, by name of environment, model, dataset or deployment. Any of them may be missing.

    Attributes:
        folder: holds the files under their names in the archive.
        archive_format: of an unpacked archive; None for a run's folder.
        accuracy: finished and failed accuracy checks by deployment.
        timelines: by deployment and load point.
        measurements: one record per load point, including INVALID ones. :func:`read` returns them as recorded.
        points: one entry for each entry of ``measurements``.
        rejected: INVALID measurements that a later measurement replaced.
        sources: distinct states of servemark's sources at the starts of attempts, in the order of deployments and attempts.
        missing: DEPLOYMENT/POINT of every planned load point without a record.
        wrong: the errors of other files that could not be read.
    """

    run: str = ""
    folder: Path = Path()
    archive_format: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    hardware: records.Hardware | None = None
    environments: dict[str, records.Environment] = field(default_factory=dict)
    checks: dict[str, records.EnvironmentCheck] = field(default_factory=dict)
    manifests: dict[str, records.Manifest] = field(default_factory=dict)
    datasets: dict[str, records.Dataset] = field(default_factory=dict)
    plans: dict[str, records.Plan] = field(default_factory=dict)
    searches: dict[str, list[records.Search]] = field(default_factory=dict)
    accuracy: dict[str, list[records.Accuracy]] = field(default_factory=dict)
    fabrics: dict[str, records.Fabric] = field(default_factory=dict)
    startups: dict[str, records.Startup] = field(default_factory=dict)
    stopped: dict[str, records.Stopped] = field(default_factory=dict)
    accounts: dict[str, records.Accounting] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    points: list[PointFiles] = field(default_factory=list)
    rejected: list[Measurement] = field(default_factory=list)
    timelines: dict[tuple[str, str], records.Timeline] = field(default_factory=dict)
    distributions: Sequence[Distribution] = ()
    sources: list[records.Sources] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    wrong: list[ServemarkError] = field(default_factory=list)
    version: str = __version__

    @property
    def machine(self) -> records.Hardware:
        """Return the probed hardware.

        Raises:
            ServemarkError: hardware.json is missing or damaged.
        """
        if self.hardware is None:
            raise missing("hardware.json")
        return self.hardware

    @property
    def commit(self) -> str:
        """Return the commits from which attempts were started, as text."""
        return git_state.words(self.sources)

    @property
    def from_commit(self) -> bool:
        """Whether the commit of the sources is known for at least one attempt."""
        return any(state.commit for state in self.sources)

    @property
    def deployments(self) -> list[str]:
        """Return the names of all starts of deployments in the configuration and the records, sorted."""
        return sorted({*_starts(self.config), *self.plans, *self.startups, *(item.deployment for item in self.measurements)})

    @property
    def configured(self) -> dict[str, list[str]]:
        """Return the starts of each configured deployment, both sorted."""
        return {name: list(starts) for name, starts in itertools.groupby(self.deployments, configured)}

    @cached_property
    def attainments(self) -> dict[tuple[str, str], Attainment]:
        """How measurements meet the latency targets of the configuration, by deployment and load point. Reads per-request results."""
        asked = slo.targets(self.config)
        # Strict: a measurement without its file would look like one with too few requests.
        return slo.attainments(asked, zip(self.measurements, (raw for _, raw in self.points), strict=True)) if asked else {}

    def with_distributions(self, measurements: Iterable[Measurement]) -> RunRecords:
        """Return the run with these measurements (one for each of ``points``) and the distributions of their latencies."""
        results = [(item, raw) for item, (_, raw) in zip(measurements, self.points, strict=True)]
        return replace(self, measurements=[item for item, _ in results], distributions=distributions.distributions(results))

    def collected(self) -> RunRecords:
        """Return the run as collect_measurements sees it.

        Repetitions of a load that differ too much are SUSPECT, and all loads of a deployment with too low an accuracy.

        Raises:
            ServemarkError: see ``repetitions.limit`` and ``accuracy.minima``.
        """
        return replace(self, measurements=self.judged(self.measurements))

    def judged(self, measurements: Sequence[Measurement]) -> list[Measurement]:
        """Return measurements of this run as :meth:`collected` does."""
        found = repetitions.judged(measurements, repetitions.limit(self.config), self.archive_format)
        return accuracy.judged(found, itertools.chain(*self.accuracy.values()), accuracy.minima(self.config))

    def take(self, kind: type[RecordT], name: str, *, needed: bool = False) -> RecordT | None:
        """Return one record, or None if it is missing or damaged. Add the error of a damaged record to ``wrong``.

        Args:
            name: path relative to the folder.
            needed: add an error for a missing record, too.
        """
        try:
            path = locate(self.folder, name)
            if path is not None:
                return kind.read(path)
            self.wrong += [missing(name)] if needed else []
        except ServemarkError as error:
            self.wrong.append(error)
        except RecursionError:
            self.wrong.append(broken(f"{name} cannot be read: its JSON is nested too deeply."))
        return None


def locate(folder: Path, name: str) -> Path | None:
    """Return the path of a file in ``folder``, or None. The name may come from an untrusted archive."""
    if name.startswith("/") or ".." in PurePosixPath(name).parts or "\0" in name:
        return None
    path = folder / name
    return path if path.is_file() else None


def missing(name: str) -> ServemarkError:
    """Return the error for a missing record."""
    return ServemarkError(f"{name} is missing.", do="Rerun snakemake.", reason="record_missing")


def broken(what: str) -> ServemarkError:
    """Return the error for a damaged record."""
    return ServemarkError(what, do="Delete the file and rerun snakemake.", reason="record_broken")


def gather(run_folder: Path) -> RunRecords:
    """Return everything that the report shows, read from ``results/RUN``.

    Raises:
        ServemarkError: a record is missing or damaged.
    """
    found = read(run_folder, strict=True).collected()
    return found.with_distributions(found.measurements)


def read(folder: Path, *, strict: bool = False) -> RunRecords:
    """Return all records of the present configuration.

    Args:
        strict: stop at a missing or damaged record. A planned load point may still have no record.

    Raises:
        ServemarkError: with ``strict``, a record is missing or damaged.
    """
    found = RunRecords(folder=folder, archive_format=_archive_format(folder))
    try:
        found.config = _config(folder)
    except ServemarkError as error:
        found.wrong.append(error)
    found.run = str(found.config.get("run", folder.name))
    found.hardware = found.take(records.Hardware, "hardware.json", needed=strict)
    present = sorted(path.parent.name for path in folder.glob("deployments/*/plan.json"))
    for name in _starts(found.config) or present:
        _deployment(found, name)
    for name in sorted({plan.environment for plan in found.plans.values()}):
        _into(found, records.Environment, found.environments, f"environments/{name}/environment.json", strict)
        _into(found, records.EnvironmentCheck, found.checks, f"environments/{name}/check.json", strict)
    for name in sorted({plan.model for plan in found.plans.values()}):
        _into(found, records.Manifest, found.manifests, f"models/{name}/manifest.json", strict)
    loads = (load for plan in found.plans.values() for load in plan.loads)
    for name in sorted({load.prompts.name for load in loads if isinstance(load.prompts, records.StagedPrompts)}):
        _into(found, records.Dataset, found.datasets, f"datasets/{name}/dataset.json", strict)
    rejected = (path for path in sorted(folder.glob("rejected/*/*.json")) if not path.name.endswith(".requests.json"))
    found.rejected = [record for path in rejected if (record := found.take(Measurement, path.relative_to(folder).as_posix()))]
    if strict and found.wrong:
        raise found.wrong[0]
    return found


def _archive_format(folder: Path) -> int | None:
    """Return the format that the crate of an archive states; None without a crate. ``servemark verify`` names a damaged one."""
    try:
        entities = json.loads((folder / CRATE).read_bytes())["@graph"]
        return next(int(entity.get("schemaVersion", 1)) for entity in entities if entity["@id"] == "./")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError, OverflowError):
        return None


def _starts(config: Mapping[str, Any]) -> list[str]:
    restarts = config.get("restarts", 0)
    known = isinstance(restarts, int) and 0 < restarts <= MOST
    return start_names(config.get("deployments") or (), restarts if known else 0, interleaved=False)


def _into(found: RunRecords, kind: type[RecordT], into: dict[str, RecordT], name: str, needed: bool = False) -> None:
    """Store a record under the name of its folder."""
    if record := found.take(kind, name, needed=needed):
        into[Path(name).parent.name] = record


def _deployment(found: RunRecords, name: str) -> None:
    place = f"deployments/{name}"
    plan = found.take(records.Plan, f"{place}/plan.json", needed=True)
    if plan is None:
        return
    if plan.deployment != name:
        found.wrong.append(broken(f"{place}/plan.json contains the plan of deployment {plan.deployment!r}."))
        return
    paths = [records.Search.path_name(name, one.workload) for one in plan.searches]
    found.searches[name] = [search for path in paths if (search := found.take(records.Search, path))]
    paths = [records.Accuracy.path_name(name, one.name) for one in plan.checks]
    found.accuracy[name] = [one for path in paths if (one := found.take(records.Accuracy, path))]
    plan = found.plans[name] = plan.with_trials(found.searches[name])
    _into(found, records.Fabric, found.fabrics, f"{place}/fabric.json")
    _into(found, records.Startup, found.startups, f"{place}/startup.json")
    _into(found, records.Stopped, found.stopped, f"{place}/stopped.json")
    _into(found, records.Accounting, found.accounts, f"{place}/accounting.json")
    found.attempts += attempts.read(found.folder / place)
    for path in sorted((found.folder / place).glob(f"attempts/*/{git_state.NAME}")):
        if noted := found.take(records.Sources, path.relative_to(found.folder).as_posix()):
            found.sources = list(dict.fromkeys([*found.sources, noted.model_copy(update={"configuration": ()})]))
    for point in plan.points:
        _point(found, place, name, point)


def _point(found: RunRecords, place: str, deployment: str, point: records.PlannedPoint) -> None:
    load = point.load.name
    name = f"{place}/points/{load}.json"
    if locate(found.folder, name) is None:
        found.missing.append(f"{deployment}/{load}")
        return
    record = found.take(Measurement, name)
    if record is None:
        return
    if (record.deployment, record.load.name) != (deployment, load):
        found.wrong.append(broken(f"{name} contains the record of {record.deployment}/{record.load.name}."))
        return
    try:
        measured.topology(record)
    except (ValueError, TypeError, AttributeError) as error:
        found.wrong.append(broken(f"{name}: key_parts contains no valid topology: {error}"))
        return
    found.measurements.append(record)
    found.points.append(PointFiles(point, found.folder / place / "points" / f"{load}.requests.json"))
    recorded = timelines.place(record)
    timeline = found.take(records.Timeline, recorded.as_posix()) if recorded else None
    if timeline and timelines.belongs(timeline, record):
        found.timelines[deployment, load] = timeline


def _config(folder: Path) -> dict[str, Any]:
    path = locate(folder, "config.json")
    if path is None:
        raise missing("config.json")
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise broken(f"config.json cannot be read: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("deployments", {}), dict):
        raise broken("config.json contains no configuration.")
    return config
