"""Command lines and environments of everything we start: pure functions that return ``list[str]`` and ``dict``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from servemark.environments.build import IN_MODEL_ENV
from servemark.launch import api_key, compile_cache, random_weights
from servemark.records import LoadPoint, Node, Plan

VLLM = "vllm.entrypoints.cli.main"
# Our traffic is local; with a site's http_proxy set, vLLM's client would hand load and key to the proxy.
NO_PROXY = {"NO_PROXY": "*", "no_proxy": "*"}
# Longer than a client keeps a connection that it does not use: vLLM's 60 s (benchmarks/serve.py, 0.25.1 and 0.32.0), the router 50 s
# (vllm-project/router, src/server.rs). A server that closes sooner (vLLM: after 5 s) may do so while the next request is on its way, which
# then fails.
KEEP_ALIVE_S = 120
NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"
LOOPBACK = "lo"


def option_arguments(options: Mapping[str, object]) -> list[str]:
    """Return options in vLLM's syntax: ``true`` is ``--x``, ``false`` is ``--no-x``, null is left out, a list is repeated."""
    arguments: list[str] = []
    for name, value in options.items():
        if value is True:
            arguments.append(f"--{name}")
        elif value is False:
            arguments.append(f"--no-{name}")
        elif isinstance(value, (list, tuple)):
            arguments += [f"--{name}", *map(str, value)]
        elif value is not None:
            arguments += [f"--{name}", str(value)]
    return arguments


def serve(
    python: str, model_path: str, plan: Plan, host: str, port: int, ranks: Sequence[str] = (), *, follower: bool = False
) -> list[str]:
    """Return ``vllm serve`` for one replica, or for one node of it. The API key goes by environment (``api_key.KEY``).

    Args:
        ranks: the executor's options.
        follower: it serves another process of the replica and answers no requests.
    """
    topology = plan.topology
    argv = [python, "-m", VLLM, "serve", model_path, "--served-model-name", plan.served_name, "--host", host, "--port", str(port)]
    sizes = {"tensor-parallel-size": topology.tensor_parallel, "pipeline-parallel-size": topology.pipeline_parallel}
    argv += [*option_arguments({name: size for name, size in sizes.items() if size > 1}), *ranks]
    # vLLM ends a follower that is given a number of API servers, which it has none of (entrypoints/cli/serve.py, 0.25.1 and 0.32.0).
    options = {name: value for name, value in plan.options.items() if not (follower and name == "api-server-count")}
    return argv + option_arguments(options) + api_key.arguments()


def server_environment(plan: Plan, accelerator: str, node: Node, scratch: str, caches: str, executor: Mapping[str, str]) -> dict[str, str]:
    """Return variables of the server and of every Ray process on one node (Ray's workers take theirs from the raylet).

    Sources: offline and usage switches from vLLM's documentation; gloo needs an exact interface name, NCCL takes ``=name`` for one. Idle
    connections are kept longer than by vLLM itself (``KEEP_ALIVE_S``). The deployment's own variables win.

    Args:
        scratch: the attempt's private folder on the node; vLLM's own sockets lie there and vanish with it.
        caches: where compiled code is kept.
        executor: the executor's own variables.
    """
    env = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1", **NO_PROXY}
    # Sockets between ranks ask for no key. Those of ranks that share a node are on loopback, where no other node reaches them.
    spans = plan.topology.nodes_of_a_replica > 1
    between = node.interface if spans else LOOPBACK
    env |= {"VLLM_HOST_IP": node.address, "GLOO_SOCKET_IFNAME": between, "VLLM_RPC_BASE_PATH": scratch}
    env["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = str(KEEP_ALIVE_S)
    env |= compile_cache.variables(caches, plan.variables)
    if accelerator == "cuda":
        env[NCCL_INTERFACE] = f"={between}"
    env |= executor
    env |= plan.variables | api_key.environment(plan.variables, behind_router=plan.topology.routed)
    return env | random_weights.environment(plan.options, env)


def ray_environment(token_file: str, scratch: str) -> dict[str, str]:
    """Return Ray's own variables; the mode is set for every process, since Ray otherwise decides it by what lies in the home folder."""
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token_file, "RAY_TMPDIR": scratch}
    return variables | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}


def ray_node(python: str, node: Node, devices: int, scratch: str, ports: Sequence[int], head: str | None = None) -> list[str]:
    """Return ``ray start`` in the foreground on one node: the head, or a worker that joins ``head`` (ADDRESS:PORT).

    One Ray "GPU" is one rank; the object store carries no tensors. Every port that can be pinned is (``ports``: six free ones of the node),
    so that nothing is chosen inside Ray's default worker range, where other users' Ray looks too. No monitor: nothing is scaled here, and
    its metrics would be the one port of Ray's that answers to anybody (monitor.py listens on every address and asks for no token).
    """
    own, client, manager, objects, agent, metrics = ports
    first = ["--head", f"--port={own}", f"--ray-client-server-port={client}", "--include-dashboard=false", "--no-monitor"]
    return [
        *(python, "-m", "ray.scripts.scripts", "start", *(first if head is None else [f"--address={head}"]), "--block"),
        *(f"--node-ip-address={node.address}", f"--node-manager-port={manager}", f"--object-manager-port={objects}"),
        *(f"--runtime-env-agent-port={agent}", f"--metrics-export-port={metrics}"),
        *(f"--num-gpus={devices}", f"--num-cpus={max(node.cpu_count, devices)}", "--disable-usage-stats"),
        *("--object-store-memory=200000000", f"--temp-dir={scratch}", "--min-worker-port=0", "--max-worker-port=0"),
    ]


def bench(python: str, url: str, served_name: str, tokenizer: str, point: LoadPoint, folder: str, name: str) -> list[str]:
    """Return ``vllm bench serve`` for one load point, per-request results saved. The key goes by environment (OPENAI_API_KEY)."""
    return [
        # servemark: the request function of bench_client.py.
        *(python, str(IN_MODEL_ENV / "bench_client.py"), "bench", "serve", "--backend", "servemark"),
        *("--base-url", url, "--endpoint", "/v1/completions", "--model", served_name, "--tokenizer", tokenizer),
        *point.prompts.client_arguments(),
        *("--num-prompts", str(point.requests), "--seed", str(point.seed), "--ignore-eos", "--temperature", "0"),
        *("--num-warmups", str(point.warmups)),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,95,99"),
        *("--save-result", "--save-detailed", "--result-dir", folder, "--result-filename", name, "--disable-tqdm"),
        *option_arguments({"max-concurrency": point.concurrency, "request-rate": point.request_rate}),
        *option_arguments(point.client_options),
    ]
