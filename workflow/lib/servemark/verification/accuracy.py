"""Check that each accuracy check follows from lm-eval's result file, and accuracy.csv from the checks."""

from collections.abc import Iterator

from servemark.errors import ServemarkError
from servemark.measurement import accuracy, accuracy_key
from servemark.measurement.ledger import file_sha256
from servemark.records import Accuracy
from servemark.report import accuracies
from servemark.report.gather import RunRecords, locate
from servemark.verification.facts import Finding, Stated, differ, guarded


def check(found: RunRecords) -> Iterator[Finding]:
    """Yield every contradiction between accuracy checks, lm-eval's results, the plan and the table."""
    for name, plan in found.plans.items():
        known = {one.check.name: one for one in found.accuracy.get(name, ())}
        for planned in plan.checks:
            file = Accuracy.path_name(name, planned.name)
            if planned.name not in known:
                yield f"{name}: plan.json plans the accuracy check {planned.name}, and the archive contains no record of it."
                continue
            record, what = known[planned.name], f"{name}: accuracy check {planned.name}"
            stated = Stated(file, (record.deployment, record.check.model_dump()))
            yield from differ(what, stated, Stated(f"deployments/{name}/plan.json", (name, planned.model_dump())))
            yield from differ(
                f"{what}: ledger key", Stated(file, record.check.key), Stated("plan.json", accuracy_key.key(plan.key_parts, planned))
            )
            yield from guarded(file, _recomputed(found, file, what, record))
    if any(found.accuracy.values()):
        yield from guarded(accuracy.CSV, _table(found))


def _recomputed(found: RunRecords, file: str, what: str, record: Accuracy) -> Iterator[str]:
    if record.failure is not None:
        if record.value is not None:
            yield f"{what}: {file} states a failure and a value."
        return
    name = file.replace(accuracy.RECORD, accuracy.RESULT)
    path = locate(found.folder, name)
    if path is None:
        yield f"{what}: {name} is missing."
        return
    try:
        again = accuracy.read(path, record.check)
    except ServemarkError as error:
        yield f"{what}: {error.what}"
        return
    stated = (record.metric, record.value, record.stderr, record.samples, record.data, record.lm_eval, record.result_sha256)
    recomputed = (again.metric, again.value, again.stderr, again.samples, again.data, again.lm_eval, file_sha256(path))
    yield from differ(what, Stated(file, stated), Stated(name, recomputed))


def _table(found: RunRecords) -> Iterator[str]:
    path = locate(found.folder, accuracy.CSV)
    if path is None:
        yield f"{accuracy.CSV} is missing."
    elif path.read_text(encoding="utf-8") != accuracies.csv_text(found.accuracy, accuracy.minima(found.config)):
        yield f"{accuracy.CSV} differs from the records of the accuracy checks."
