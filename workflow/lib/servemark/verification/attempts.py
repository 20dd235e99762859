"""Check that what an attempt left fits what its records state: command lines, logs, nodes, times and counts of requests."""

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from servemark import supervisor
from servemark.config.reserved import SERVE_OPTIONS, refusal
from servemark.deployment.client import shares
from servemark.deployment.readiness import KEPT
from servemark.deployment.server import SERVER
from servemark.launch.command_lines import option_arguments
from servemark.measurement.key import PLACE_OPTIONS
from servemark.records import DaemonState, LoadPoint, Measurement, Startup, Topology
from servemark.report import measured
from servemark.report.gather import RunRecords
from servemark.verification import server_log
from servemark.verification.facts import Finding, NotChecked, Stated, arguments, differ, guarded, words

_ATTEMPT = re.compile(r"results/(?P<run>[^/]+)/(?P<place>deployments/[^/]+/attempts/\d{3,9})")
_SIZES = {"tensor-parallel-size": "tensor_parallel", "pipeline-parallel-size": "pipeline_parallel", "data-parallel-size": "data_parallel"}
Span = tuple[float, float]
"""Start of the first request and end of the last, seconds on the client's monotonic clock."""


def check(found: RunRecords, spans: Mapping[tuple[str, str], Span], *, older: bool) -> Iterator[Finding]:
    """Yield every contradiction between the measurements and the attempts in which they were made.

    A measurement from the ledger of another run or machine has its attempt there. Such a measurement is compared with no attempt.

    Args:
        spans: by deployment and load point.
        older: another version sealed the archive.
    """
    yield from _repeated(found.measurements)
    made: dict[str, list[Measurement]] = {}
    known = functools.cache(lambda place: _id(found.folder / place))
    for record in found.measurements:
        if record.raw_sha256 is None:
            continue
        what = f"{record.deployment} {record.load.name}"
        yield from guarded(what, _counts(record))
        yield from guarded(what, _client(record, older))
        place = _within(found, record.attempt)
        if place is None:
            yield NotChecked(f"what ran for {what} (measured in {record.attempt}, which is not in the archive)")
        elif not record.measured_in(known(place)):
            # Another machine numbers its attempts in the same way, and so does this one after its attempts were deleted.
            yield NotChecked(f"what ran for {what} (measured in {record.attempt}, but the archive has another attempt of this name)")
        else:
            made.setdefault(place.as_posix(), []).append(record)
    for folder, records in made.items():
        yield from guarded(folder, _attempt(found, folder, records))
        yield from guarded(folder, _order(folder, records, spans))
    for name in found.plans:
        yield from guarded(f"deployments/{name}", _copies(found, name))


def _repeated(records: Sequence[Measurement]) -> Iterator[str]:
    """Yield points with the same per-request results. Only points with one ledger key share them, through the ledger."""
    first: dict[str, Measurement] = {}
    for record in records:
        if record.verdict == "INVALID" or record.raw_sha256 is None:
            continue
        other = first.setdefault(record.raw_sha256, record)
        if other.key != record.key:
            names = f"{other.deployment} {other.load.name} and {record.deployment} {record.load.name}"
            yield f"{names}: different load points have the same per-request results: raw_sha256 {record.raw_sha256}."


def _counts(record: Measurement) -> Iterator[str]:
    """Compare the replicas' counts of requests with the client's.

    A replica counts each completed request once, warm-ups included. It may count failed ones. Older clients of vLLM send one request more.
    """
    if record.verdict == "INVALID" or not record.replica_requests:
        return
    counted, warmups = sum(record.replica_requests.values()), sum(share.warmups for share in shares(record.load))
    least, most = record.completed + warmups, record.load.requests + warmups + record.load.clients
    if not least <= counted <= most:
        file = f"deployments/{record.deployment}/points/{record.load.name}.json"
        yield (
            f"{record.deployment} {record.load.name}: replica_requests: {file} states {counted} requests over all replicas, "
            f"but {record.completed} completed requests and {warmups} warm-ups."
        )


def _client(record: Measurement, older: bool) -> Iterator[str]:
    """Compare the client's command line with the load of its first process. Another version may split a load in another way."""
    share, given = shares(record.load)[0], arguments(record.client_argv)
    own = {name: values for name, values in _load_arguments(share).items() if name in given or name in share.client_options}
    if older and record.load.clients > 1:
        own = {name: values for name, values in own.items() if name == "seed"}
    file = f"deployments/{record.deployment}/points/{record.load.name}.json"
    stated = {name: given.get(name) for name in own}
    yield from differ(f"{record.deployment} {record.load.name}", Stated(f"client_argv in {file}", stated), Stated(f"load in {file}", own))


