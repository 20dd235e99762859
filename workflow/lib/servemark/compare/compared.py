"""Compare two sides: what differs, every common load point, and the limits of --gate."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from servemark.compare import facts, gate, joined, metrics, side
from servemark.compare.errors import NotComparable
from servemark.compare.gate import Limit
from servemark.compare.joined import Joined, longer, sizes
from servemark.compare.metrics import Both
from servemark.compare.side import Side
from servemark.records import ComparedPoint, Comparison


@dataclass(frozen=True)
class Compared:
    """Both sides, how they are joined, and the record of their comparison."""

    a: Side
    b: Side
    joined: Joined
    record: Comparison


def compare(a: Path, b: Path, limits: Sequence[Limit] = ()) -> Compared:
    """Compare side B with side A.

    Raises:
        NotComparable: a side cannot be read, or they have no load point in common that can be compared.
    """
    one, other = side.read("A", a), side.read("B", b)
    if one.is_reference and other.is_reference:
        raise NotComparable("A and B are both reference files.", do="Pass a run's folder or archive as one of them.")
    found = joined.joined(one, other)
    reference = one.is_reference or other.is_reference
    common = [(pair, *points) for pair in found.pairs for points in pair.points]
    results = metrics.compared([Both(x.row or {}, y.row or {}, longer(x, y), reference) for _, x, y in common])
    points = tuple(
        ComparedPoint(
            pair=pair.name,
            workload=x.at.workload,
            load=x.load,
            repetitions_a=(x.row or {})["repetitions_accepted"],
            repetitions_b=(y.row or {})["repetitions_accepted"],
            suspect_a=(x.row or {})["verdict"] == "SUSPECT",
            suspect_b=(y.row or {})["verdict"] == "SUSPECT",
            metrics=of,
        )
        for (pair, x, y), of in zip(common, results, strict=True)
    )
    apart = {
        pair.name: facts.apart(pair.a.facts, pair.b.facts, reference=reference) | sizes(pair, reference=reference)
        for pair in found.pairs
        if pair.points
    }
    record = Comparison(
        a=one.record,
        b=other.record,
        differences=facts.listed(apart),
        points=points,
        one_sided=tuple(found.one_sided),
        gates=gate.results(limits, points),
    )
    return Compared(one, other, found, record)
