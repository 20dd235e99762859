"""``servemark status``: what lives, as a plain table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from servemark.cli.live import Living

COLUMNS = ("RUN", "DEPLOYMENT", "FOR", "NODES", "JOB", "SINCE", "LEFT", "REQUESTS", "STATE")
# The state is the last column and may be a whole sentence.
LONGEST_STATE = 70


def table(found: Sequence[Living], now: float) -> str:
    """Return the table; an endpoint's address stands in a line of its own, to be copied."""
    if not found:
        return "Nothing lives in this checkout.\n"
    rows = [COLUMNS, *(_row(one, now) for one in found)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(COLUMNS))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    below = [
        f"{one.run} {one.deployment}: {one.url}/v1, {how}"
        for one in found
        if one.url and one.attempt and (how := f"how to use it: {one.attempt.parents[1] / 'how-to-use.txt'}")
    ]
    if not all(one.sure for one in found):
        below.append("? = on another host and silent for a while: whether it lives cannot be said from here.")
    return "\n".join([*lines, *([""] if below else []), *below]) + "\n"


def _row(one: Living, now: float) -> tuple[str, ...]:
    return (
        one.run,
        one.deployment,
        {"measured": "measuring", "held": "use", "queued": "-"}[one.purpose],
        _nodes(one.nodes),
        one.job_id or "-",
        "-" if one.since is None else clock(now - one.since),
        "-" if one.left_s is None else clock(one.left_s),
        "-" if one.finished is None else f"{one.finished} (+{one.running} now)",
        _cut(one.state) + ("" if one.sure else " ?"),
    )


def _nodes(names: Sequence[str]) -> str:
    return ",".join(names) if len(names) <= 2 else f"{names[0]} +{len(names) - 1}"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_STATE else line[: LONGEST_STATE - 3] + "..."


def clock(seconds: float) -> str:
    """Return ``H:MM:SS``."""
    whole = max(0, int(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def as_json(found: Sequence[Living]) -> str:
    """Return a list with every field; times in UTC, ``left_s`` in seconds, ``sure`` false where nothing can be said from here."""

    def plain(value: object) -> object:
        return str(value) if isinstance(value, Path) else value

    items = []
    for one in found:
        item = {name: plain(value) for name, value in asdict(one).items()}
        if one.since is not None:
            item["since"] = datetime.fromtimestamp(one.since, UTC).isoformat(timespec="seconds")
        items.append(item)
    return json.dumps(items, indent=2) + "\n"
