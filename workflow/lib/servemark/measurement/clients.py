"""The processes of the benchmark client: when each was at work, how busy it was, and what that means for the figures.

A process is at work for its duration, which ends with its last request. In a closed loop it begins with the first start
(:mod:`servemark.measurement.merge`). At a request rate it is that of vLLM's client (``benchmark_start_time`` and ``benchmark_duration`` in
vllm/benchmarks/serve.py, 0.32) and begins earlier: the wait for the first arrival counts. The first start counts as the beginning where a
request failed, because not every vLLM writes down when that ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from servemark.measurement.raw import Client, RawResult, Results
from servemark.measurement.reason_row import rows
from servemark.measurement.statistics import disagreements, recount, same
from servemark.measurement.thresholds import Verdict
from servemark.records import Reason

ROWS = rows("SUSPECT",
    client_saturated=("A client process used nearly a whole core, so its times include its own delays.",
        "Have more `clients` share the load."),
    clients_out_of_step=("The client processes did not send requests at the same time.",
        "Raise `requests`, so that the point takes longer than the start of the clients."),
)  # fmt: skip


def window(client: Results) -> tuple[float, float] | None:
    """Return first and last moment of a process's measurement, on the clock of its requests; None when it lists no request."""
    if not client.requests:
        return None
    begin = min(request.start for request in client.requests)
    # A failed request does not say when it ended, so the last end is known only without one.
    if len(client.good) == len(client.requests):
        begin = min(begin, max(request.start + request.latency for request in client.good) - client.duration_s)
    return begin, begin + client.duration_s


def span_s(clients: Sequence[Client]) -> float:
    """Return seconds from the first moment of any process to the last of any; with one process its own duration."""
    windows = [found for found in map(window, clients) if found]
    if len(clients) == 1 or not windows:
        return max(client.duration_s for client in clients)
    return max(end for _, end in windows) - min(begin for begin, _ in windows)


def overlap_s(clients: Sequence[Client]) -> float:
    """Return seconds during which every process was at work."""
    windows = [found or (0.0, 0.0) for found in map(window, clients)]
    return max(0.0, min(end for _, end in windows) - max(begin for begin, _ in windows))


def cpu_cores(client: Client) -> float | None:
    """Return cores that a process used between the first and the last sample of its measurement; None with less than two."""
    inside = window(client) or (0.0, 0.0)
    samples = [sample for sample in client.cpu if inside[0] <= sample[0] <= inside[1]]
    if len(samples) < 2 or samples[-1][0] <= samples[0][0]:
        return None
    return (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])


def busiest(clients: Sequence[Client]) -> tuple[int, float] | None:
    """Return number (from 1) and cores of the process that used most; None where that is known of none."""
    known = [(cores, number) for number, client in enumerate(clients, 1) if (cores := cpu_cores(client)) is not None]
    return max(known)[::-1] if known else None


def own_disagreements(raw: RawResult) -> list[str]:
    """Return which totals of the processes differ from their own requests or from the whole file; ValueError: impossible times."""
    found = [
        f"{text} in client process {number}"
        for number, client in enumerate(raw.clients, 1)
        for text in disagreements(client, recount(client.duration_s, client.good))
    ]
    if raw.clients and not same(ours := span_s(raw.clients), raw.duration_s):
        found.append(f"duration {raw.duration_s:g} (ours {ours:g})")
    return found


def reasons(clients: Sequence[Client], duration_s: float, limits: Verdict) -> Iterator[Reason]:
    """Yield why the client itself may have shaped the results. ``duration_s``: of the whole measurement, more than 0."""
    most = busiest(clients)
    if most and most[1] > limits.max_client_cpu:
        detail = (
            f"Client process {most[0]} of {len(clients)} used {most[1]:.0%} of a core while it measured, more than "
            f"{limits.max_client_cpu:.0%}: it sent and read late, so the figures are partly its own. Give the workload more `clients`."
        )
        yield ROWS["client_saturated"].found(detail)
    if len(clients) > 1 and (together := overlap_s(clients)) < limits.min_client_overlap * duration_s:
        detail = (
            f"All {len(clients)} client processes were at work during {together:.2f} s of {duration_s:.2f} s "
            f"({together / duration_s:.0%}; {limits.min_client_overlap:.0%} asked): otherwise the load was a smaller one. "
            "More `requests` make what lies outside weigh less."
        )
        yield ROWS["clients_out_of_step"].found(detail)
