"""Join the deployments and load points of two sides by what they measure."""

import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from servemark.compare.errors import NotComparable
from servemark.compare.facts import apart, words
from servemark.compare.side import Deployed, Side, SidePoint, same_model
from servemark.records import Manifest, OneSided
from servemark.report import formatting
from servemark.report.comparable import Identity

_SHOWN = 5
_LASTING = ("requests", "ramp_up_s", "sending_s")
"""Sizes of a load that decide how much of the whole run is its start."""


@dataclass(frozen=True)
class Pair:
    """Two deployments that are compared. ``points``: the load points that both have, from A and from B."""

    a: Deployed
    b: Deployed
    points: Sequence[tuple[SidePoint, SidePoint]]

    @property
    def name(self) -> str:
        """Return the name of the pair: of the deployment, or both names if they differ."""
        return self.a.name if self.a.name == self.b.name else f"{self.a.name} / {self.b.name}"


@dataclass(frozen=True)
class Joined:
    """All compared pairs, and the load points without a counterpart. ``refused``: why paired deployments are not compared."""

    pairs: Sequence[Pair]
    one_sided: Sequence[OneSided]
    refused: Sequence[str]


def joined(a: Side, b: Side) -> Joined:
    """Join two sides.

    Raises:
        NotComparable: no load point is common to two deployments of the same model, precision and load format.
    """
    pairs: list[Pair] = []
    alone: list[_Alone] = []
    refused: list[str] = []
    together = paired(list(a.deployments.values()), list(b.deployments.values()))
    for one, other in together:
        if why := _differ(one, other):
            refused.append(f"{one.name} and {other.name}: {why}")
            alone += [
                ("A", one, None, f"not compared with {other.name}: {why}"),
                ("B", other, None, f"not compared with {one.name}: {why}"),
            ]
            continue
        points, left = _points(one, other)
        pairs.append(Pair(one, other, points))
        alone += left
    for side, at in ((a, 0), (b, 1)):
        taken = {pair[at].name for pair in together}
        others = (of for name, of in side.deployments.items() if name not in taken)
        alone += [(side.label, of, None, "no deployment of this name or shape on the other side") for of in others]
    one_sided = tuple(_one_sided(*entry) for entry in _expanded(alone))
    if not any(pair.points for pair in pairs):
        raise _nothing(pairs, refused, (a, b))
    return Joined(pairs, one_sided, refused)


def paired(a: Sequence[Deployed], b: Sequence[Deployed]) -> list[tuple[Deployed, Deployed]]:
    """Return which deployment of A is compared with which of B, in the order of A.

    Deployments with the same part of the ledger key belong together, then those of the same name, then those of the same shape (the ones
    with the fewest differences first). If one side has one deployment without a partner, it belongs to the closest one of the other side
    with as many ranks. Two sides with one deployment each are always a pair.
    """
    left_a, left_b = {one.name: one for one in a}, {one.name: one for one in b}
    found: dict[str, Deployed] = {}
    rules: tuple[Callable[[Deployed], Hashable], ...] = (lambda one: one.parts, lambda one: one.name, lambda one: one.shape)
    for rule in rules:
        groups: dict[Hashable, list[Deployed]] = {}
        for other in left_b.values():
            groups.setdefault(rule(other), []).append(other)
        choices = [(one, other) for one in left_a.values() if rule(one) for other in groups.get(rule(one), ())]
        for one, other in sorted(choices, key=_distance):
            if one.name in left_a and other.name in left_b:
                found[one.name] = other
                del left_a[one.name], left_b[other.name]
    if not found and 1 in (len(a), len(b)):
        choices = [(one, other) for one, other in product(a, b) if len(a) == len(b) or one.ranks == other.ranks]
        for one, other in sorted(choices, key=lambda pair: (bool(_differ(*pair)), _distance(pair)))[:1]:
            found[one.name] = other
    return [(one, found[one.name]) for one in a if one.name in found]


def _distance(pair: tuple[Deployed, Deployed]) -> tuple[bool, int, str, str]:
    one, other = pair
    return one.name != other.name, len(apart(one.facts, other.facts)), one.name, other.name


def _differ(a: Deployed, b: Deployed) -> str:
    """Return in which model and settings two deployments differ; "" if they can be compared."""
    one, other = _identities(a, b)
    differ = {"model": (_model(a), _model(b))} if one.model != other.model else {}
    mine, theirs = dict(one.settings), dict(other.settings)
    names = [name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)]
    differ |= {name: (mine.get(name, "not set"), theirs.get(name, "not set")) for name in names}
    return ", ".join(f"another {name} (A {values[0]}, B {values[1]})" for name, values in differ.items())


def _identities(a: Deployed, b: Deployed) -> tuple[Identity, Identity]:
    config: Mapping[str, Any] = next((one.model.config for one in (a, b) if isinstance(one.model, Manifest)), {})
    one, other = (of.identity(of.model.config if isinstance(of.model, Manifest) else config) for of in (a, b))
    for mine, theirs in ((a.model, b.model), (b.model, a.model)):
        if isinstance(mine, Manifest) and isinstance(theirs, str) and same_model(mine, theirs):
            one, other = one._replace(model=theirs), other._replace(model=theirs)
    return one, other


