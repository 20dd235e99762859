"""One attempt of a deployment: why it failed, where it ran, who joined, what each log says first, how each process ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from servemark import supervisor
from servemark.cli.live import MEASURED
from servemark.deployment import attempts
from servemark.deployment.fabric import transports
from servemark.deployment.server import SERVER
from servemark.diagnosis import diagnose, first_errors, root_error, warnings
from servemark.diagnosis.text import stream
from servemark.errors import ServemarkError
from servemark.records import DaemonState, Fabric, Failure
from servemark.run.serve import FOLDER as SERVING
from servemark.security.redaction import Quoting
from servemark.supervisor import salvage

# Newest failed attempts of each deployment, besides the latest one.
FAILED = 3
FIRST_LINES, LAST_LINES, FACT_LINES = 12, 25, 40
# How a server began: its versions, options and first words. A log's own beginning is what support asks for first.
BEGINNING_LINES = 40
LOGS = 40
STAGES = ("start_cluster", "check_fabric", "serve_model", "await_ready", "hold_endpoint", "stop_deployment")


def folders(run_folder: Path) -> list[Path]:
    """Return folders of deployments that were started, measured ones and endpoints; those that failed first."""
    found = [path for part in (MEASURED, SERVING) for path in sorted((run_folder / part).glob("*"))]
    started = [path for path in found if attempts.latest(path)]
    return sorted(started, key=lambda path: _failure(attempts.every(path)[-1]) is None)


def chosen(folder: Path) -> list[Path]:
    """Return the latest attempt and the newest failed ones, newest first."""
    every = attempts.every(folder)[::-1]
    failed = [attempt for attempt in every[1:] if _failure(attempt)]
    return [*every[:1], *failed[:FAILED]]


def kind(folder: Path) -> str:
    """Return what it was started for, in a word."""
    return "endpoint" if folder.parent.name == SERVING else "deployment"


def overview(folder: Path) -> str:
    """Return one line about a deployment."""
    every = attempts.every(folder)
    failed = sum(_failure(attempt) is not None for attempt in every)
    failure = _failure(every[-1])
    latest = f"the latest failed: {failure.reason} in {failure.stage}" if failure else "the latest did not fail"
    return f"{kind(folder)} {folder.name}: {len(every)} attempt(s), {failed} failed; {latest}"


def section(run_folder: Path, folder: Path, attempt: Path, quoting: Quoting) -> list[str]:
    """Return everything about one attempt."""
    return [
        *_why(attempt, quoting),
        *_keeper(attempt),
        "",
        "Nodes and addresses",
        *(quoting.lines(_nodes(attempt), FACT_LINES) or ["    not recorded"]),
        "Ray's nodes, as Ray reported them",
        *(quoting.lines(_ray_nodes(attempt), FACT_LINES) or ["    none"]),
        "Transport between ranks",
        *(quoting.lines(_transport(run_folder, folder, attempt), FACT_LINES) or ["    nothing recorded"]),
        "Processes: how each ended, and its command line",
        *(quoting.lines(_daemons(attempt), FACT_LINES) or ["    none was started"]),
        *_logs(run_folder, folder, attempt, quoting),
    ]


def _failure(attempt: Path) -> Failure | None:
    try:
        return attempts.noted_failure(attempt)
    except ValueError:
        return None


def _why(attempt: Path, quoting: Quoting) -> list[str]:
    failure = _failure(attempt)
    if failure is None:
        return ["No failure is noted."]
    return [
        f"FAILED in {failure.stage}: {failure.reason}",
        *quoting.lines(failure.detail.splitlines(), FIRST_LINES),
        *quoting.lines(failure.quote, FIRST_LINES, "    | "),
        *quoting.lines([f"remedy: {failure.remedy or '-'}", f"log: {failure.log or '-'}"], 4),
    ]


def _keeper(attempt: Path) -> list[str]:
    try:
        state = supervisor.read_state(attempt)
    except ValueError as error:
        return [f"keeper.json cannot be read: {str(error).splitlines()[0]}"]
    if state is None:
        return ["The keeper said nothing."]
    left = f"; had to be killed: {', '.join(state.leftovers)[:1000]}" if state.leftovers else ""
    return [
        f"keeper {state.identity}, {state.owner or 'no owner'}: {state.state}, why: {state.why or '-'}, ended {state.ended_at or '-'}{left}"
    ]


def _nodes(attempt: Path) -> Iterator[str]:
    for path in sorted((attempt / "survey" / "look").glob("*.json")):
        answer = _json(path)
        node = answer.get("node") or {}
        if node:
            wanted = (
                "name",
                "host",
                "address",
                "interface",
                "devices",
                "cpu_count",
                "memory_gib",
                "shm_gib",
                "python",
                "vllm",
                "ray",
            )
            yield ", ".join(f"{key} {node.get(key)}" for key in wanted)
            yield from (f"  ended there before the start: {words}" for words in node.get("leftovers", ()))
        if answer.get("failure"):
            yield f"{path.stem}: {answer['failure'].get('detail')}"
    for path in sorted((attempt / "requests").glob("*.place.json")):
        place = _json(path)
        yield f"{path.name.removesuffix('.place.json')}: host {place.get('host')}, pid {place.get('pid')}"


def _ray_nodes(attempt: Path) -> Iterator[str]:
    for path in sorted(attempt.glob("*.nodes.json")):
        facts = _json(path)
        for node in facts.get("nodes") or ():
            yield f"{path.name.removesuffix('.nodes.json')}: " + ", ".join(f"{key} {value}" for key, value in node.items())
        yield from (f"MISSING: {words}" for words in facts.get("missing") or ())


def _transport(run_folder: Path, folder: Path, attempt: Path) -> Iterator[str]:
    try:
        fabric = Fabric.read(folder / "fabric.json")
    except ServemarkError:
        fabric = None
    if fabric and fabric.needed and Path(fabric.attempt or "").name == attempt.name:
        yield f"check_fabric: {fabric.backend}, {fabric.ranks} ranks, bus {fabric.bus_gib_per_s} GiB/s, {fabric.seconds} s a reduction"
        yield from (f"check_fabric: {words}" for words in (*fabric.transport, *fabric.interfaces))
    elif fabric and not fabric.needed:
        yield "one node: nothing was checked"
    for log in (*_attempt_logs(attempt), *_stage_logs(run_folder, folder, ("check_fabric",))):
        text = _text(log)
        named = transports(text)
        said = [line.strip() for line in text.splitlines() if "NCCL WARN" in line or "NCCL version" in line]
        yield from (f"{log.name}: {words}" for words in (*named[:10], *dict.fromkeys(said[:10])))


def _daemons(attempt: Path) -> Iterator[str]:
    try:
        daemons: tuple[DaemonState, ...] = supervisor.read_daemons(attempt)
    except ValueError as error:
        yield f"cannot be read: {str(error).splitlines()[0]}"
        return
    for daemon in daemons:
        yield f"{attempts.how_it_ended(daemon)}; started {daemon.started_at}, ended {daemon.ended_at or '-'}, why {daemon.why or '-'}"
        yield f"  {' '.join(daemon.argv)}"


def _logs(run_folder: Path, folder: Path, attempt: Path, quoting: Quoting) -> Iterator[str]:
    """Yield what each log says first that went wrong; of a failed attempt also its last lines."""
    failed = _failure(attempt) is not None
    latest = attempts.latest(folder) == attempt
    logs = [*_attempt_logs(attempt), *(_stage_logs(run_folder, folder, STAGES) if latest else [])]
    for log in logs[:LOGS]:
        if not log.exists() or log.stat().st_size == 0:
            continue
        yield ""
        yield f"{log} ({log.stat().st_size} bytes)"
        found = diagnose(log, stop_requested=not failed)
        if found:
            yield from quoting.lines([f"cause: {found.cause}", f"remedy: {found.remedy}"], 4)
        quote = found.quote if found else (root_error(log) if failed else ())
        if quote:
            yield "  first error:"
            yield from quoting.lines(quote, FIRST_LINES, "    | ")
        for warning in warnings(log)[:5]:
            yield from quoting.lines([f"warning: {warning.cause} ({warning.remedy})"], 2)
        if failed or log.name.startswith(SERVER):
            yield "  first lines:"
            yield from quoting.lines(_first(log, BEGINNING_LINES), BEGINNING_LINES, "    > ")
        if failed:
            yield "  last lines:"
            yield from quoting.tail(log, LAST_LINES, "    > ")
    if len(logs) > LOGS:
        yield f"({len(logs) - LOGS} more logs are not shown)"
    for where in sorted(attempt.glob("*.kept")):
        yield from _kept(where, quoting)


def _kept(where: Path, quoting: Quoting) -> Iterator[str]:
    """Yield the first errors in what was kept of a process that ended by itself."""
    files = salvage.files(where)
    yield ""
    yield f"{where} ({len(files)} file(s) that {where.stem} left on its node)"
    for path in files:
        found = diagnose(path)
        if found:
            yield from quoting.lines([f"{path.name}: cause: {found.cause}", f"remedy: {found.remedy}"], 4)
        if quote := found.quote if found else first_errors([path]):
            yield f"  first error in {path.name}:"
            yield from quoting.lines(quote, FIRST_LINES, "    | ")


def _attempt_logs(attempt: Path) -> list[Path]:
    return sorted(attempt.glob("*.log"))


def _stage_logs(run_folder: Path, folder: Path, stages: tuple[str, ...]) -> list[Path]:
    roots = (run_folder / "logs" / folder.parent.name, run_folder / "logs")
    paths = (root / stage / f"{folder.name}.log" for stage in stages for root in roots)
    return [path for path in paths if path.exists()]


def _first(log: Path, most: int) -> list[str]:
    with open(log, errors="replace") as handle:
        return list(stream(handle.read(1 << 16)))[:most]


def _text(log: Path, most: int = 4 << 20) -> str:
    """Return the beginning of a log: transports are named while ranks connect."""
    with open(log, errors="replace") as handle:
        return handle.read(most)


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
