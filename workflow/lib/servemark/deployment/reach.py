"""Whether a served endpoint can be reached from where Snakemake runs. The job can test only from its own nodes."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from servemark.deployment import how_to_use
from servemark.deployment.how_to_use import Blocked, Facts
from servemark.processes import identity
from servemark.records import write_atomically

# A network that drops packets gives no error; one that works connects within milliseconds.
CONNECT_S = 3.0
SSH_PORT = 22


def noted(facts: Facts, page: Path) -> dict[str, Any]:
    """Return what the main process needs for its check, as JSON: the job passes it on with a line of progress."""
    return asdict(facts) | {"page": str(page)}


def check(line: Mapping[str, Any]) -> list[str]:
    """Try the address of a line of progress that announces an endpoint; the main process calls it.

    Returns:
        Lines for the user, none if the address accepts a connection. The page is written again with the tunnel in it.
    """
    if not isinstance(line.get("endpoint"), dict):
        return []
    given = dict(line["endpoint"])
    page, facts = Path(given.pop("page")), Facts(**given)
    address = urlsplit(facts.url)
    why = _refused(str(address.hostname), address.port or 80)
    if why is None:
        return []
    blocked = Blocked(identity.host(), why, _refused(facts.node, SSH_PORT))
    # The job removes the page when the endpoint ends. A full disk must not end the display of progress.
    with contextlib.suppress(OSError):
        if page.exists():
            write_atomically(page, how_to_use.page(replace(facts, blocked=blocked)))
    first = f"warning: {blocked.host}, where snakemake runs, cannot reach {address.netloc} ({why})."
    return [first, *(f"  {text}" for text in how_to_use.tunnel_lines(facts, blocked))]


def _refused(host: str, port: int) -> str | None:
    """Return why a connection fails; None if it is accepted."""
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return None
