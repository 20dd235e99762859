"""Command lines and environments of everything that servemark starts.

Every address requires the deployment's API key on every route: a server by the middleware in ``in_model_env/middleware``, the router by
its own check, which ``in_model_env/run_router.py`` turns on.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from servemark.environments.build import IN_MODEL_ENV
from servemark.launch import compile_cache, random_weights
from servemark.records import AskedCheck, LoadPoint, Node, Plan
from servemark.records.topology import ROUTER_POLICIES, PolicyName

VLLM = "vllm.entrypoints.cli.main"
# All traffic is inside the allocation. With a site's http_proxy, vLLM's client would send load and API key to the proxy.
NO_PROXY = {"NO_PROXY": "*", "no_proxy": "*"}
# Requests that lm-eval sends at once.
ACCURACY_REQUESTS = 32
# Longer than a client keeps an idle connection: vLLM's client 60 s (benchmarks/serve.py, 0.25.1 and 0.32.0), the router 50 s
# (vllm-project/router, src/server.rs). vLLM's default is 5 s; a request sent while the server closes the connection fails.
KEEP_ALIVE_S = 120
NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"
LOOPBACK = "lo"
# A folder of vLLM's PYTHONPATH. It holds one module, so it hides none of the model environment.
MIDDLEWARE_FOLDER = IN_MODEL_ENV / "middleware"
MIDDLEWARE = "servemark_require_key.RequireKey"
# bench_client.py chooses vLLM's request function by the route.
ROUTES = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
# Variable of the API key. vLLM's own VLLM_API_KEY is part of its compile cache key (vllm/envs.py, compile_factors; 0.25.1): each start
# would compile again, and the cache would contain the key as plain text (cache_key_factors.json).
API_KEY = "SERVEMARK_API_KEY"
# The router itself responds on this route: with 401 to a request without the API key if its check is on, else with 200.
ROUTER_TEST_ROUTE = "/liveness"
# Failed health checks that take a replica out: never. The router stores 32 bits.
_NEVER = 2**32 - 1
# Enough for the longest prompts. The router reads and parses a body before it checks the key; its default is 512 MiB.
_MAX_PAYLOAD_BYTES = 64 * 2**20


def option_arguments(options: Mapping[str, object]) -> list[str]:
    """Return options in vLLM's syntax: ``true`` is ``--x``, ``false`` is ``--no-x``, null is left out, a list gives several values.

    vLLM reads the next argument after a name with a dot as JSON (utils/argparse_utils.py, FlexibleArgumentParser.parse_args, 0.32.0).
    """
    arguments: list[str] = []
    for name, value in options.items():
        if "." in name and isinstance(value, (bool, list, tuple)):
            arguments += [f"--{name}", json.dumps(value)]
        elif value is True:
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
    """Return ``vllm serve`` for one replica, or for one node of it.

    Args:
        ranks: the executor's options.
        follower: the process works for another process of the replica and receives no requests.
    """
    topology = plan.topology
    argv = [python, "-m", VLLM, "serve", model_path, "--served-model-name", plan.served_name, "--host", host, "--port", str(port)]
    sizes = {"tensor-parallel-size": topology.tensor_parallel, "pipeline-parallel-size": topology.pipeline_parallel}
    argv += [*option_arguments({name: size for name, size in sizes.items() if size > 1}), *ranks]
    # A follower with this option exits (entrypoints/cli/serve.py, 0.25.1 and 0.32.0).
    options = {name: value for name, value in plan.options.items() if not (follower and name == "api-server-count")}
    # vLLM runs the middleware that was added last first.
    return argv + option_arguments(options) + key_arguments()


def key_arguments() -> list[str]:
    """Return the arguments by which ``vllm serve`` requires the API key on every route."""
    return ["--middleware", MIDDLEWARE]


def key_environment(variables: Mapping[str, str], *, behind_router: bool = False) -> dict[str, str]:
    """Return the variables of a server with :func:`key_arguments`, without :data:`API_KEY` itself.

    Args:
        variables: the deployment's own. Its PYTHONPATH follows the middleware's folder.
        behind_router: vllm-router requests ``GET /health`` without a key, so a replica responds to that route with 200 or 503 and no body.
    """
    path = os.pathsep.join(filter(None, (str(MIDDLEWARE_FOLDER), variables.get("PYTHONPATH"))))
    return {"PYTHONPATH": path} | ({"SERVEMARK_HEALTH_WITHOUT_KEY": "1"} if behind_router else {})


def server_environment(plan: Plan, accelerator: str, node: Node, scratch: str, caches: str, executor: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the server and of every Ray process on one node. The deployment's own variables take precedence.

    Sources: vLLM's documentation for offline mode and usage statistics. Gloo needs an exact interface name; NCCL reads ``=name`` as one.

    Args:
        scratch: the attempt's private folder on the node, for vLLM's sockets.
        caches: folder for compiled code.
        executor: the executor's own variables.
    """
    env = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1", **NO_PROXY}
    # Sockets between ranks require no key. Ranks of one node use loopback, which other nodes cannot reach.
    spans = plan.topology.nodes_of_a_replica > 1
    between = node.interface if spans else LOOPBACK
    env |= {"VLLM_HOST_IP": node.address, "GLOO_SOCKET_IFNAME": between, "VLLM_RPC_BASE_PATH": scratch}
    env["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = str(KEEP_ALIVE_S)
    env |= compile_cache.variables(caches, plan.variables)
    if accelerator == "cuda":
        env[NCCL_INTERFACE] = f"={between}"
    env |= executor
    env |= plan.variables | key_environment(plan.variables, behind_router=plan.topology.routed)
    return env | random_weights.environment(plan.options, env)


def ray_environment(token_file: str, scratch: str) -> dict[str, str]:
    """Return Ray's variables. By default Ray chooses RAY_AUTH_MODE by files in the home folder."""
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token_file, "RAY_TMPDIR": scratch}
    return variables | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}


