"""One side of a comparison: a run's folder, its archive, or a reference file, with its load points and the facts of its deployments."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from servemark.compare import metrics, reference
from servemark.compare.errors import NotComparable
from servemark.compare.facts import Facts, of_reference, of_run
from servemark.errors import ServemarkError
from servemark.measurement import key
from servemark.planning import precision
from servemark.records import LoadPoint, Manifest, Measurement, Plan, Topology
from servemark.records.comparison import ComparedSide
from servemark.report import gather, table, views
from servemark.report.comparable import Identity
from servemark.report.gather import RunRecords
from servemark.verification.records import opened
from servemark.weights import manifest as manifests

Kind = Literal["folder", "archive", "reference"]
YAML = (".yaml", ".yml")
_SIZES = ("requests", "warmups", "warmup_tokens", "clients", "ramp_up_s", "sending_s")
"""Parts of the ledger key that decide how long or how a load is sent, and not what is asked of the servers."""


class LoadKey(NamedTuple):
    """A load point of a deployment, as ``columns.LOAD`` names it without the deployment."""

    workload: str
    concurrency: int | None
    request_rate: float | None


@dataclass(frozen=True)
class SidePoint:
    """A load point with results or with the reason why it has none.

    Attributes:
        row: its medians (``views.medians``); None if no record exists.
        asks: what it measures: its part of the ledger key without ``sizes``, repetition and seed, as canonical JSON.
        sizes: how long and how the load is sent.
    """

    at: LoadKey
    load: str
    asks: str
    sizes: Mapping[str, Any]
    row: Mapping[str, Any] | None

    @property
    def accepted(self) -> bool:
        """Return whether at least one repetition was accepted."""
        return self.row is not None and self.row["repetitions_accepted"] > 0

    @property
    def why(self) -> str:
        """Return why there is no result."""
        return "no record of this point" if self.row is None else "no accepted repetition"


@dataclass(frozen=True)
class Deployed:
    """A configured deployment on one side. ``model``: its manifest, or the model that a reference names."""

    name: str
    topology: Topology
    parts: str
    facts: Facts
    model: Manifest | str
    options: Mapping[str, Any]
    variables: Mapping[str, str]
    points: Sequence[SidePoint]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the nodes, devices, parallel sizes and replicas."""
        of = self.topology
        return of.nodes, of.devices_per_node, of.tensor_parallel, of.pipeline_parallel, of.data_parallel, of.replicas

    @property
    def ranks(self) -> int:
        """Return the ranks of the whole deployment, which are its GPUs."""
        return self.topology.world_size

    def identity(self, config: Mapping[str, Any]) -> Identity:
        """Return what two deployments must share to be compared. ``config``: the model's, also for a reference that has none."""
        model = self.model if isinstance(self.model, str) else manifests.digest(self.model.files)
        return Identity(model, tuple(sorted(precision.arithmetic(self.options, self.variables, config).items())))


@dataclass(frozen=True)
class Side:
    """One side. ``deployments``: the configured ones, by name."""

    label: Literal["A", "B"]
    record: ComparedSide
    data: RunRecords
    deployments: Mapping[str, Deployed] = field(default_factory=dict)

    @property
    def is_reference(self) -> bool:
        """Return whether the side holds published numbers."""
        return self.record.kind == "reference"


def read(label: Literal["A", "B"], path: Path) -> Side:
    """Read a run's folder, an archive, or a reference file (.yaml).

    Raises:
        NotComparable: the side cannot be read, or the archive contradicts itself.
    """
    try:
        return _read(label, path)
    except NotComparable:
        raise
    except ServemarkError as error:
        raise NotComparable(error.what, look=error.look, do=error.do, reason=error.reason) from None
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror or error}{f': {error.filename}' if error.filename else ''}."
        raise NotComparable(what, do="Check the path, its permissions, and the free space in TMPDIR.", reason="cannot_read") from None
    # Valid records of an untrusted sender may still hold values that cannot be compared.
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        what = f"{path} holds values that cannot be compared: {type(error).__name__}: {str(error)[:200]}"
        raise NotComparable(what, do="Run `servemark verify` on its archive.") from None


