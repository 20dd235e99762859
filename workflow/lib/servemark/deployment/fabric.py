"""check_fabric: an all-reduce between all ranks, within seconds and before a model is loaded: NCCL on GPUs, Gloo on CPU.

It uses the server's variables, so a wrong interface or a missing transport fails here and not as a server that hangs for minutes.
"""

import json
from pathlib import Path

from servemark.deployment import attempts, executors, transport
from servemark.deployment.context import StageContext
from servemark.deployment.launcher import Launcher
from servemark.diagnosis import diagnose, root_error
from servemark.environments.build import IN_MODEL_ENV
from servemark.errors import StageFailed
from servemark.launch import command_lines
from servemark.nodes import port_plan
from servemark.records import Cluster, Fabric, write_atomically
from servemark.supervisor.process_request import DaemonRequest

STAGE = "check_fabric"
KEPT = "fabric.json"
INTERFACES = ("GLOO_SOCKET_IFNAME", command_lines.NCCL_INTERFACE)
"""Variables that name a node's interface. Names differ between nodes, so ``fabric_check.py`` sets them on each node."""
# Large enough that a fast fabric is limited by bandwidth and not latency; small enough for a laptop.
BYTES = {"nccl": 256 * 2**20, "gloo": 4 * 2**20}


def bus_bandwidth(size: int, ranks: int, seconds: float) -> float:
    """Return GiB/s on the bus during an all-reduce: 2 (n-1)/n size / time (nccl-tests, doc/PERFORMANCE.md)."""
    return 2 * (ranks - 1) / ranks * size / seconds / 2**30


def check(here: StageContext, cluster: Cluster) -> Fabric:
    """Run an all-reduce over all ranks on all nodes. With one node do nothing."""
    name = here.plan.deployment
    if cluster.replay:
        # Nothing was started: return the record of the attempt that served.
        kept = attempts.newest(here.deployment, KEPT)
        return Fabric.read(kept) if kept else Fabric(deployment=name, replay=True)
    if cluster.failure or cluster.attempt is None:
        return Fabric(deployment=name, failure=cluster.failure, attempt=cluster.attempt)
    if here.plan.topology.nodes == 1:
        return Fabric(deployment=name, attempt=cluster.attempt)
    attempt = Path(cluster.attempt)
    try:
        found = _reduce(here, cluster, attempt)
        found.write(attempt / KEPT)
        return found
    except StageFailed as error:
        failure = attempts.fail(attempt, attempts.from_error(STAGE, error), here.timeouts.stop)
        return Fabric(deployment=name, needed=True, failure=failure, attempt=cluster.attempt)


def _reduce(here: StageContext, cluster: Cluster, attempt: Path) -> Fabric:
    plan, log, progress, timeout_s = here.plan, here.log, here.progress, here.timeouts.cluster
    servers = cluster.nodes[: plan.topology.nodes]
    used = [
        sorted(device for replica in cluster.replicas for part in replica.parts if part.node == index for device in part.devices)
        for index in range(len(servers))
    ]
    backend = "nccl" if here.hardware.accelerator == "cuda" else "gloo"
    ranks = sum(map(len, used))
    output, path = attempt / "all-reduce.json", attempt / "all-reduce-spec.json"
    names = [{"name": node.name, "interface": node.interface, "devices": devices} for node, devices in zip(servers, used, strict=True)]
    spec = {
        "backend": backend,
        "bytes": BYTES[backend],
        "deadline_s": timeout_s,
        "address": servers[0].address,
        "port": port_plan.of_fabric(servers[0]),
        "nodes": names,
        "output": str(output.absolute()),
    }
    write_atomically(path, json.dumps(spec, indent=2) + "\n")
    launcher = Launcher.of(attempt)
    # Each node sets its own interface and address, unless the deployment's variables set them.
    env = executors.of(here, launcher, cluster.nodes).environment(servers[0])
    env = {key: value for key, value in env.items() if key != "VLLM_HOST_IP" and (key not in INTERFACES or key in plan.variables)}
    request = DaemonRequest(
        name="fabric",
        argv=(here.environment.python, str(IN_MODEL_ENV / "fabric_check.py"), str(path.absolute())),
        # These would keep NCCL's lines about the transport out of the log.
        env={key: value for key, value in env.items() if key not in ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")}
        | {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "1"},
        log=str(log.absolute()),
        modules=plan.modules,
        devices=tuple(used[0]),
        grace_s=3.0,
        container=here.container(),
    )
    tool = launcher.tool([node.name for node in servers], request)
    progress.say(f"all-reduce over {ranks} ranks on {', '.join(node.name for node in servers)} ({backend})")

    def check() -> None:
        progress.waiting(f"waiting for the all-reduce over {ranks} ranks")

    result = tool.run(log=log, timeout_s=timeout_s + 30, watch=here.watch, check=check)
    if result.exit_code != 0 or result.stopped or not output.exists():
        raise _failed(ranks, [f"{node.name} ({node.interface}, {node.address})" for node in servers], result.stopped, log)
    seconds = json.loads(output.read_text())["seconds"]
    on_gpus = backend == "nccl"
    named = transport.named(log.read_text(errors="replace")) if on_gpus else ("gloo over TCP",)
    kind = transport.kind_of(named) if on_gpus else "tcp"
    if here.config.cluster:
        transport.require(here.config.cluster.require_transport, kind, named, transport.listed(servers), str(log))
    # Ranks on CPUs have no other transport.
    slow = transport.slow(kind, servers, plan.topology) if on_gpus else None
    bandwidth = bus_bandwidth(BYTES[backend], ranks, seconds)
    progress.say(f"all-reduce works: {bandwidth:.2f} GiB/s on the bus, {', '.join(named) or 'transport not named'}")
    if slow:
        progress.say(f"warning: {slow} Load points are SUSPECT (slow_transport). {transport.PAGES}")
    return Fabric(
        deployment=plan.deployment,
        needed=True,
        attempt=cluster.attempt,
        backend=backend,
        ranks=ranks,
        transport=named,
        transport_kind=kind,
        slow=slow,
        interfaces=tuple(f"{node.name}: {node.interface} ({node.address})" for node in servers),
        bytes=BYTES[backend],
        seconds=seconds,
        bus_gib_per_s=round(bandwidth, 3),
    )


def _failed(ranks: int, nodes: list[str], stopped: str | None, log: Path) -> StageFailed:
    found = diagnose(log)
    default = "Check `interface` and the NCCL_* and GLOO_* variables of the cluster file. The log shows the library's messages."
    return StageFailed(
        f"The all-reduce over {ranks} ranks on {', '.join(nodes)} failed: {stopped or (found.cause if found else 'a rank failed')}",
        look=str(log),
        do=found.remedy if found and found.remedy else default,
        reason=found.reason if found else "fabric_failed",
        quote=found.quote if found else root_error(log),
    )
