"""Accuracy checks: lm-eval's results, store of finished checks, and the verdict on a deployment's measurements.

A check belongs to a deployment, not to a load point. If its value is below the configured minimum, every accepted measurement of the
deployment is SUSPECT. The records of measurements and the ledger keep the verdict of each load point alone, so another minimum needs no
new run.
"""

import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servemark.errors import ServemarkError
from servemark.measurement.ledger import file_sha256, link_or_copy, store_entry
from servemark.measurement.reasons import reason
from servemark.records import Accuracy, AskedCheck, Measurement, Plan
from servemark.records.restarts import configured

STAGE = "check_accuracy"
RECORD, RESULT = "accuracy.json", "lm-eval.json"
CSV = "accuracy.csv"
"""The table of all checks of a run."""


@dataclass(frozen=True)
class Found:
    """What lm-eval's result file states of one metric. ``stderr``: None if lm-eval gives none; ``data``: digest by task."""

    metric: str
    value: float
    stderr: float | None
    samples: int
    data: dict[str, str]
    lm_eval: str


def read(path: Path, asked: AskedCheck) -> Found:
    """Return the result of a check from lm-eval's result file.

    Raises:
        ServemarkError: the file has another form, or the task does not have the metric.
    """
    try:
        content = json.loads(path.read_bytes())
        results, counts = content["results"], content["n-samples"]
        task = _task(content, asked)
        numbers = {name: value for name, value in results[task].items() if "," in name and _is_number(value)}
        metrics = [name for name in numbers if not name.partition(",")[0].endswith("_stderr")]
        if asked.metric is not None and asked.metric not in metrics:
            raise ServemarkError(
                f"The task {task} has no metric {asked.metric}; it has {', '.join(metrics) or 'none'}.",
                do=f"Set `metric` of the check {asked.name} to one of them, or remove it. Then rerun the same command.",
                reason="accuracy_metric_unknown",
            )
        metric = asked.metric or metrics[0]
        name, _, filtered = metric.partition(",")
        return Found(
            metric=metric,
            value=float(numbers[metric]),
            stderr=numbers.get(f"{name}_stderr,{filtered}"),
            samples=sum(int(count["effective"]) for count in counts.values()),
            data={str(one): str(digest) for one, digest in content.get("task_hashes", {}).items()},
            lm_eval=str(content["lm_eval_version"]),
        )
    except (OSError, ValueError, KeyError, IndexError, StopIteration, TypeError, AttributeError) as error:
        raise ServemarkError(
            f"lm-eval's result file {path.name} cannot be used: {type(error).__name__}: {str(error)[:200]}", reason="accuracy_failed"
        ) from None


def without_task_texts(path: Path) -> None:
    """Remove the tasks' configurations from lm-eval's result file: they contain instructions, and can contain examples."""
    content = json.loads(path.read_bytes())
    content.pop("configs", None)
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")


def _task(content: Mapping[str, Any], asked: AskedCheck) -> str:
    """Return the task or group whose result is that of the check. The name of a user's own task may differ from the check's."""
    results = content["results"]
    if asked.name in results:
        return asked.name
    # A group has an entry of its own next to those of its tasks. A tag has none.
    own = list(content.get("groups") or results)
    if asked.task and len(own) == 1:
        return str(own[0])
    raise ServemarkError(
        f"The check {asked.name} has no result of its own. lm-eval ran {', '.join(results) or 'no task'}.",
        do="Name one task, or a group that lm-eval aggregates, or write one check for each task.",
        reason="accuracy_failed",
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def minima(config: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the minimum of each check by deployment and name, from a resolved configuration.

    Raises:
        ServemarkError: the configuration contains something else.
    """
    try:
        found = {name: one.get("checks") or {} for name, one in config.get("deployments", {}).items()}
        return {name: {check: float(of["min"]) for check, of in checks.items()} for name, checks in found.items() if checks}
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ServemarkError(
            f"The accuracy checks in config.json cannot be read: {type(error).__name__}: {error}",
            do="Rerun snakemake: it writes the file.",
            reason="record_broken",
        ) from None


def meets(record: Accuracy, wanted: Mapping[str, Mapping[str, float]]) -> bool | None:
    """Return whether a check meets its minimum; None without a value or a minimum."""
    least = wanted.get(configured(record.deployment), {}).get(record.check.name)
    return None if record.value is None or least is None else record.value >= least


def judged(measurements: Sequence[Measurement], found: Iterable[Accuracy], wanted: Mapping[str, Mapping[str, float]]) -> list[Measurement]:
    """Return the measurements in the same order; those of a deployment with a check below its minimum are SUSPECT.

    Args:
        found: the checks of all deployments.
        wanted: as of :func:`minima`.
    """
    below: dict[str, list[str]] = {}
    for one in found:
        if meets(one, wanted) is False:
            least = wanted[configured(one.deployment)][one.check.name]
            error = "" if one.stderr is None else f" (standard error {one.stderr:.4g})"
            text = f"{one.check.name}: {one.metric} is {one.value:.4g}{error} over {one.samples} examples; the minimum is {least:g}."
            below.setdefault(one.deployment, []).append(text)
    return [
        _suspect(item, below[item.deployment]) if item.deployment in below and item.verdict != "INVALID" else item for item in measurements
    ]


def _suspect(item: Measurement, details: Sequence[str]) -> Measurement:
    return item.model_copy(update={"verdict": "SUSPECT", "reasons": (*item.reasons, reason("accuracy_below_minimum", " ".join(details)))})


class Checks:
    """The store of finished checks below the ledger's folder. An entry is complete or absent, as in the ledger."""

    def __init__(self, ledger: Path):
        self.root = ledger / "checks"

    def find(self, key: str) -> tuple[Accuracy, Path] | None:
        """Return the record of ``key`` and lm-eval's result file; None without an entry, or if it is damaged."""
        entry = self._entry(key)
        record = Accuracy.read_or_none(entry / RECORD) if entry.exists() else None
        if record is None or record.check.key != key or record.value is None:
            return None
        try:
            intact = file_sha256(entry / RESULT) == record.result_sha256
        except OSError:
            return None
        return (record, entry / RESULT) if intact else None

    def missing(self, plan: Plan) -> int:
        """Return the number of a plan's accuracy checks that have no stored result."""
        return sum(self.find(check.key) is None for check in plan.checks)

    def store(self, record: Accuracy, result: Path) -> None:
        """Store a finished check; a damaged entry is replaced."""
        entry = self._entry(record.check.key)

        def fill(draft: Path) -> None:
            link_or_copy(result, draft / RESULT)
            record.write(draft / RECORD)

        def existing() -> tuple[Accuracy, Path] | None:
            found = self.find(record.check.key)
            if found is None:
                shutil.rmtree(entry, ignore_errors=True)
            return found

        store_entry(entry, fill, existing)

    def _entry(self, key: str) -> Path:
        return self.root / key[:2] / key