def ray_node(python: str, node: Node, devices: int, scratch: str, ports: Sequence[int], head: str | None = None) -> list[str]:
    """Return ``ray start`` in the foreground on one node: the head, or a worker that joins ``head`` (ADDRESS:PORT).

    One Ray "GPU" is one rank; the object store carries no tensors. ``ports``, six free ports of the node, keep Ray out of its default
    worker range, which other users' Ray searches too. Ray's monitor is off: nothing is scaled, and its metrics port listens on every
    address without a token (monitor.py).
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


def bench(
    python: str, url: str, served_name: str, tokenizer: str, point: LoadPoint, folder: str, name: str, prompts: str | None = None
) -> list[str]:
    """Return ``vllm bench serve`` for one load point, with results of each request. The client reads its API key from OPENAI_API_KEY.

    Args:
        folder: for the result file.
        name: of the result file.
        prompts: file with the rows of a data set that this process sends.
    """
    return [
        # The request function is that of bench_client.py.
        *(python, str(IN_MODEL_ENV / "bench_client.py"), "bench", "serve", "--backend", point.prompts.backend),
        *("--base-url", url, "--endpoint", ROUTES[point.api], "--model", served_name, "--tokenizer", tokenizer),
        *point.prompts.client_arguments(),
        *(("--dataset-path", prompts) if prompts else ()),
        *("--num-prompts", str(point.requests), "--seed", str(point.seed), "--ignore-eos", "--temperature", "0"),
        *("--num-warmups", str(point.warmups)),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,95,99"),
        *("--save-result", "--save-detailed", "--result-dir", folder, "--result-filename", name, "--disable-tqdm"),
        *option_arguments({"max-concurrency": point.concurrency, "request-rate": point.request_rate}),
        *option_arguments(point.client_options),
    ]


def lm_eval(python: str, url: str, served_name: str, tokenizer: str, plan: Plan, check: AskedCheck, output: str) -> list[str]:
    """Return lm-eval for one accuracy check. It reads its API key from OPENAI_API_KEY.

    Args:
        url: of the endpoint.
        tokenizer: the folder of the model. lm-eval counts tokens with it, and sends prompts as token ids.
        output: path whose stem begins the names of lm-eval's files, ``STEM_TIME.json``.
    """
    model = {
        "model": served_name,
        "base_url": f"{url}/v1/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": tokenizer,
        "num_concurrent": ACCURACY_REQUESTS,
        "max_length": plan.estimate.max_model_len if plan.estimate else None,
        "trust_remote_code": True if plan.options.get("trust-remote-code") else None,
    }
    folder = str(Path(check.task).absolute().parent) if check.task else str(Path(output).parent)
    return [
        *(python, str(IN_MODEL_ENV / "run_lm_eval.py"), folder, "--model", "local-completions"),
        *("--model_args", json.dumps({name: value for name, value in model.items() if value is not None})),
        *("--tasks", str(Path(check.task).absolute()) if check.task else check.name, "--limit", str(check.limit)),
        *(("--include_path", folder) if check.task else ()),
        *(() if check.shots is None else ("--num_fewshot", str(check.shots))),
        *(("--apply_chat_template",) if check.chat_template else ()),
        # With samples, lm-eval states the digest of the examples.
        *("--output_path", output, "--log_samples"),
    ]


def router(
    python: str, workers: Sequence[str], host: str, port: int, metrics_port: int, engines: int = 1, routing: PolicyName = "round_robin"
) -> list[str]:
    """Return vllm-router for ready replicas, or for each of their data parallel engines.

    The router selects an engine by a header (X-data-parallel-rank). vLLM reads it on the routes for completions and chat only
    (entrypoints/openai/completion/serving.py, chat_completion/serving.py; 0.25.1, 0.32.0).

    Retries, circuit breaker and removal of replicas are off: a request to a failed replica fails in the client, which counts it. The router
    keeps its first verdict on a key for its whole life, even a wrong verdict. So start it after the replicas are ready, and send one
    request with the key at once.

    Args:
        workers: the replicas' addresses, ``http://HOST:PORT``.
        engines: data parallel engines of each replica for the router to choose from; 1 leaves the choice to the replica.
        routing: policy for the next request.
        metrics_port: port on loopback of the router's counters: addresses and numbers of requests. They cannot be turned off and
            require no key.

    Raises:
        ValueError: there is no replica, or two replicas are the same.
    """
    if not workers or len(set(workers)) != len(workers):
        raise ValueError(f"a router needs one address for each replica, not {list(workers)}")
    return [
        *(python, str(IN_MODEL_ENV / "run_router.py"), "--host", host, "--port", str(port)),
        *ROUTER_POLICIES[routing].arguments,
        *("--disable-retries", "--disable-circuit-breaker", "--health-failure-threshold", str(_NEVER)),
        # Replicas are ready before the router starts, so it waits only for their first response.
        *("--worker-startup-timeout-secs", "30", "--worker-startup-check-interval", "1"),
        *("--max-payload-size", str(_MAX_PAYLOAD_BYTES)),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)),
        *(("--intra-node-data-parallel-size", str(engines)) if engines > 1 else ()),
        "--worker-urls",
        *workers,
    ]


def router_environment() -> dict[str, str]:
    """Return the router's variables, without a key: replicas check the clients' key."""
    return {"PYTHONUNBUFFERED": "1", **NO_PROXY}
