"""Command lines and environments of everything we start: pure functions that return ``list[str]`` and ``dict``."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from servemark.records import Hardware, Plan, PlannedPoint

VLLM = "vllm.entrypoints.cli.main"
# Ports below Linux's default ephemeral range (32768-60999) and above the well-known ones: nobody is given one by chance.
# Our traffic is local; with a site's http_proxy set, vLLM's client would hand load and key to the proxy.
NO_PROXY = {"NO_PROXY": "*", "no_proxy": "*"}
PORTS = range(20000, 32000)


def option_arguments(options: Mapping[str, object]) -> list[str]:
    """vLLM's option syntax: ``true`` is ``--x``, ``false`` is ``--no-x``, null is left out, a list is repeated values."""
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


def serve(python: str, model_path: str, plan: Plan, host: str, port: int) -> list[str]:
    """``vllm serve`` for one replica. The API key is not here: it goes by environment (VLLM_API_KEY)."""
    topology = plan.topology
    argv = [
        python,
        "-m",
        VLLM,
        "serve",
        model_path,
        "--served-model-name",
        plan.served_name,
        "--host",
        host,
        "--port",
        str(port),
    ]
    if topology.tensor_parallel > 1:
        argv += ["--tensor-parallel-size", str(topology.tensor_parallel)]
    if topology.pipeline_parallel > 1:
        argv += ["--pipeline-parallel-size", str(topology.pipeline_parallel)]
    if topology.executor != "single":
        argv += ["--distributed-executor-backend", topology.executor]
    return argv + option_arguments(plan.options)


def server_environment(plan: Plan, hardware: Hardware, interface: str) -> dict[str, str]:
    """Variables of the server and of every Ray process (Ray's workers take theirs from the raylet).

    Sources: offline and usage switches from vLLM's documentation; on CPU, gloo needs an exact interface name, and the Ray
    executor does no OpenMP binding, so threads are limited by hand.
    """
    env = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1", **NO_PROXY}
    if hardware.accelerator == "cpu":
        env["GLOO_SOCKET_IFNAME"] = interface
        ranks = plan.topology.world_size
        if plan.topology.executor == "mp" and ranks > 1:
            # vLLM's own choice is one NUMA node a rank, and it refuses to start where there are fewer.
            env["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(rank) for rank in range(ranks))
        if plan.topology.executor == "ray":
            env |= {
                "SERVEMARK_CPU_RAY": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": "1",
                "VLLM_CPU_SIM_MULTI_NUMA": "0",
            }
    return env | plan.variables


def ray_environment(token_file: str, scratch: str) -> dict[str, str]:
    """Ray's own variables; the mode is set for every process, since Ray otherwise decides it by what lies in the home folder."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": token_file,
        "RAY_TMPDIR": scratch,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
    }


def ray_head(
    python: str, address: str, port: int, client_port: int, devices: int, cpus: int, scratch: str
) -> list[str]:
    """``ray start --head`` in the foreground, without dashboard. One Ray "GPU" is one rank; the object store carries no tensors."""
    return [
        python,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        f"--node-ip-address={address}",
        f"--port={port}",
        f"--ray-client-server-port={client_port}",
        f"--num-gpus={devices}",
        f"--num-cpus={cpus}",
        "--include-dashboard=false",
        "--disable-usage-stats",
        "--object-store-memory=200000000",
        f"--temp-dir={scratch}",
        "--min-worker-port=0",
        "--max-worker-port=0",
    ]


def bench(
    python: str, url: str, served_name: str, tokenizer: str, point: PlannedPoint, folder: str, name: str
) -> list[str]:
    """``vllm bench serve`` for one load point, per-request results saved. The key goes by environment (OPENAI_API_KEY)."""
    argv = [
        python,
        "-m",
        VLLM,
        "bench",
        "serve",
        "--backend",
        "openai",
        "--base-url",
        url,
        "--endpoint",
        "/v1/completions",
        "--model",
        served_name,
        "--tokenizer",
        tokenizer,
        "--dataset-name",
        "random",
        "--random-input-len",
        str(point.input_tokens),
        "--random-output-len",
        str(point.output_tokens),
        "--num-prompts",
        str(point.requests),
        "--seed",
        str(point.seed),
        "--ignore-eos",
        "--temperature",
        "0",
        "--num-warmups",
        str(point.warmups),
        "--percentile-metrics",
        "ttft,tpot,itl,e2el",
        "--metric-percentiles",
        "50,95,99",
        "--save-result",
        "--save-detailed",
        "--result-dir",
        folder,
        "--result-filename",
        name,
        "--disable-tqdm",
    ]
    if point.concurrency is not None:
        argv += ["--max-concurrency", str(point.concurrency)]
    if point.request_rate is not None:
        argv += ["--request-rate", str(point.request_rate)]
    return argv + option_arguments(point.client_options)


def port_holder(host: str, port: int) -> bool:
    """Whether something listens on, or has bound, this port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def free_ports(host: str, count: int, start: int, taken: Sequence[int] = ()) -> list[int]:
    """``count`` ports nobody has bound on ``host``, looked for from ``start`` on and around.

    Raises:
        OSError: there are not that many.
    """
    found: list[int] = []
    for offset in range(len(PORTS)):
        port = PORTS[(start + offset) % len(PORTS)]
        if port not in taken and not port_holder(host, port):
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"fewer than {count} free ports in {PORTS.start}-{PORTS.stop - 1} on {host}")