def _model(one: Deployed) -> str:
    return one.model if isinstance(one.model, str) else f"{one.model.name}, {one.model.source}"


_Alone = tuple[str, Deployed, SidePoint | None, str]
"""Side, deployment, load point (None: all of them), and why it is not compared."""


def _points(a: Deployed, b: Deployed) -> tuple[list[tuple[SidePoint, SidePoint]], list[_Alone]]:
    """Return the load points of two deployments that measure the same and have results on both sides, and the others."""
    found: list[tuple[SidePoint, SidePoint]] = []
    alone: list[_Alone] = []
    others: dict[str, list[SidePoint]] = {}
    for point in b.points:
        others.setdefault(point.asks, []).append(point)
    for point in a.points:
        same = others.get(point.asks, [])
        if not same:
            alone.append(("A", a, point, "no such load on the other side"))
            continue
        other = next((one for one in same if one.at.workload == point.at.workload), same[0])
        same.remove(other)
        if point.accepted and other.accepted:
            found.append((point, other))
        else:
            alone += [("A", a, point, f"B: {other.why}")] if point.accepted else []
            alone += [("B", b, other, f"A: {point.why}")] if other.accepted else []
    alone += [("B", b, one, "no such load on the other side") for same in others.values() for one in same]
    return found, alone


def _expanded(alone: Sequence[_Alone]) -> Iterator[tuple[str, Deployed, SidePoint, str]]:
    for side, of, point, why in alone:
        yield from ((side, of, one, why) for one in ([point] if point else of.points) if one.accepted)


def _one_sided(side: str, of: Deployed, point: SidePoint, why: str) -> OneSided:
    return OneSided(side="A" if side == "A" else "B", deployment=of.name, workload=point.at.workload, load=point.load, why=why)


def longer(a: SidePoint, b: SidePoint) -> str:
    """Return why the whole runs of two loads cannot be compared, or ""."""
    names = [name for name in _LASTING if a.sizes[name] != b.sizes[name]]
    return ", ".join(f"whole runs with {name} {a.sizes[name]} and {b.sizes[name]}" for name in names)


def sizes(pair: Pair, *, reference: bool = False) -> dict[tuple[str, str], tuple[str | None, str | None]]:
    """Return in what the common loads of a pair are sent in another way, as ``facts.apart``. A reference states only its requests."""
    found: dict[tuple[str, str], tuple[str | None, str | None]] = {}
    for a, b in pair.points:
        for name, value in a.sizes.items():
            if value != b.sizes[name] and (name == "requests" or not reference):
                one, other = (None if size is None else f"{size:g}" for size in (value, b.sizes[name]))
                found["load", f"{name} ({a.at.workload} {a.load})"] = (one, other)
    return found


def _nothing(pairs: Sequence[Pair], refused: Sequence[str], sides: Sequence[Side]) -> NotComparable:
    """Return the error for two sides without a common load point."""
    why = [f"  {text}" for text in refused[:_SHOWN]]
    for pair in pairs[: _SHOWN - len(why)]:
        why += [f"  {pair.name}: {text}" for text in _loads_apart(pair)]
    if not why:
        why = ["No deployment of A has a partner in B: no two have the same name or the same shape."]
        why += [f"  {line}" for side in sides for line in _deployments(side)]
    return NotComparable(
        "\n".join(["A and B have no load point in common that can be compared.", *why]),
        do="Compare runs of the same model, precision, load format and workload. `servemark show` prints what each of them measured. To "
        "compare deployments of different shapes, give them the same name in both configurations.",
    )


def _deployments(side: Side) -> Iterator[str]:
    """Yield shape, model and load format of the deployments of a side."""
    found = list(side.deployments.values())
    for one in found[:_SHOWN]:
        shape = formatting.topology(one.topology).replace("\N{NO-BREAK SPACE}", " ").replace("\N{MULTIPLICATION SIGN}", "x")
        yield f"{side.label} {one.name}: {shape}; model {_model(one)}; load format {one.options.get('load-format') or 'auto'}"
    if len(found) > _SHOWN:
        yield f"{side.label}: and {len(found) - _SHOWN} more"
    if not found:
        yield f"{side.label}: no deployment with a plan and a model"


def _loads_apart(pair: Pair) -> Iterator[str]:
    """Yield in what the first load points of both sides differ."""
    if not (pair.a.points and pair.b.points):
        yield "one side has no load point"
        return
    one, other = min(product(pair.a.points, pair.b.points), key=lambda points: len(_asked_apart(*points)))
    differ = _asked_apart(one, other)
    if not differ:
        yield f"{one.at.workload} {one.load}: A: {'results' if one.accepted else one.why}; B: {'results' if other.accepted else other.why}"
    for name, (mine, theirs) in differ.items():
        places = (f"({of.at.workload} {of.load})" for of in (one, other))
        yield f"{name} {words(mine)} on side A {next(places)}, {words(theirs)} on side B {next(places)}"


def _asked_apart(a: SidePoint, b: SidePoint) -> dict[str, tuple[Any, Any]]:
    mine, theirs = ({name: value for part in json.loads(point.asks) for name, value in part.items()} for point in (a, b))
    return {name: (mine.get(name), theirs.get(name)) for name in dict.fromkeys((*mine, *theirs)) if mine.get(name) != theirs.get(name)}