def _read(label: Literal["A", "B"], path: Path) -> Side:
    if not os.path.lexists(path):
        do = "Pass results/RUN, an archive (results/RUN/archive/RUN.tar.zst), or a reference file (.yaml)."
        raise NotComparable(f"{path} does not exist.", do=do, reason="no_such_file")
    if path.suffix in YAML:
        return _reference(label, path)
    if os.path.isdir(path):
        if not (path / "config.json").is_file():
            raise NotComparable(
                f"{path} is not the folder of a run: it contains no config.json.",
                do="Pass results/RUN, its archive, or a reference file (.yaml).",
                reason="no_such_file",
            )
        data, identity = gather.read(path, strict=True), None
    else:
        data, identity = opened(path)
    data = data.collected()
    record = ComparedSide(path=str(path), kind="folder" if identity is None else "archive", run=data.run, identity=identity)
    return Side(label, record, data, {one.name: one for one in _deployments(data)})


def _deployments(data: RunRecords) -> Iterator[Deployed]:
    rows = _rows(data.measurements)
    for name, starts in data.configured.items():
        plans = [data.plans[start] for start in starts if start in data.plans]
        if plans and plans[0].model in data.manifests:
            yield _deployed(data, name, plans, rows)


def _deployed(data: RunRecords, name: str, plans: Sequence[Plan], rows: Mapping[tuple[str, LoadKey], Mapping[str, Any]]) -> Deployed:
    plan = plans[0]
    loads = {LoadKey(load.workload, load.concurrency, load.request_rate): load for one in plans for load in one.loads}
    return Deployed(
        name=name,
        topology=plan.topology,
        parts=json.dumps(plan.key_parts, sort_keys=True),
        facts=of_run(data, plan),
        model=data.manifests[plan.model],
        options=plan.options,
        variables={**plan.inherited, **plan.variables},
        points=[_point(at, load, rows.get((name, at))) for at, load in loads.items()],
    )


def _point(at: LoadKey, load: LoadPoint, row: Mapping[str, Any] | None) -> SidePoint:
    parts = key.point_parts(load)
    asks = {name: value for name, value in parts["workload"].items() if name not in (*_SIZES, "restart")}
    return SidePoint(
        at=at,
        load=table.names({"deployment": "", "workload": "", "concurrency": at.concurrency, "request_rate_per_s": at.request_rate})[2],
        asks=json.dumps([asks, parts["load"]], sort_keys=True),
        sizes={name: getattr(load, name) for name in _SIZES},
        row=row,
    )


def _rows(measurements: Sequence[Measurement]) -> dict[tuple[str, LoadKey], Mapping[str, Any]]:
    rows = views.medians(table.aggregate(table.tidy(measurements), metrics.COLUMNS))
    return {(row["deployment"], LoadKey(row["workload"], row["concurrency"], row["request_rate_per_s"])): row for row in rows}


def _reference(label: Literal["A", "B"], path: Path) -> Side:
    given = reference.read(path)
    items = reference.measurements(given)
    rows = _rows(items)
    found = {}
    for name, one in given.deployments.items():
        loads = {LoadKey(item.load.workload, item.load.concurrency, item.load.request_rate): item.load for item in items
                 if item.deployment == name}  # fmt: skip
        found[name] = Deployed(
            name=name,
            topology=one.topology.record(),
            parts="",
            facts=of_reference(given, one),
            model=given.model,
            options=key.normalise_options(one.options),
            variables={variable: str(value) for variable, value in one.variables.items()},
            points=[_point(at, load, rows.get((name, at))) for at, load in loads.items()],
        )
    when = f", {given.date}" if given.date else ""
    record = ComparedSide(path=str(path), kind="reference", run=given.name, source=f"{given.source}{when}")
    return Side(label, record, RunRecords(run=given.name, measurements=items), found)


def same_model(manifest: Manifest, published: str) -> bool:
    """Return whether a model was staged from hf:ORG/NAME@REVISION, or from this snapshot in a cache of the Hugging Face hub."""
    name, _, revision = published.removeprefix("hf:").partition("@")
    snapshot = (f"models--{name.replace('/', '--')}", "snapshots", revision)
    return manifest.source == published or PurePosixPath(manifest.source.rstrip("/")).parts[-3:] == snapshot
