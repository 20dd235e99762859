"""serve_model: start the server's process under the keeper. It is not ready yet; await_ready says when."""

from __future__ import annotations

import secrets
from pathlib import Path

from servemark import keeper, launch
from servemark.deployment import attempts, cluster
from servemark.errors import StageFailed
from servemark.keeper import DaemonRequest
from servemark.progress import Progress
from servemark.records import Cluster, Endpoint, Environment, Hardware, Manifest, Plan, utc_now

STAGE = "serve_model"
SERVER = "server"


def start(
    plan: Plan,
    token: Cluster,
    environment: Environment,
    manifest: Manifest,
    hardware: Hardware,
    *,
    port: int | None,
    stop_s: float,
    progress: Progress,
) -> Endpoint:
    """Start ``vllm serve`` on a port that is free.

    Args:
        port: the port the user asked for; None to look for a free one.

    Returns:
        the token; with ``failure`` when the port is taken or the process did not start. Everything is stopped then.
    """
    if token.replay or token.failure or token.attempt is None:
        return Endpoint(deployment=plan.deployment, replay=token.replay, failure=token.failure, attempt=token.attempt)
    attempt = Path(token.attempt)
    try:
        chosen = _choose_port(plan.deployment, port)
        url, key_file, argv = _start(plan, token, environment, manifest, hardware, attempt, chosen)
    except StageFailed as error:
        failure = attempts.fail(attempt, attempts.from_error(STAGE, error), stop_s)
        return Endpoint(deployment=plan.deployment, failure=failure, attempt=token.attempt)
    progress.say(f"started vLLM for {url}")
    return Endpoint(
        deployment=plan.deployment,
        attempt=token.attempt,
        url=url,
        served_name=plan.served_name,
        key_file=str(key_file),
        argv=tuple(argv),
        started_at=utc_now(),
    )


def _choose_port(deployment: str, port: int | None) -> int:
    if port is None:
        # Anywhere in the range, so that two users who look at the same moment do not look at the same ports.
        return launch.free_ports(cluster.ADDRESS, 1, start=secrets.randbelow(len(launch.PORTS)))[0]
    if launch.port_holder(cluster.ADDRESS, port):
        raise StageFailed(
            f"Port {port} on {cluster.ADDRESS}, which deployments.{deployment}.port asks for, is already taken by another program.",
            do=f"See who has it with `ss -ltnp 'sport = :{port}'`; end that, choose another port, or use port: auto.",
            reason="port_taken",
        )
    return port


def _start(
    plan: Plan,
    token: Cluster,
    environment: Environment,
    manifest: Manifest,
    hardware: Hardware,
    attempt: Path,
    port: int,
) -> tuple[str, Path, list[str]]:
    key_file = attempts.secret(attempt, "api-key")
    env = launch.server_environment(plan, hardware, cluster.INTERFACE)
    if token.ray_address:
        env |= launch.ray_environment(
            str((attempt / "ray-token").absolute()), str(attempts.scratch_folder(attempt))
        ) | {"RAY_ADDRESS": token.ray_address}
    argv = launch.serve(environment.python, manifest.path, plan, cluster.ADDRESS, port)
    request = DaemonRequest(
        name=SERVER,
        argv=tuple(argv),
        env=env,
        secret_env={"VLLM_API_KEY": str(key_file)},
        log=str(attempt / "server.log"),
    )
    try:
        state = keeper.request(attempt, request)
    except TimeoutError as error:
        raise StageFailed(str(error), look=str(attempt / "keeper.log"), reason="keeper_ended") from None
    if state.why == "never_started":
        raise StageFailed(
            f"{argv[0]} cannot be started.",
            look=state.log,
            do="Check the environment's prefix.",
            reason="never_started",
        )
    return f"http://{cluster.ADDRESS}:{port}", key_file, argv
