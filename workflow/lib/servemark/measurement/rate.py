"""Whether a request rate was kept: when requests were sent, against what was asked.

vLLM's client draws all arrivals beforehand and stretches them so that the last of n is due n / rate after it began, whatever the
randomness of the gaps (vllm/benchmarks/serve.py, ``get_request``, 0.32.0; vllm-project/vllm pull request 21108, of July 2025: before it, a
client on one core sent up to 9 % fewer). So neither number nor burstiness of the requests is an excuse. What holds a request up is that it
waits for a place below the upper limit of the concurrency (the semaphore in ``benchmark``), or that the client is busy. Its start is taken
after that, so no latency holds the wait, and a server that is asked later looks better than it is.

A limit that is reached all the time makes the last start late. One that is reached now and then does not, and its waits are known only
where the client writes them down (``queue_times``: 0.32 does, 0.25 does not).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from servemark.measurement.clients import window
from servemark.measurement.raw import RawResult, Results
from servemark.measurement.reason_row import rows
from servemark.measurement.thresholds import Verdict
from servemark.records import LoadPoint, Reason

FREE_WAIT_S = 0.005
"""Mean wait up to which nothing held requests up (``client_free_wait`` in planning/advice.yaml)."""


ROWS = rows("SUSPECT",
    rate_not_kept=("The client sent requests more slowly than `request_rate`.",
        "Raise `concurrency`, the upper limit of the rate, have more `clients` share the load, or lower `request_rate`."),
)  # fmt: skip


def sent_per_s(clients: Sequence[Results]) -> float:
    """Return the requests/s of all processes, each from its beginning to its last start: each has its share of the load."""
    rates = []
    for client in clients:
        if found := window(client):
            seconds = max(request.start for request in client.requests) - found[0]
            # A single request whose beginning is not known (see ``clients``).
            rates.append(len(client.requests) / seconds if seconds > 0 else math.inf)
    return math.fsum(rates)


def waited_s(raw: Results) -> float | None:
    """Return mean seconds that completed requests waited in the client; None where it did not write them down."""
    waits = [request.waited for request in raw.good if request.waited is not None]
    return math.fsum(waits) / len(waits) if waits else None


def reasons(raw: RawResult, asked: LoadPoint, limits: Verdict) -> Iterator[Reason]:
    """Yield why the figures are those of another load than the rate that was asked for."""
    rate = asked.request_rate
    if rate is None or not math.isfinite(rate) or not raw.good:
        return
    sent, waited = sent_per_s(raw.clients or (raw,)), waited_s(raw)
    ttft = math.fsum(request.ttft for request in raw.good) / len(raw.good)
    slow = sent < rate * (1 - limits.max_rate_deviation)
    if not slow and (waited is None or waited <= max(FREE_WAIT_S, limits.max_rate_deviation * ttft)):
        return
    detail = f"{rate:g} requests/s were asked for and {float(f'{sent:.4g}'):g} were sent"
    detail += f" ({1 - sent / rate:.0%} fewer)" if slow else ""
    if waited is not None:
        detail += f"; before it was sent a request waited {1000 * waited:.0f} ms in the client (mean TTFT: {1000 * ttft:.0f} ms)"
    limit = f"raise `concurrency`, the upper limit, which is {asked.concurrency}; " if asked.concurrency else ""
    detail += (
        ". No latency holds such a wait, so the figures are those of another load. Ways out: "
        f"{limit}give the workload more `clients`; ask for a lower `request_rate`."
    )
    yield ROWS["rate_not_kept"].found(detail)
