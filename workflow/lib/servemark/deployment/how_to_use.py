"""The page for users of a served endpoint (its text: how-to-use.txt), and the check that Snakemake's host reaches the endpoint."""

import contextlib
import shlex
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jinja2 import Environment, StrictUndefined

from servemark.planning import exposure
from servemark.processes import identity
from servemark.records import write_atomically

NAME = "how-to-use.txt"
# The record of the endpoint's state, next to the page.
STATUS = "status.json"
# Local end of the tunnel: the port of vLLM's own examples.
TUNNEL_PORT = 8000
# A network that drops packets gives no error; one that works connects within milliseconds.
CONNECT_S = 3.0
SSH_PORT = 22
# Output tokens of the examples. A model that reasons needs more than a few before it responds.
COMPLETION_TOKENS, CHAT_TOKENS = 16, 128
# The page's Python program stands between these lines.
PYTHON_BEGIN, PYTHON_END = "--- begin Python ---", "--- end Python ---"


@dataclass(frozen=True)
class Blocked:
    """Snakemake's ``host`` cannot reach the endpoint because of ``why``. ``ssh``: why it cannot reach the node's ssh port; None: it can."""

    host: str
    why: str
    ssh: str | None


@dataclass(frozen=True)
class Facts:
    """Content of the page. All values can be written as JSON.

    Args:
        key_file: absolute path of the 0600 file with the API key.
        node: name of the node with the public address.
        servers: addresses of the vLLM servers. A router does not pass their metrics on.
        chat: the model has a chat template, so the examples use the chat route.
        scheduled: the endpoint runs in a Slurm job, behind a login node.
        ends_at: seconds since 1970; None: no time limit.
        exposed: what other users can read or write without the API key; see :mod:`servemark.planning.exposure`.
        blocked: None if the address is reachable, or was not tested yet.
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
    servers: tuple[str, ...] = ()
    chat: bool = False
    ends_at: float | None = None
    exposed: tuple[str, ...] = ()
    blocked: Blocked | None = None


def page(facts: Facts) -> str:
    """Return the page. It holds no API key, and none of its commands puts the key on a command line, where other users could see it."""
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True)  # noqa: S701 - plain text
    environment.filters |= {"sh": shlex.quote, "repr": repr}
    values = {
        "address": urlsplit(facts.url),
        "lives": how_long(facts.ends_at),
        "local_port": TUNNEL_PORT,
        "unprotected": exposed(facts),
        "metrics": ", ".join(f"{server}/metrics" for server in facts.servers),
        "most": CHAT_TOKENS if facts.chat else COMPLETION_TOKENS,
    }
    tunnel = tunnel_lines(facts, facts.blocked) if facts.blocked else []
    return environment.from_string(Path(__file__).with_name(NAME).read_text(encoding="utf-8")).render(vars(facts) | values, tunnel=tunnel)


def exposed(facts: Facts) -> str:
    """Return what the API key does not protect, one line each."""
    http = f"Requests, outputs and the key travel to {facts.node} without encryption (HTTP). Within a tunnel, ssh encrypts them."
    last = f"All ports, and protection by a site: {facts.checkout}/{exposure.PAGE}"
    return "\n".join((*([http] if facts.scheduled else []), *facts.exposed, last))


def tunnel_lines(facts: Facts, blocked: Blocked) -> list[str]:
    """Return how Snakemake's host gets to an address that it cannot reach directly."""
    address = urlsplit(facts.url)
    if blocked.ssh is not None:
        return [
            f"{blocked.host} cannot reach ssh on {facts.node} either ({blocked.ssh}), so a tunnel through it is not possible.",
            f"Set `interface` in the cluster file to a network that {blocked.host} reaches, or ask your administrators.",
        ]
    return [
        f"On {blocked.host}, open a tunnel through {facts.node}: ssh -N -L {TUNNEL_PORT}:{address.hostname}:{address.port} {facts.node}",
        f"Leave it running and use http://localhost:{TUNNEL_PORT}/v1 there.",
    ]


def how_long(ends_at: float | None) -> str:
    """Return words for the time at which the endpoint ends, in this machine's time zone."""
    if ends_at is None:
        return "when you stop it, or when its Snakemake ends"
    end = datetime.fromtimestamp(ends_at).astimezone()
    return f"{end:%Y-%m-%d %H:%M:%S %z}, the time limit of its allocation, unless you stop it earlier"


def announcement(facts: Facts, page_file: Path) -> dict[str, Any]:
    """Return the input of :func:`check_reach` as JSON: the job passes it to the main process with a line of progress."""
    return asdict(facts) | {"page": str(page_file)}


def check_reach(line: Mapping[str, Any]) -> list[str]:
    """Test the address in a line of progress that announces an endpoint. The main process calls this, on the user's host.

    Returns:
        Lines for the user, none if the address accepts a connection. The page is then rewritten with the tunnel.
    """
    if not isinstance(line.get("endpoint"), dict):
        return []
    given = dict(line["endpoint"])
    page_file, facts = Path(given.pop("page")), Facts(**given)
    address = urlsplit(facts.url)
    why = _refused(str(address.hostname), address.port or 80)
    if why is None:
        return []
    blocked = Blocked(identity.host(), why, _refused(facts.node, SSH_PORT))
    # The job removes the page when the endpoint ends. A full disk must not end the display of progress.
    with contextlib.suppress(OSError):
        if page_file.exists():
            write_atomically(page_file, page(replace(facts, blocked=blocked)))
    first = f"warning: {blocked.host}, where snakemake runs, cannot reach {address.netloc} ({why})."
    return [first, *(f"  {text}" for text in tunnel_lines(facts, blocked))]


def _refused(host: str, port: int) -> str | None:
    """Return why a connection fails; None if it is accepted."""
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return None