def _load_arguments(share: LoadPoint) -> dict[str, list[str]]:
    numbers = {"num-prompts": share.requests, "seed": share.seed, "num-warmups": share.warmups, "max-concurrency": share.concurrency}
    rate = {"request-rate": share.request_rate}
    return arguments([*share.prompts.client_arguments(), *option_arguments({**numbers, **rate, **share.client_options})])


def _attempt(found: RunRecords, place: str, records: Sequence[Measurement]) -> Iterator[Finding]:
    folder = found.folder / place
    daemons = {daemon.name: daemon for daemon in supervisor.read_daemons(folder)}
    servers = [daemon for name, daemon in daemons.items() if name.startswith(SERVER) and "serve" in daemon.argv]
    if not servers:
        yield f"{place}/daemons contains no server, but {records[0].deployment} {records[0].load.name} was measured in this attempt."
        return
    startup = _startup(folder)
    state = supervisor.read_state(folder)
    seen: list[Any] = []
    for record in records:
        what, parts = f"{record.deployment} {record.load.name}", record.key_parts["deployment"]
        yield from _times(record, place, servers, state.ended_at if state else None)
        if startup:
            yield from _address(record, place, startup)
        if parts in seen:
            continue
        seen.append(parts)
        for server in servers:
            yield from _served(what, record, place, server)
            yield from server_log.check(found, what, record, place, server)
        if startup:
            yield from _nodes(found, what, record, place, startup)


def _id(attempt: Path) -> str | None:
    """Return an attempt's id; None if it has none or if its state cannot be read, which later comparisons report."""
    try:
        state = supervisor.read_state(attempt)
    except (OSError, ValueError, RecursionError):
        return None
    return state.attempt_id if state else None


def _startup(attempt: Path) -> Startup | None:
    """Return the start-up record in an attempt's folder; None if no server came up.

    Raises:
        ServemarkError: it cannot be read.
    """
    return Startup.read(attempt / KEPT) if (attempt / KEPT).is_file() else None


def _times(record: Measurement, place: str, servers: Sequence[DaemonState], ended: str | None) -> Iterator[str]:
    """Compare a measurement's start and end with the life of the servers. The same machine wrote all of these times."""
    if record.started_at is None:
        return
    begin = datetime.fromisoformat(record.started_at)
    end = begin + timedelta(seconds=record.duration_s or 0.0)
    starts = [datetime.fromisoformat(server.started_at) for server in servers if server.started_at]
    ends = [datetime.fromisoformat(text) for text in (*(server.ended_at for server in servers), ended) if text]
    if (starts and begin < max(starts)) or (ends and end > min(ends)):
        life = f"from {max(starts, default=None)} to {min(ends, default=None)}"
        what = f"{record.deployment} {record.load.name}: started_at"
        yield f"{what}: {begin} to {end} is not within the life of the servers in {place}, {life}."


def _address(record: Measurement, place: str, startup: Startup) -> Iterator[str]:
    """Compare the address in the client's command line with the servers of the attempt."""
    known = [server.url for server in (*startup.servers, *((startup.router,) if startup.router else ()))]
    url = " ".join(arguments(record.client_argv).get("base-url", ()))
    if url and known and url not in known:
        file = f"deployments/{record.deployment}/points/{record.load.name}.json"
        yield f"{record.deployment} {record.load.name}: client_argv: {file} states base-url {url}, {place}/startup.json has {words(known)}."


