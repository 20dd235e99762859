"""What the benchmark client's processes did: when each was active, how busy it was, and whether it kept the request rate.

A process is active for its duration, which ends with its last request. In a closed loop it begins with the first start
(:mod:`servemark.measurement.merge`). At a request rate the duration is that of vLLM's client (``benchmark_duration`` in
vllm/benchmarks/serve.py, 0.32), which includes the wait for the first arrival. If a request failed, the first start counts as the
beginning, because not every vLLM version records when a failed request ended.

vLLM's client scales its random arrivals so that the last of n requests is due n / rate after the beginning (``get_request`` in the same
file; vllm-project/vllm pull request 21108, July 2025). So randomness does not explain a low rate. A request is late if it waits for the
concurrency limit or if the client is busy. Its start is taken after this wait, so latencies do not include it. A limit that is reached only
at times does not lower the rate; its waits are known only if the client records them (``queue_times``: 0.32 does, 0.25 does not).
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from servemark.measurement.raw import Client, RawResult, Results
from servemark.measurement.reasons import reason
from servemark.measurement.statistics import disagreements, recount, same
from servemark.measurement.thresholds import Verdict
from servemark.records import LoadPoint, Reason

WINDOW_S = 5.0
"""Time over which a process must be busy to count as busy: bursts of a second or two are the start of a load, or one garbage collection."""
BUSY_SHARE = 0.1
"""Share of a measurement in busy windows that a process may have (``min_client_overlap`` allows the same share of another load)."""
SILENT_S = 2.5
"""Seconds between two samples from which on one was left out."""
SAMPLED_S = 4.0
"""Seconds from which on a measurement has enough samples of its CPU time: one a second, less one at each end."""
KNOWN_SHARE = 0.5
"""Share of a measurement that CPU samples must cover. One is taken each second; seen: all of them in 13 measurements."""
FREE_WAIT_S = 0.005
"""Mean wait in the client that counts as no wait (``client_free_wait`` in planning/advice.yaml)."""


def window(client: Results) -> tuple[float, float] | None:
    """Return first and last moment of a process's measurement, on the clock of its requests; None if it lists no request."""
    if not client.requests:
        return None
    begin = min(request.start for request in client.requests)
    if len(client.good) == len(client.requests):
        begin = min(begin, max(request.start + request.latency for request in client.good) - client.duration_s)
    return begin, begin + client.duration_s


def wall_window(raw: RawResult) -> tuple[float, float] | None:
    """Return first and last moment of the load in seconds since 1970; None if the file does not relate the two clocks."""
    windows = [found for found in map(window, raw.clients or (raw,)) if found]
    if raw.clock is None or not windows:
        return None
    moment, wall = raw.clock
    return min(begin for begin, _ in windows) - moment + wall, max(end for _, end in windows) - moment + wall


def span_s(clients: Sequence[Client]) -> float:
    """Return seconds from the first moment of any process to the last moment of any; for one process its own duration."""
    windows = [found for found in map(window, clients) if found]
    if len(clients) == 1 or not windows:
        return max(client.duration_s for client in clients)
    return max(end for _, end in windows) - min(begin for begin, _ in windows)


def overlap_s(clients: Sequence[Client]) -> float:
    """Return seconds during which every process was active."""
    windows = [window(client) or (0.0, 0.0) for client in clients]
    return max(0.0, min(end for _, end in windows) - max(begin for begin, _ in windows))


def cpu_cores(client: Client) -> float | None:
    """Return the cores that a process used, from the first to the last sample of its measurement; None with fewer than two samples."""
    samples = _samples(client)
    if len(samples) < 2 or samples[-1][0] <= samples[0][0]:
        return None
    return (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])


def busy_share(client: Client, limit: float) -> float:
    """Return the share of the process's measurement in windows of ``WINDOW_S`` during which it used more than ``limit`` cores."""
    samples = _samples(client)
    busy, until, end = 0.0, -math.inf, 0
    for begin in samples:
        while end < len(samples) and samples[end][0] - begin[0] < WINDOW_S:
            end += 1
        if end == len(samples):
            break
        last = samples[end]
        if last[1] - begin[1] > limit * (last[0] - begin[0]):
            busy += last[0] - max(begin[0], until)
            until = last[0]
    return busy / client.duration_s


def cpu_known(client: Client) -> bool:
    """Return whether samples cover enough of the measurement, and the CPU time grew."""
    samples = _samples(client)
    if len(samples) < 2 or samples[-1][1] <= samples[0][1]:
        return False
    # Two samples further apart than two are due were not taken, for example because the job was suspended.
    covered = sum(later[0] - earlier[0] for earlier, later in pairwise(samples) if later[0] - earlier[0] < SILENT_S)
    return covered >= KNOWN_SHARE * client.duration_s


