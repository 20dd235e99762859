"""Read what a run left behind, from its folder or from its unpacked archive."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from servemark import __version__
from servemark.errors import ServemarkError
from servemark.machine import git_state
from servemark.records import (
    Accounting,
    Environment,
    EnvironmentCheck,
    Fabric,
    Hardware,
    Manifest,
    Measurement,
    Plan,
    PlannedPoint,
    RecordT,
    Sources,
    Startup,
    Stopped,
    Timeline,
)
from servemark.report import attempts_section, columns, distributions, excerpts, timelines
from servemark.report.data import PageData
from servemark.report.gaps import failures


@dataclass(frozen=True)
class PointFiles:
    """A planned load point, its record, and the path of its per-request results."""

    point: PlannedPoint
    record: Measurement
    raw: Path


@dataclass
class RunRecords:
    """The records of a run, of which any may be missing or damaged.

    Attributes:
        folder: holds the files under the names that they have in the archive.
        sources: every state from which an attempt was started, in the order of deployments and attempts.
        missing: DEPLOYMENT/POINT of every planned point without a record.
        wrong: why other files could not be read.
    """

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    hardware: Hardware | None = None
    environments: dict[str, Environment] = field(default_factory=dict)
    checks: dict[str, EnvironmentCheck] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    fabrics: dict[str, Fabric] = field(default_factory=dict)
    startups: dict[str, Startup] = field(default_factory=dict)
    stopped: dict[str, Stopped] = field(default_factory=dict)
    accounts: dict[str, Accounting] = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    attempts: list[attempts_section.Attempt] = field(default_factory=list)
    rejected: list[Measurement] = field(default_factory=list)
    timelines: dict[tuple[str, str], Timeline] = field(default_factory=dict)
    points: list[PointFiles] = field(default_factory=list)
    sources: list[Sources] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    wrong: list[ServemarkError] = field(default_factory=list)

    @property
    def run(self) -> str:
        """Return the run's name."""
        return str(self.config.get("run", self.folder.name))

    @property
    def records(self) -> list[Measurement]:
        """Return the records of all measurements."""
        return [item.record for item in self.points]

    def page_data(self, measurements: Sequence[Measurement]) -> PageData:
        """Return what the page is made of, without commit, commands and excerpts of logs.

        Args:
            measurements: one for each of ``points``, in their order.

        Raises:
            ServemarkError: hardware.json is missing or damaged.
        """
        if self.hardware is None:
            raise _broken("Without hardware.json no page can be made.")
        return PageData(
            run=self.run,
            config=self.config,
            hardware=self.hardware,
            environments=self.environments,
            checks=self.checks,
            manifests=self.manifests,
            plans=self.plans,
            startups=self.startups,
            stopped=self.stopped,
            fabrics=self.fabrics,
            accounts=self.accounts,
            attempts=self.attempts,
            rejected=self.rejected,
            timelines=self.timelines,
            measurements=measurements,
            distributions=distributions.distributions([(item, files.raw) for item, files in zip(measurements, self.points, strict=True)]),
            version=__version__,
            commit="",
            commands=(),
        )

    def take(self, kind: type[RecordT], name: str, *, needed: bool = False) -> RecordT | None:
        """Return one record; None where it is missing or damaged, which ``wrong`` then says.

        Args:
            name: relative to the folder, perhaps from another record.
            needed: a missing record is wrong, too.
        """
        path = locate(self.folder, name)
        if path is None:
            self.wrong += [_missing(name)] if needed else []
            return None
        try:
            return kind.read(path)
        except ServemarkError as error:
            self.wrong.append(error)
        except RecursionError:
            self.wrong.append(_broken(f"{name} cannot be read: it is nested too deeply."))
        return None


def gather(run_folder: Path) -> PageData:
    """Return everything that the page shows, read from ``results/RUN``.

    Raises:
        ServemarkError: a record is missing or damaged.
    """
    found = read(run_folder, strict=True)
    # The state of the sources when attempts were started; the checkout may have another one by now.
    ran_from = git_state.words(found.sources)
    data = replace(
        found.page_data(found.records),
        commit=ran_from,
        commands=(
            f"# config.json is in the archive: put it at results/{found.run}/config.json of a checkout of {ran_from}",
            "make setup",
            f".venv/bin/snakemake --profile profiles/local --configfile results/{found.run}/config.json",
        ),
    )
    return replace(data, excerpts=excerpts.of_failures(failures(data), run_folder))


