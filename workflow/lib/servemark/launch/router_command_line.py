"""Command line and variables of the router in front of several replicas, or of the engines of one.

Every address asks for the deployment's API key on every route: replicas by a middleware of ours
(``in_model_env/doors/servemark_require_key.py``), the router by its own check, which ``in_model_env/run_router.py`` turns on.
Start order: all replicas until they are ready, then the router, then at once one request with the key through it. The router keeps
its first verdict on a key for its whole life, a wrong one too when no replica could be asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from servemark.environments.build import IN_MODEL_ENV
from servemark.launch.command_lines import NO_PROXY
from servemark.records.topology import ROUTER_POLICIES, PolicyName

# A route that the router answers itself: 401 without the key is its own check, 200 would be a router without one.
DOOR_TEST = "/liveness"
# The core holds a threshold in 32 bits; so many failed health checks never come together.
_NEVER = 2**32 - 1
# The longest prompts we send have far less; the default of 512 MiB is read and parsed before the key is looked at.
_MAX_PAYLOAD_BYTES = 64 * 2**20


def router(
    python: str, workers: Sequence[str], host: str, port: int, metrics_port: int, engines: int = 1, routing: PolicyName = "round_robin"
) -> list[str]:
    """Return vllm-router for replicas that are ready, or for each of their data parallel engines.

    It names the engine in a header (X-data-parallel-rank), which vLLM's routes for completions and chat obey, and others do not: there
    the server balances (entrypoints/openai/completion/serving.py, chat_completion/serving.py; 0.25.1, 0.32.0).

    It neither repeats nor redirects anything: a request to a replica that fails or is dead fails in the client's result, where
    it is counted. So retries and the circuit breaker are off, and no number of failed health checks takes a replica out.

    Args:
        workers: the replicas' addresses, ``http://HOST:PORT``.
        engines: data parallel engines of each replica that requests are spread over; 1: the replica does that itself.
        routing: which of them gets the next request.
        metrics_port: where its own counters lie, on loopback. They cannot be turned off and ask for no key; they hold
            addresses and numbers of requests, never a prompt or a key.

    Raises:
        ValueError: there is no replica, or two of them are the same.
    """
    if not workers or len(set(workers)) != len(workers):
        raise ValueError(f"a router needs one address for each replica, not {list(workers)}")
    return [
        *(python, str(IN_MODEL_ENV / "run_router.py"), "--host", host, "--port", str(port)),
        *ROUTER_POLICIES[routing].arguments,
        *("--disable-retries", "--disable-circuit-breaker", "--health-failure-threshold", str(_NEVER)),
        # Replicas are ready before it is started, so what it waits for here is the first answer.
        *("--worker-startup-timeout-secs", "30", "--worker-startup-check-interval", "1"),
        *("--max-payload-size", str(_MAX_PAYLOAD_BYTES)),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)),
        *(("--intra-node-data-parallel-size", str(engines)) if engines > 1 else ()),
        "--worker-urls",
        *workers,
    ]


def router_environment() -> dict[str, str]:
    """Return variables of the router. It needs no key: clients bring theirs, and replicas judge it."""
    return {"PYTHONUNBUFFERED": "1", **NO_PROXY}