def _served(what: str, record: Measurement, place: str, server: DaemonState) -> Iterator[str]:
    """Compare a server's command line with the options and the topology in the ledger key."""
    parts, topology = record.key_parts["deployment"], Topology.model_validate(measured.topology(record))
    given = arguments(server.argv[server.argv.index("serve") :])
    wanted = arguments(option_arguments(parts["options"]))
    own = {name for name in given if name not in PLACE_OPTIONS and (name == "trust-remote-code" or not refusal(name, SERVE_OPTIONS))}
    names = (own | wanted.keys()) - ({"api-server-count"} if "headless" in given else set())
    argv, key = f"argv in {place}/daemons/{server.name}.json", "key_parts of the record"
    # A key may hold the digest of a file that an option names. Of such an option, only its presence is compared.
    by_content = {name for name, values in wanted.items() if any("sha256:" in value for value in values)}
    sides = ({name: [] if name in by_content else side[name] for name in sorted(names) if name in side} for side in (given, wanted))
    stated, asked = sides
    yield from differ(f"{what}: options", Stated(argv, stated), Stated(key, asked))
    sizes = {name: int((given.get(name) or ["1"])[0]) for name in _SIZES}
    yield from differ(
        f"{what}: topology", Stated(argv, sizes), Stated(key, {name: getattr(topology, part) for name, part in _SIZES.items()})
    )


def _nodes(found: RunRecords, what: str, record: Measurement, place: str, startup: Startup) -> Iterator[str]:
    """Compare the nodes of an attempt with the hardware and the environment in the ledger key."""
    parts, file = record.key_parts["deployment"], f"{place}/startup.json"
    topology = Topology.model_validate(measured.topology(record))
    checks = [check for check in found.checks.values() if check.digest == parts["environment"]]
    if startup.nodes and len(startup.nodes) != topology.all_nodes:
        yield f"{what}: nodes: {file} states {len(startup.nodes)} nodes, key_parts of the record {topology.all_nodes}."
    servers = startup.nodes[: topology.nodes]
    # One node with another kernel or C library is a warning, if another node has the one in the key (deployment/node_checks.py).
    warned = {name for name in ("kernel", "glibc") if any(node.kind.get(name) == parts["hardware"].get(name) for node in servers)}
    for node in servers:
        # What the probe could not see is not in the key.
        stated_of_key = {name: value for name, value in parts["hardware"].items() if value is not None and name not in warned}
        hardware = Stated("key_parts of the record", stated_of_key)
        yield from differ(f"{what}: node {node.name}: hardware", Stated(file, node.kind), hardware, common=True)
        for check in checks:
            # A node states the version of the installed package, 0.32.0+cpu; the check that of the module, 0.32.0.
            stated, versions = ({name: server_log.public(getattr(of, name)) for name in ("vllm", "ray")} for of in (node, check))
            there = Stated(f"environments/{check.name}/check.json", versions)
            yield from differ(f"{what}: node {node.name}", Stated(file, stated), there)


def _order(place: str, records: Sequence[Measurement], spans: Mapping[tuple[str, str], Span]) -> Iterator[str]:
    """Compare the clock of the requests with the order of the measurements: the load points of an attempt run one after another."""
    timed = [(record, span) for record in records if (span := spans.get((record.deployment, record.load.name))) and record.started_at]
    timed.sort(key=lambda item: datetime.fromisoformat(str(item[0].started_at)))
    for (before, (_, end)), (record, (start, _)) in itertools.pairwise(timed):
        if before.client_node == record.client_node and before.key != record.key and start < end:
            names = f"{before.deployment} {before.load.name} and {record.deployment} {record.load.name}"
            why = f"the points of {place} run one after another"
            yield f"{names}: start_times in their per-request results contradict their started_at: {why}."


def _copies(found: RunRecords, name: str) -> Iterator[str]:
    """Compare the records that repeat an attempt's files with these."""
    startup, stopped = found.startups.get(name), found.stopped.get(name)
    place = f"deployments/{name}"
    if startup and (folder := _within(found, startup.attempt)) and (noted := _startup(found.folder / folder)):
        own = Stated(f"{folder}/startup.json", noted.model_dump())
        yield from differ(f"{name}: start-up", Stated(f"{place}/startup.json", startup.model_dump()), own)
    if stopped and (folder := _within(found, stopped.attempt)):
        daemons = {daemon.name: daemon.model_dump() for daemon in supervisor.read_daemons(found.folder / folder)}
        ended = {daemon.name: daemon.model_dump() for daemon in stopped.daemons}
        yield from differ(f"{name}: processes", Stated(f"{place}/stopped.json", ended), Stated(f"{folder}/daemons", daemons))


def _within(found: RunRecords, attempt: str | None) -> Path | None:
    """Return the folder of an attempt in the archive; None if it is not there."""
    matched = _ATTEMPT.fullmatch(attempt or "")
    there = matched is not None and matched["run"] == found.run and (found.folder / matched["place"]).is_dir()
    return Path(matched["place"]) if matched and there else None
