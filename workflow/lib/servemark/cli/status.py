"""``servemark status``: active deployments and endpoints, as a table or as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from servemark.cli.live import PURPOSES, Living
from servemark.progress import clock

COLUMNS = ("RUN", "DEPLOYMENT", "FOR", "NODES", "JOB", "SINCE", "LEFT", "REQUESTS", "STATE")
# The state is the last column and may be a whole sentence.
LONGEST_STATE = 70


def table(found: Sequence[Living], now: float) -> str:
    """Return the table; an endpoint's address has a line of its own, to be copied."""
    if not found:
        return "No active deployment or endpoint in this checkout.\n"
    rows = [COLUMNS, *(_row(one, now) for one in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    below = [
        f"{one.run} {one.deployment}: {one.url}/v1, how to use it: {one.attempt.parents[1] / 'how-to-use.txt'}"
        for one in found
        if one.url and one.attempt
    ]
    if not all(one.sure for one in found):
        below.append("? = on another host and silent for more than a minute: servemark cannot find out from here whether it is active.")
    return "\n".join([*lines, *([""] if below else []), *below]) + "\n"


def _row(one: Living, now: float) -> tuple[str, ...]:
    state = " ".join(one.state.split())
    state = state if len(state) <= LONGEST_STATE else state[: LONGEST_STATE - 3] + "..."
    return (
        one.run,
        one.deployment,
        PURPOSES[one.purpose],
        ",".join(one.nodes) if len(one.nodes) <= 2 else f"{one.nodes[0]} +{len(one.nodes) - 1}",
        one.job_id or "-",
        "-" if one.since is None else clock(now - one.since),
        "-" if one.left_s is None else clock(one.left_s),
        "-" if one.finished is None else f"{one.finished} (+{one.running} now)",
        state + ("" if one.sure else " ?"),
    )


def as_json(found: Sequence[Living]) -> str:
    """Return a list with every field; ``since`` is in UTC, ``left_s`` in seconds."""
    items = [asdict(one) for one in found]
    for item in items:
        if item["since"] is not None:
            item["since"] = datetime.fromtimestamp(item["since"], UTC).isoformat(timespec="seconds")
    return json.dumps(items, indent=2, default=str) + "\n"
