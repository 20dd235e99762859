"""The rows of the live display: one for the run, one for each active stage."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from servemark.display.run_state import Row, RunState
from servemark.progress import clock

# Wider rows are no easier to read.
WIDTH = 120
# The longest name of a stage.
STAGE_WIDTH = 18
# A stage on a node writes every few seconds; shared file systems delay that by up to 30 s.
SILENT_S = 60.0
# They write seldom: a served endpoint every 10 minutes.
QUIET_STAGES = frozenset({"queue", "hold_endpoint"})


def render(state: RunState, run: str, begin: float, now: float, size: Sequence[int]) -> RenderableType:
    """Return the rows, as many as half of the terminal holds.

    Args:
        begin: start of the run, seconds since 1970.
        size: columns and lines of the terminal.
    """
    width, most = min(size[0], WIDTH), max(1, size[1] // 2 - 2)
    # Deployments that measure come first.
    rows = sorted(state.rows.values(), key=lambda row: (row.point is None, row.stage == "queue", row.subject))
    table = Table.grid(padding=(0, 2))
    table.width = width
    for least, ratio in ((8, None), (None, None), (None, 1), (7, None)):
        table.add_column(no_wrap=True, overflow="ellipsis", min_width=least, max_width=None if ratio else STAGE_WIDTH, ratio=ratio)
    for row in rows[:most]:
        table.add_row(Text(row.subject, "bold"), row.stage, Text(_words(row, now)), clock(now - row.since))
    hidden = len(rows) - most
    more = [Text(f"and {hidden} more active stages", "dim")] if hidden > 0 else []
    return Group(_headline(state, run, begin, now, width), table, *more)


def _headline(state: RunState, run: str, begin: float, now: float, width: int) -> RenderableType:
    words = f"{len(state.finished)} of {state.total} load points"
    if state.from_ledger:
        words += f" ({state.from_ledger} from the ledger)"
    words += f", {clock(now - begin)} elapsed"
    left = state.left_s(now)
    if left is not None and len(state.finished) < state.total:
        words += f", about {clock(left)} left"
    line = Table.grid(padding=(0, 2))
    line.width = width
    line.add_column(no_wrap=True)
    line.add_column(width=20)
    line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    line.add_row(Text(run, "bold"), ProgressBar(total=max(state.total, 1), completed=len(state.finished), width=20), words)
    return line


def _words(row: Row, now: float) -> str:
    text = point_words(row.point) if row.point and row.point["phase"] != "finished" else row.text
    silent = now - row.heard
    return f"{text} (no update for {silent:.0f} s)" if silent > SILENT_S and row.stage not in QUIET_STAGES else text


def point_words(point: Mapping[str, Any]) -> str:
    """Return the state of a load point in a row."""
    if point["phase"] == "starting the client":
        return f"{point['name']}: starting the client"
    if point["phase"] == "warm-up":
        return f"{point['name']}: warm-up, {point['finished']} of {point['warmups']} requests"
    words = [f"{point['name']}: {point['finished']} of {point['requests']} requests"]
    if "tokens_per_s" in point:
        words.append(f"{point['tokens_per_s']:,.0f} output tokens/s")
    if "ttft_ms" in point:
        words.append(f"TTFT {point['ttft_ms']:,.0f} ms")
    return ", ".join(words)