def _samples(client: Client) -> list[tuple[float, float]]:
    begin, end = window(client) or (0.0, 0.0)
    return [sample for sample in client.cpu if begin <= sample[0] <= end]


def busiest(clients: Sequence[Client]) -> tuple[int, float] | None:
    """Return number (from 1) and cores of the process that used most; None if no process has samples."""
    known = [(cores, number) for number, client in enumerate(clients, 1) if (cores := cpu_cores(client)) is not None]
    return max(known)[::-1] if known else None


def own_disagreements(raw: RawResult) -> list[str]:
    """Return the totals of processes that differ from their own requests, or from the whole file.

    Raises:
        ValueError: impossible times.
    """
    found = [
        f"{text} in client process {number}"
        for number, client in enumerate(raw.clients, 1)
        for text in disagreements(client, recount(client.duration_s, client.good))
    ]
    if raw.clients and not same(ours := span_s(raw.clients), raw.duration_s):
        found.append(f"duration {raw.duration_s:g} (recounted {ours:g})")
    return found


def reasons(clients: Sequence[Client], duration_s: float, limits: Verdict) -> Iterator[Reason]:
    """Yield why the client itself may have shaped the results. ``duration_s``: of the whole measurement, more than 0."""
    most = busiest(clients)
    if most and most[1] > limits.max_client_cpu:
        detail = (
            f"Client process {most[0]} of {len(clients)} used {most[1]:.0%} of a core during the measurement, more than "
            f"{limits.max_client_cpu:.0%}. It sent and read late, so the results include its own delays. Raise `clients` of the workload."
        )
        yield reason("client_saturated", detail)
    else:
        shares = [busy_share(client, limits.max_client_cpu) for client in clients]
        if shares and max(shares) > BUSY_SHARE:
            detail = (
                f"Client process {shares.index(max(shares)) + 1} of {len(clients)} used more than {limits.max_client_cpu:.0%} of a core "
                f"during {max(shares):.0%} of the measurement. It sent and read late then. Raise `clients` of the workload."
            )
            yield reason("client_saturated_at_times", detail)
    unknown = [client for client in clients if client.duration_s >= SAMPLED_S and not cpu_known(client)]
    if unknown:
        yield reason(
            "client_cpu_unknown", f"The CPU time of {len(unknown)} of {len(clients)} client processes was not sampled, or stood still."
        )
    if len(clients) > 1 and (together := overlap_s(clients)) < limits.min_client_overlap * duration_s:
        detail = (
            f"All {len(clients)} client processes were active for {together:.2f} s of {duration_s:.2f} s ({together / duration_s:.0%}); "
            f"expected at least {limits.min_client_overlap:.0%}. The rest of the time the load was smaller than configured. "
            "Raise `requests`: that time then weighs less."
        )
        yield reason("clients_out_of_step", detail)


def sent_per_s(clients: Sequence[Results]) -> float:
    """Return the requests/s of all processes together, each from its beginning to its last start."""
    rates = []
    for client in clients:
        if found := window(client):
            seconds = max(request.start for request in client.requests) - found[0]
            # 0 s: a single request whose beginning is not known.
            rates.append(len(client.requests) / seconds if seconds > 0 else math.inf)
    return math.fsum(rates)


def rate_reasons(raw: RawResult, load: LoadPoint, limits: Verdict) -> Iterator[Reason]:
    """Yield ``rate_not_kept`` if the client sent fewer requests/s than configured, or if requests waited in the client."""
    rate = load.request_rate
    if rate is None or not math.isfinite(rate) or not raw.good:
        return
    sent = sent_per_s(raw.clients or (raw,))
    waits = [request.waited for request in raw.good if request.waited is not None]
    waited = math.fsum(waits) / len(waits) if waits else None
    ttft = math.fsum(request.ttft for request in raw.good) / len(raw.good)
    slow = sent < rate * (1 - limits.max_rate_deviation)
    if not slow and (waited is None or waited <= max(FREE_WAIT_S, limits.max_rate_deviation * ttft)):
        return
    detail = f"{rate:g} requests/s were configured and {float(f'{sent:.4g}'):g} were sent"
    detail += f" ({1 - sent / rate:.0%} fewer)" if slow else ""
    if waited is not None:
        detail += f". A request waited {1000 * waited:.0f} ms on average in the client before it was sent (mean TTFT: {1000 * ttft:.0f} ms)"
    limit = f"raise `concurrency`, which limits the rate and is {load.concurrency}; " if load.concurrency else ""
    detail += (
        ". Latencies do not include such waits, so these are not the results of the configured load. One of these helps: "
        f"{limit}raise `clients` of the workload; lower `request_rate`."
    )
    yield reason("rate_not_kept", detail)
