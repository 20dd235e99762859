"""The records of one run: what page, archive and ``servemark verify`` are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from servemark import __version__, records
from servemark.errors import ServemarkError
from servemark.machine import git_state
from servemark.records import Measurement, RecordT
from servemark.report import distributions
from servemark.report.attempts_section import Attempt
from servemark.report.distributions import Distribution


class PointFiles(NamedTuple):
    """A planned load point and the path of its per-request results."""

    point: records.PlannedPoint
    raw: Path


@dataclass(kw_only=True)
class RunRecords:
    """The records of a run by name of environment, model or deployment; any may be missing or damaged.

    Attributes:
        folder: holds the files under the names that they have in the archive.
        timelines: by deployment and point.
        measurements: one record a load point, INVALID ones too.
        points: one for each of ``measurements``.
        rejected: the INVALID measurements that a later one replaced.
        sources: every state from which an attempt was started, in the order of deployments and attempts.
        missing: DEPLOYMENT/POINT of every planned point without a record.
        wrong: why other files could not be read.
    """

    run: str = ""
    folder: Path = Path()
    config: Mapping[str, Any] = field(default_factory=dict)
    hardware: records.Hardware | None = None
    environments: dict[str, records.Environment] = field(default_factory=dict)
    checks: dict[str, records.EnvironmentCheck] = field(default_factory=dict)
    manifests: dict[str, records.Manifest] = field(default_factory=dict)
    plans: dict[str, records.Plan] = field(default_factory=dict)
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
        """Return the state of the sources when attempts were started; the checkout may have another one by now."""
        return git_state.words(self.sources)

    @property
    def deployments(self) -> list[str]:
        """Return every deployment that the configuration or any record names, in alphabetical order."""
        asked = self.config.get("deployments") or {}
        return sorted({*asked, *self.plans, *self.startups, *(item.deployment for item in self.measurements)})

    def with_distributions(self, measurements: Iterable[Measurement]) -> RunRecords:
        """Return the run with these measurements, one for each of ``points``, and the distributions of their latencies."""
        results = [(item, raw) for item, (_, raw) in zip(measurements, self.points, strict=True)]
        return replace(self, measurements=[item for item, _ in results], distributions=distributions.distributions(results))

    def take(self, kind: type[RecordT], name: str, *, needed: bool = False) -> RecordT | None:
        """Return one record; None where it is missing or damaged, which ``wrong`` then reports.

        Args:
            name: relative to the folder, perhaps from another record.
            needed: a missing record is wrong, too.
        """
        path = locate(self.folder, name)
        if path is None:
            self.wrong += [missing(name)] if needed else []
            return None
        try:
            return kind.read(path)
        except ServemarkError as error:
            self.wrong.append(error)
        except RecursionError:
            self.wrong.append(broken(f"{name} cannot be read: it is nested too deeply."))
        return None


def locate(folder: Path, name: str) -> Path | None:
    """Return the path of a file in ``folder``, None where there is none. The name may come from an archive that nobody vouches for."""
    if name.startswith("/") or ".." in PurePosixPath(name).parts or "\0" in name:
        return None
    path = folder / name
    return path if path.is_file() else None


def missing(name: str) -> ServemarkError:
    """Return the error of a record that is not there."""
    return ServemarkError(f"{name} is missing.", do="Run snakemake again.", reason="record_missing")


def broken(what: str) -> ServemarkError:
    """Return the error of a record that cannot be used."""
    return ServemarkError(what, do="Delete the file and run snakemake again.", reason="record_broken")
