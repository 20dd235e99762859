"""The ports that a deployment opens on the nodes of a sandbox, and their responses to another user."""

from __future__ import annotations

import json
import pwd
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from real_checkout import RealCheckout

NOBODY = pwd.getpwnam("nobody").pw_uid


@dataclass(frozen=True)
class Listener:
    """A listening socket of a node, with its program and its addresses."""

    node: str
    bound: str
    port: int
    program: str
    flag: str

    @property
    def address(self) -> str:
        """The address to connect to; loopback only from the node itself."""
        host = self.bound.strip("[]").removeprefix("::ffff:")
        return f"{ADDRESS[self.node] if host in ('0.0.0.0', '*', '::') else host}:{self.port}"

    @property
    def loopback(self) -> bool:
        return self.address.startswith("127.")

    @property
    def place(self) -> str:
        """``every address``, ``loopback`` or ``fabric``."""
        if self.bound.strip("[]").removeprefix("::ffff:") in ("0.0.0.0", "*", "::"):
            return "every address"
        return "loopback" if self.loopback else "fabric"


ADDRESS = {"node1": "10.77.0.11", "node2": "10.77.0.12"}
_SOCKET = re.compile(r"LISTEN +\d+ +\d+ +(\S+):(\d+) .*?\(\(\"([^\"]+)\",pid=(\d+)")


def listeners(checkout: RealCheckout, node: str) -> list[Listener]:
    """Return every listening socket on a node, except slurmd's, with the command-line option that names its port."""
    listed = checkout.cluster.run(["ss", "-ltnpH"], node=node, check=True).stdout
    commands = {process.node_pid: process.command for process in checkout.cluster.processes(node)}
    found = []
    for line in listed.splitlines():
        bound, port, program, pid = _SOCKET.match(line).groups()
        flag = re.search(rf"--([\w-]+)[= ]{port}\b", commands.get(int(pid), ""))
        if program != "slurmd":
            found.append(Listener(node, bound, int(port), program, flag[1] if flag else ""))
    return found


def knocking(checkout: RealCheckout, *arguments: str) -> list[str]:
    """Return the command that runs knock.py as another user with these arguments."""
    python = checkout.record("environments/cpu/environment.json")["python"]
    script = str(Path(__file__).with_name("knock.py"))
    clean = ["env", "--ignore-environment", "PATH=/usr/bin:/bin", "HOME=/nonexistent"]
    return [*clean, python, script, str(NOBODY), *arguments]


def knock(checkout: RealCheckout, node: str, wanted: list[Listener]) -> dict[str, dict]:
    """Return each port's responses to another user on this node, without key or token."""
    addresses = sorted({listener.address for listener in wanted})
    done = checkout.cluster.run(knocking(checkout, *addresses), node=node, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def overheard(checkout: RealCheckout, addresses: list[str], attempt: Path) -> bool:
    """Return whether another user on node2 who subscribes to these ZeroMQ ports receives the tokens of our prompt."""
    prompt = [7 + 13 * place for place in range(48)]
    ready = json.loads((attempt.parents[1] / "ready.json").read_text())
    body = json.dumps({"model": ready["served_name"], "prompt": prompt, "max_tokens": 4})
    header = attempt / "header"
    header.write_text(f"Authorization: Bearer {(checkout.path / ready['key_file']).read_text().strip()}")
    header.chmod(0o600)
    listener = checkout.cluster.popen(
        knocking(checkout, "20", *addresses), node="node2", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert any("listening" in line for line in iter(listener.stderr.readline, ""))
    for _ in range(4):
        argv = ["curl", "-sS", "--noproxy", "*", "-H", f"@{header}", "-H", "Content-Type: application/json", "-d", body]
        asked = checkout.cluster.run([*argv, f"{ready['url']}/v1/completions"], node="node1", timeout=60)
        assert "choices" in asked.stdout, asked
    header.unlink()
    said = [numbers for messages in json.loads(listener.communicate(timeout=60)[0]).values() for numbers in messages]
    return any(prompt == found[at : at + len(prompt)] for found in said for at in range(len(found)))


def verdict(answer: dict) -> str:
    """Return in one word what another user gets there."""
    if not answer["connect"]:
        return "no connection"
    if answer["http"] is not None:
        return f"HTTP {answer['http']}"
    if answer["grpc"]:
        return "gRPC " + ", ".join(sorted(set(answer["grpc"].values())))
    if answer["zmq"]:
        return "ZeroMQ"
    return "torch store" if answer["store"] == "written" else "connection"
