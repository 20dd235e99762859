"""Checks of ``servemark check`` on a cluster: the interface, whether Slurm accepts the jobs, and what they cost at most."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from servemark.cli.finding import ELSEWHERE, Finding
from servemark.config.cluster import Site
from servemark.config.model import Config
from servemark.config.prices import Prices
from servemark.errors import ConfigError, StageFailed
from servemark.machine import hardware, network
from servemark.run import scheduled
from snakemake_executor_plugin_slurm_guarded.request import Request

PATIENCE_S = 5.0
"""Seconds to wait for a controller that does not respond."""
UNREACHED = ("slurm_missing", "slurm_unreachable")


def interface(cluster: Site) -> Iterator[Finding]:
    """Check whether this machine has the interface; the nodes decide."""
    if cluster.interface is None:
        return
    try:
        found = network.choose_interface("this machine", hardware.interfaces(), cluster.interface, None)
    except StageFailed:
        text = f"interface {cluster.interface}: this machine has no such interface with an IPv4 address. Each job checks its nodes."
        yield Finding("not checked", text)
    else:
        yield Finding("ok", f"interface {cluster.interface}: {found.name} has {found.address} on this machine; each job checks its nodes")


def jobs(config: Config, cluster: Site, *, here: bool) -> Iterator[Finding]:
    """Ask Slurm whether it would accept the jobs, as a run does before it submits any."""
    if not here:
        yield Finding("not checked", f"jobs: {ELSEWHERE}")
        return
    folder, notes = Path("results") / config.run, list[str]()
    try:
        names = scheduled.ask_slurm(config, folder, notes.append, patience_s=PATIENCE_S)
    except ConfigError as error:
        if error.reason in UNREACHED:
            yield Finding("not checked", f"jobs: {error.what.splitlines()[0].rstrip('.')}. Rerun the check where `squeue` responds.")
        else:
            yield Finding("problem", f"jobs: {error.what} {error.do or ''}")
        return
    yield Finding("ok", f"jobs: Slurm would accept {', '.join(names)} (sbatch --test-only)")
    for note in (*notes, *_costs(scheduled.deployment_requests(config, folder), cluster.gpus_per_node, config.prices)):
        yield Finding("ok", f"jobs: {note}")


def _costs(wanted: Sequence[Request], gpus_per_node: int, prices: Prices | None) -> Iterator[str]:
    """Yield the most that each deployment's job takes, by its time limit, and the sum of several.

    Args:
        gpus_per_node: 0: hours count nodes.
    """
    unit, each = ("GPU", gpus_per_node) if gpus_per_node else ("node", 1)

    def cost(minutes: int) -> str:
        hours = minutes / 60
        price = f", {hours * prices.gpu_hour:,.2f} {prices.currency}" if prices and gpus_per_node else ""
        return f"{hours:.1f} {unit}-hours{price}"

    # The client's node of another kind has no GPU.
    clients = [int(request.second is not None) for request in wanted]
    used = [
        (request.nodes * each + (0 if gpus_per_node else more)) * (request.minutes or 0)
        for request, more in zip(wanted, clients, strict=True)
    ]
    for request, minutes, more in zip(wanted, used, clients, strict=True):
        gpus = (f" x {gpus_per_node} GPU(s)" if gpus_per_node else "") + (" and one for the client" if more else "")
        yield f"{request.name}: at most {request.minutes} minutes on {request.nodes} node(s){gpus}, {cost(minutes)}"
    if len(wanted) > 1:
        yield f"all deployments: at most {cost(sum(used))}"