def read(folder: Path, *, strict: bool = False) -> RunRecords:
    """Read every record that page, table and archive are made of. Points and deployments of an earlier configuration are left out.

    Args:
        strict: of a run that is complete.

    Raises:
        ServemarkError: with ``strict``, a record is missing or damaged; a planned point may have none.
    """
    found = RunRecords(folder)
    found.config = _config(found)
    found.hardware = found.take(Hardware, "hardware.json", needed=strict)
    present = sorted(path.parent.name for path in folder.glob("deployments/*/plan.json"))
    for name in found.config.get("deployments") or present:
        _deployment(found, name)
    for name in sorted({plan.environment for plan in found.plans.values()}):
        _into(found, Environment, found.environments, f"environments/{name}/environment.json", needed=strict)
        _into(found, EnvironmentCheck, found.checks, f"environments/{name}/check.json", needed=strict)
    for name in sorted({plan.model for plan in found.plans.values()}):
        _into(found, Manifest, found.manifests, f"models/{name}/manifest.json", needed=strict)
    for path in sorted(folder.glob("rejected/*/*.json")):
        if not path.name.endswith(".requests.json"):
            record = found.take(Measurement, path.relative_to(folder).as_posix())
            found.rejected += [record] if record else []
    if strict and found.wrong:
        raise found.wrong[0]
    return found


def _deployment(found: RunRecords, name: str) -> None:
    place = f"deployments/{name}"
    plan = found.take(Plan, f"{place}/plan.json", needed=True)
    if plan is None:
        return
    if plan.deployment != name:
        found.wrong.append(_broken(f"{place}/plan.json is the plan of deployment {plan.deployment!r}."))
        return
    found.plans[name] = plan
    _into(found, Fabric, found.fabrics, f"{place}/fabric.json")
    _into(found, Startup, found.startups, f"{place}/startup.json")
    _into(found, Stopped, found.stopped, f"{place}/stopped.json")
    _into(found, Accounting, found.accounts, f"{place}/accounting.json")
    found.attempts += attempts_section.read(found.folder / place)
    for path in sorted((found.folder / place).glob(f"attempts/*/{git_state.NAME}")):
        if noted := found.take(Sources, path.relative_to(found.folder).as_posix()):
            found.sources = list(dict.fromkeys([*found.sources, noted.model_copy(update={"configuration": ()})]))
    for point in plan.points:
        _point(found, place, name, point)


def _into(found: RunRecords, kind: type[RecordT], into: dict[str, RecordT], name: str, needed: bool = False) -> None:
    """Take a record over under the name of its folder."""
    if record := found.take(kind, name, needed=needed):
        into[PurePosixPath(name).parent.name] = record


def _point(found: RunRecords, place: str, deployment: str, point: PlannedPoint) -> None:
    load = point.load.name
    name = f"{place}/points/{load}.json"
    if locate(found.folder, name) is None:
        found.missing.append(f"{deployment}/{load}")
        return
    record = found.take(Measurement, name)
    if record is None:
        return
    if (record.deployment, record.load.name) != (deployment, load):
        found.wrong.append(_broken(f"{name} is the record of {record.deployment}/{record.load.name}."))
        return
    try:
        columns.topology(record)
    except (ValueError, TypeError, AttributeError) as error:
        found.wrong.append(_broken(f"{name}: its key_parts hold no topology: {error}"))
        return
    found.points.append(PointFiles(point, record, found.folder / place / "points" / f"{load}.requests.json"))
    recorded = timelines.place(record)
    timeline = found.take(Timeline, recorded.as_posix()) if recorded else None
    if timeline and timelines.belongs(timeline, record):
        found.timelines[deployment, load] = timeline


def locate(folder: Path, name: str) -> Path | None:
    """Return the path of a file in ``folder``, None where there is none. The name may come from an archive that nobody vouches for."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\0" in name:
        return None
    path = folder / name
    return path if path.is_file() else None


def _config(found: RunRecords) -> dict[str, Any]:
    path = locate(found.folder, "config.json")
    if path is None:
        found.wrong.append(_missing("config.json"))
        return {}
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        found.wrong.append(_broken(f"config.json cannot be read: {error}"))
        return {}
    if not isinstance(config, dict) or not isinstance(config.get("deployments", {}), dict):
        found.wrong.append(_broken("config.json is not a configuration."))
        return {}
    return config


def _missing(name: str) -> ServemarkError:
    return ServemarkError(f"{name} is missing.", do="Run snakemake again.", reason="record_missing")


def _broken(what: str) -> ServemarkError:
    return ServemarkError(what, do="Delete the file and run snakemake again.", reason="record_broken")
