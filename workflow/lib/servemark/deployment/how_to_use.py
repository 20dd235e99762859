"""The page for the user of a served endpoint: address, API key, curl, Python, tunnel, life time, how to stop it. Text: how-to-use.txt."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from servemark.planning import exposure

NAME = "how-to-use.txt"
# Where the tunnel begins on the user's own machine: the port of vLLM's own examples.
TUNNEL_PORT = 8000
# Between these lines of the page stands the Python program.
PYTHON_BEGIN, PYTHON_END = "--- begin Python ---", "--- end Python ---"


@dataclass(frozen=True)
class Blocked:
    """The host of Snakemake cannot reach the address: ``why``; ``ssh``: why not the node's ssh server either, None if it can."""

    host: str
    why: str
    ssh: str | None


@dataclass(frozen=True)
class Facts:
    """Content of the page. All values can be written as JSON.

    Args:
        key_file: absolute path of the 0600 file with the API key.
        node: name of the node with the one address.
        scheduled: the endpoint lives in a scheduler's allocation, behind a login node.
        ends_at: seconds since 1970; None: no end is set.
        exposed: what other users can read or write without the API key; see :mod:`servemark.planning.exposure`.
        blocked: None where the address can be reached, or was not tried yet.
    """

    run: str
    deployment: str
    url: str
    served_name: str
    key_file: str
    node: str
    user: str
    checkout: str
    scheduled: bool
    ends_at: float | None = None
    exposed: tuple[str, ...] = ()
    blocked: Blocked | None = None


def page(facts: Facts) -> str:
    """Return the whole text. The API key is not in it, and no command puts it on a command line, where other users could see it."""
    address, blocked = urlsplit(facts.url), facts.blocked
    key = shlex.quote(facts.key_file)
    login = "LOGIN" if facts.scheduled else facts.node
    through_node = blocked is not None and blocked.ssh is None
    title = f"How to use the endpoint {facts.deployment} of run {facts.run}"
    words = {
        "title": title,
        "line": "=" * len(title),
        "unreachable": "".join(f"           {line}\n" for line in _unreachable(facts)),
        "lives": how_long(facts.ends_at),
        "key": key,
        "there": shlex.quote(f"cat {key}"),  # ssh joins its words, and the shell at the other end reads them again
        "host": address.hostname,
        "port": address.port,
        "local_port": TUNNEL_PORT,
        "doubtful": " (expected to fail: see the address above)" if blocked and blocked.ssh else "",
        "login": login,
        "jump": f"-J {facts.user}@{login} " if through_node else "",
        "end": facts.node if through_node else login,
        "put_in": "For LOGIN put in the cluster's login node, as you type it for ssh.\n"
        if facts.scheduled
        else f"The endpoint listens on {facts.node} itself, and only for programs there; put in a name that ssh knows it by.\n",
        "exposed": exposed(facts),
    }
    return Path(__file__).with_name(NAME).read_text(encoding="utf-8").format(**(asdict(facts) | words))


def exposed(facts: Facts) -> str:
    """Return what the API key does not protect, a line for each thing."""
    http = f"Requests, outputs and the key travel to {facts.node} without encryption (HTTP); ssh encrypts them as far as the tunnel goes."
    last = f"All ports, and what a site can do: {facts.checkout}/{exposure.PAGE}"
    return "\n".join((*([http] if facts.scheduled else []), *facts.exposed, last))


def _unreachable(facts: Facts) -> list[str]:
    blocked = facts.blocked
    return [f"{blocked.host} cannot reach this address ({blocked.why}).", *tunnel_lines(facts, blocked)] if blocked else []


def tunnel_lines(facts: Facts, blocked: Blocked) -> list[str]:
    """Return the way to an address that the host of Snakemake cannot reach, for that host itself."""
    address = urlsplit(facts.url)
    if blocked.ssh is not None:
        return [
            f"{blocked.host} cannot reach ssh on {facts.node} either ({blocked.ssh}), so no tunnel is known.",
            f"Set `interface` in the cluster file to a network that {blocked.host} reaches, or ask your administrators.",
        ]
    return [
        f"On {blocked.host}, open a tunnel through {facts.node}: ssh -N -L {TUNNEL_PORT}:{address.hostname}:{address.port} {facts.node}",
        f"Leave it running, and use http://localhost:{TUNNEL_PORT}/v1 there.",
    ]


def how_long(ends_at: float | None) -> str:
    """Return words for the end of the endpoint's life, in this machine's time zone."""
    if ends_at is None:
        return "until it is stopped, or the snakemake that holds it ends"
    end = datetime.fromtimestamp(ends_at).astimezone()
    return f"until {end:%Y-%m-%d %H:%M:%S %z}, when its allocation's time is over; earlier if it is stopped"
