"""Check that each search follows from its measurements: its trials, their order, its bracket.

Without per-request results (``records.opened``), each trial has the ratio of latency to target that its record states. All else is checked.
"""

from collections.abc import Iterator

from servemark.measurement import search, slo
from servemark.measurement.repetitions import VALID_ALONE
from servemark.measurement.search import Trial
from servemark.records import Search
from servemark.report.gather import RunRecords
from servemark.verification.facts import Finding, Stated, differ, guarded

REPLAYED = 5
"""The first archive format whose rules of a search are known here. ``repetitions.VALID_ALONE`` changed them."""


def check(found: RunRecords) -> Iterator[Finding]:
    """Yield every contradiction between searches and measurements. Each search is repeated by the rules of the archive's format."""
    known = found.archive_format is None or found.archive_format >= REPLAYED
    for name, plan in found.plans.items():
        ended = {one.asked.workload: one for one in found.searches.get(name, ())}
        for asked in plan.searches:
            if asked.workload not in ended:
                yield f"{name}: plan.json plans a search of workload {asked.workload}, and the archive contains no record of it."
                continue
            stated = Stated(Search.path_name(name, asked.workload), ended[asked.workload].asked.model_dump())
            planned = Stated(f"deployments/{name}/plan.json", asked.model_dump())
            yield from differ(f"{name}: search of {asked.workload}", stated, planned)
        for one in ended.values() if known else ():
            yield from guarded(Search.path_name(name, one.asked.workload), _search(found, name, one))


def _search(found: RunRecords, name: str, stated: Search) -> Iterator[str]:
    file, what = Search.path_name(name, stated.asked.workload), f"{name}: search of {stated.asked.workload}"
    wanted = slo.targets(found.config).get(stated.asked.workload, {})
    pairs = zip(found.measurements, found.points, strict=True)
    measured = {item.load.name: (item, raw) for item, (_, raw) in pairs if item.deployment == name}
    most = (found.config.get("verdict") or {}).get("max_repetition_spread")
    trials: list[Trial] = []
    for one in stated.trials:
        following = search.state(stated.asked, search.outcomes(trials, most, found.archive_format)).following
        asked = Stated("the trials before it", following)
        yield from differ(f"{what}: trial {len(trials) + 1}", Stated(file, (one.value, one.point.load.repetition)), asked)
        if one.point.load.name not in measured:
            # `missing` names it.
            return
        record, raw = measured[one.point.load.name]
        trials.append(Trial.of(one.point, record, raw, wanted) if raw.is_file() else Trial.stated(one, record))
    outcomes = search.outcomes(trials, most, found.archive_format)
    if following := search.state(stated.asked, outcomes).following:
        yield f"{what}: {file} ends before the trial of load {following[0]:g} that follows from its measurements."
    compared = found.archive_format is None or found.archive_format >= VALID_ALONE
    again = search.traced(name, stated.asked, wanted, trials, outcomes, compared=compared)
    yield from differ(what, Stated(file, stated.model_dump()), Stated("its measurements", again.model_dump()))
