"""Limits for regressions: ``--gate throughput:-5%,p95_ttft:+10%``."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from servemark.compare.errors import NotComparable
from servemark.compare.metrics import METRICS
from servemark.records.comparison import ComparedMetric, ComparedPoint, GateResult

_LIMIT = re.compile(r"([a-z0-9_]+):([+-])(\d+(?:\.\d+)?)%", re.ASCII)


class Limit(NamedTuple):
    """The largest accepted change of a metric on side B against side A, in per cent with its sign."""

    metric: str
    percent: float

    @property
    def text(self) -> str:
        """Return the limit as in --gate."""
        return f"{self.metric}:{self.percent:+g}%"


def parsed(text: str) -> tuple[Limit, ...]:
    """Return the limits of ``METRIC:-N%`` (a rate) or ``METRIC:+N%`` (a latency), separated by commas.

    Raises:
        NotComparable: ``bad_gate``; the message has the allowed names.
    """
    limits: dict[str, Limit] = {}
    for part in text.split(","):
        match = _LIMIT.fullmatch(part.strip())
        if match is None:
            raise _refused(f"{part.strip()!r} is not METRIC:-N% or METRIC:+N%.")
        name, sign, percent = match[1], match[2], float(match[3])
        if name not in METRICS:
            raise _refused(f"{name!r} is not a metric.")
        if name in limits:
            raise _refused(f"{name!r} has two limits.")
        if (sign == "-") != METRICS[name].rises:
            worse = "falls" if METRICS[name].rises else "rises"
            raise _refused(f"{part.strip()!r} has the wrong sign: {name} is worse if it {worse}.")
        if sign == "-" and percent >= 100:
            raise _refused(f"{part.strip()!r}: a rate cannot fall by {percent:g} %.")
        limits[name] = Limit(name, -percent if sign == "-" else percent)
    return tuple(limits.values())


def results(limits: Sequence[Limit], points: Sequence[ComparedPoint]) -> tuple[GateResult, ...]:
    """Return the decision of each limit. It is exceeded at a point if the whole 95 % interval of the ratio is beyond it."""
    found = []
    for limit in limits:
        metrics = [next((one for one in point.metrics if one.metric == limit.metric), None) for point in points]
        exceeded = tuple(number for number, metric in enumerate(metrics) if metric and _beyond(metric, limit))
        undecided = sum(metric is None or metric.verdict == "cannot tell" for metric in metrics)
        found.append(GateResult(metric=limit.metric, percent=limit.percent, exceeded=exceeded, undecided=undecided, points=len(points)))
    return tuple(found)


def _beyond(metric: ComparedMetric, limit: Limit) -> bool:
    if metric.verdict == "cannot tell" or metric.low is None or metric.high is None:
        return False
    bound = 1 + limit.percent / 100
    return metric.high < bound if METRICS[limit.metric].rises else metric.low > bound


def _refused(what: str) -> NotComparable:
    rates = ", ".join(metric.name for metric in METRICS.values() if metric.rises)
    times = ", ".join(metric.name for metric in METRICS.values() if not metric.rises)
    return NotComparable(
        f"--gate: {what}",
        do=f"Give a limit with a minus for {rates}, and with a plus for {times}; for example --gate throughput:-5%,p95_ttft:+10%",
        reason="bad_gate",
    )
