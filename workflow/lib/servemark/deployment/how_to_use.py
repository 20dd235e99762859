"""The page that a person who uses a held endpoint needs: address, key, curl, Python, a tunnel, how long, how to stop it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from servemark.planning import exposure

NAME = "how-to-use.txt"
# Where the tunnel begins on the user's own machine: the port that vLLM's own examples use.
TUNNEL_PORT = 8000
# Between these lines of the page stands the Python code.
PYTHON_BEGIN, PYTHON_END = "--- begin Python ---", "--- end Python ---"


@dataclass(frozen=True)
class Blocked:
    """The address cannot be reached from where Snakemake runs.

    Args:
        host: where Snakemake runs.
        why: the error of a connection to the address.
        ssh: the error of a connection to the node's ssh server; None if it accepts connections.
    """

    host: str
    why: str
    ssh: str | None


@dataclass(frozen=True)
class Facts:
    """What the page is made from.

    Args:
        key_file: absolute path of the 0600 file with the key.
        node: name of the node with the one address.
        scheduled: the endpoint lives in a scheduler's allocation, behind a login node.
        ends_at: seconds since 1970; None: no end is set.
        exposed: what other users can read or write without the key; see :mod:`servemark.planning.exposure`.
        blocked: None where the address can be reached, or was not tried yet.
    """

    run: str
    deployment: str
    url: str
    served_name: str
    key_file: Path
    node: str
    user: str
    checkout: Path
    scheduled: bool
    ends_at: float | None = None
    exposed: tuple[str, ...] = ()
    blocked: Blocked | None = None


def page(facts: Facts) -> str:
    """Return the whole text. The key is not in it, and no command puts it on a command line, where other users could see it."""
    address = urlsplit(facts.url)
    key = shlex.quote(str(facts.key_file))
    # ssh joins its words, and the shell at the other end reads them again.
    there = shlex.quote(f"cat {key}")
    login = "LOGIN" if facts.scheduled else facts.node
    through_node = facts.blocked is not None and facts.blocked.ssh is None
    jump = f"-J {facts.user}@{login} " if through_node else ""
    end = facts.node if through_node else login
    put_in = (
        "For LOGIN put in the cluster's login node, as you type it for ssh.\n"
        if facts.scheduled
        else f"The endpoint listens on {facts.node} itself, and only for programs there; put in a name that ssh knows it by.\n"
    )
    title = f"How to use the endpoint {facts.deployment} of run {facts.run}"
    return f"""\
{title}
{"=" * len(title)}

Address    {facts.url}/v1   (OpenAI's API; on {facts.node})
{_unreachable(facts)}Model      {facts.served_name}
Key        in the file {facts.key_file}
           Only your user can read it. Every request needs it. It changes with every start and is removed at the end.
Lives      {how_long(facts.ends_at)}
Stop it    .venv/bin/servemark stop {facts.deployment} --run {facts.run}
           in {facts.checkout}, on any machine that sees this folder; or Ctrl-C where snakemake runs.
See it     .venv/bin/servemark status

The key as a variable of your shell, without printing it
--------------------------------------------------------
export OPENAI_API_KEY="$(cat {key})"

curl
----
The header goes through a file descriptor, because others on the machine can see command lines. bash, curl 7.55 or newer:

curl --noproxy '*' -sS -H @<(echo "Authorization: Bearer $(cat {key})") \\
  -H 'Content-Type: application/json' {facts.url}/v1/completions \\
  -d '{{"model": "{facts.served_name}", "prompt": "Hello", "max_tokens": 16}}'

Python
------
pip install openai (version 1 or newer), then:

{PYTHON_BEGIN}
{python(facts)}{PYTHON_END}

Where the model has a chat template: client.chat.completions.create(model=..., messages=[{{"role": "user", "content": "Hello"}}]).

From your own machine, through a tunnel{" (expected to fail: see the address above)" if facts.blocked and facts.blocked.ssh else ""}
---------------------------------------
ssh -N {jump}-L {TUNNEL_PORT}:{address.hostname}:{address.port} {facts.user}@{end}

{put_in}Leave it running; the address on your machine is then http://localhost:{TUNNEL_PORT}/v1. The key, without printing it:

export OPENAI_API_KEY="$(ssh {facts.user}@{login} {there})"

Who else can read or write
--------------------------
{exposed(facts)}
"""


def exposed(facts: Facts) -> str:
    """Return what the key does not protect, a line for each thing."""
    http = f"Requests, outputs and the key travel to {facts.node} without encryption (HTTP); ssh encrypts them as far as the tunnel goes."
    lines = ((http,) if facts.scheduled else ()) + facts.exposed
    return "\n".join((*lines, f"All ports, and what a site can do: {facts.checkout / exposure.PAGE}"))


def _unreachable(facts: Facts) -> str:
    """Return lines under the address that cannot be reached."""
    if facts.blocked is None:
        return ""
    tunnel = "".join(f"           {line}\n" for line in tunnel_lines(facts, facts.blocked))
    return f"           {facts.blocked.host} cannot reach this address ({facts.blocked.why}).\n{tunnel}"


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


def python(facts: Facts) -> str:
    """Return a whole program for the ``openai`` package from version 1 on.

    It uses no proxy, which a cluster's environment may name. ``http_client`` would do that too, but its type depends on the version.
    """
    return f"""\
import os
from pathlib import Path

from openai import OpenAI

os.environ["NO_PROXY"] = os.environ["no_proxy"] = "{urlsplit(facts.url).hostname}"
client = OpenAI(
    base_url="{facts.url}/v1",
    api_key=Path({str(facts.key_file)!r}).read_text().strip(),
)
answer = client.completions.create(model="{facts.served_name}", prompt="Hello", max_tokens=16)
print(answer.choices[0].text)
"""


def how_long(ends_at: float | None) -> str:
    """Return words for the end of its life, in this machine's time zone."""
    if ends_at is None:
        return "until it is stopped, or the snakemake that holds it ends"
    end = datetime.fromtimestamp(ends_at).astimezone()
    return f"until {end:%Y-%m-%d %H:%M:%S %z}, when its allocation's time is over; earlier if it is stopped"
