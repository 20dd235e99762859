"""Another user of the same nodes and network gets no file, no secret, and from ports only what docs/security.md lists.

On the stand-in: no secret of the user or the run is stored, even on a site that stores every job's script and environment. On real vLLM
and Ray: another user without key or token tries every port of a deployment from both nodes.
"""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zstandard
from reached import knock, listeners, overheard, verdict
from real_checkout import NODES, RealCheckout, tiny
from sandbox import Sandbox

from builders.counters import requests_repeated
from integration.harness import RUN, Finished


@dataclass
class Lived:
    """A deployment that was inspected while it ran, and has ended."""

    checkout: RealCheckout
    canaries: dict[str, str]
    command_lines: str = ""
    readable: dict[str, list[str]] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    answers: dict[str, dict] = field(default_factory=dict)
    done: Finished | None = None

    def look(self, folder: Path) -> None:
        """Return what is visible of a running deployment, without its ports' responses. ``folder``: of its newest attempt."""
        for name in ("api-key", "ray-token"):
            if (folder / name).exists():
                self.canaries[name] = (folder / name).read_text()
        cluster = self.checkout.cluster
        for node in ("login", *NODES):
            self.command_lines += "\n".join(process.command for process in cluster.processes(node))
            self.readable[node] = readable_for_nobody(cluster, node, [str(self.checkout.path.parent), "/tmp"])
        for _, process in self.checkout.of_ours():
            self.shared |= shared_memory(process.pid)
        assert any((cluster.folder / "nodes" / node / "tmp").glob("servemark-*/*") for node in NODES)
        self.modes = {
            str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in [folder, *folder.rglob("*")] if path.exists()
        }  # fmt: skip


def readable_for_nobody(cluster: Sandbox, node: str, roots: list[str]) -> list[str]:
    """Return the files below the roots that another user can read on this node."""
    found = cluster.run(["find", *roots, "-xdev", "-type", "f", "-readable", "-print"], node=node, user="nobody", timeout=60)
    return found.stdout.splitlines()


def shared_memory(pid: int) -> dict[str, int]:
    """Return the shared memory files that a process has mapped, with their modes."""
    try:
        names = {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if " /dev/shm/" in line}
    except OSError:
        return {}
    return {name: Path(name).stat().st_mode & 0o777 for name in names if Path(name).exists()}


def new_canaries() -> dict[str, str]:
    """Return secrets as in users' environments, by variable; each can be found by its text alone."""
    return {
        "HF_TOKEN": "hf_" + secrets.token_hex(17),
        "DATABASE_SECRET": "canary" + secrets.token_hex(16),
        "TEAM_API_KEY": "canary" + secrets.token_hex(16),
        "OPENAI_API_KEY": "canary" + secrets.token_hex(16),
        "SITE_PASSWORD": "canary" + secrets.token_hex(16),
    }


def holding(texts: list[str], folders: list[Path]) -> list[str]:
    """Return the files below the folders that contain one of the texts."""
    # The texts go through standard input, as others can see command lines.
    argv = ["grep", "--recursive", "--files-with-matches", "--text", "--fixed-strings", "--devices=skip", "--file=-"]
    done = subprocess.run([*argv, *map(str, folders)], input="\n".join(texts), capture_output=True, text=True)
    assert done.returncode in (0, 1) or "No such file" in done.stderr, done.stderr
    return done.stdout.splitlines()


def accounting(cluster: Sandbox, jobs: list[str]) -> str:
    """Return all that Slurm prints about jobs: every field, script and environment."""
    text = cluster.run(["sacct", "--allusers", "--parsable2", "--format=ALL", f"--jobs={','.join(jobs)}"], check=True).stdout
    for job in jobs:
        for stored in ("--batch-script", "--env-vars"):
            text += cluster.run(["sacct", f"--jobs={job}", stored], check=True).stdout
        text += cluster.run(["scontrol", "show", "job", "-dd", job]).stdout
    return text


def assert_no_canary(lived: Lived, tmp_path: Path) -> None:
    """Assert that no secret is in Slurm's accounting, on a command line, in the run's files, in the archive, or on a node."""
    checkout, texts = lived.checkout, list(lived.canaries.values())
    cluster = checkout.cluster
    jobs = [entry["job"] for entry in checkout.journal("submitted")]
    stored = accounting(cluster, jobs)
    assert "SERVEMARK_SCHEDULED=1" in stored and "--target-jobs" in stored, "this site stores environments and scripts"
    names = {text: name for name, text in lived.canaries.items()}
    assert [names[text] for text in texts if text in stored] == [], "in Slurm's accounting"
    assert "snakemake" in lived.command_lines
    assert [names[text] for text in texts if text in lived.command_lines] == [], "on a command line"
    folders = [checkout.path.parent, *(cluster.folder / name for name in ("log", "state", "database", "nodes"))]
    folders += [Path(f"/proc/{cluster._machine.init_pid(node)}/root/run/slurm/spool") for node in NODES]
    control = [secrets.token_hex(16)]
    (checkout.path / "control").write_text(control[0])
    assert holding(control, folders) == [str(checkout.path / "control")]
    assert holding(texts, folders) == []
    for archive in checkout.results.glob("archive/*.tar.zst"):
        plain = tmp_path / archive.name
        with archive.open("rb") as stream, plain.open("wb") as out:
            zstandard.ZstdDecompressor().copy_stream(stream, out)
        assert holding(texts, [plain]) == [] and plain.stat().st_size > 10_000


def assert_closed_files(lived: Lived) -> None:
    """Assert that others can read no file of an attempt, and that secrets have mode 0600."""
    assert lived.modes["."] == 0o700
    private = {name: mode for name, mode in lived.modes.items() if name in ("api-key", "ray-token") or re.match(r"(requests|tools)/", name)}
    assert "api-key" in private and len(private) > 1
    private = {name: mode for name, mode in private.items() if ".place." not in name}
    assert set(private.values()) == {0o600}, private
    for node, files in lived.readable.items():
        assert any("/checkout/config/" in name for name in files), "other users can enter the checkout"
        inside = [name for name in files if "/attempts/" in name or name.startswith("/tmp/servemark-")]
        assert inside == [], f"{node}: readable by anybody"
    assert {name: oct(mode) for name, mode in lived.shared.items() if mode & 0o077} == {}, "shared memory of others"


# On the stand-in


@pytest.fixture(scope="module")
def lived(prepared_standin: RealCheckout, standin_checkouts: Callable[[], RealCheckout]) -> Lived:
    checkout = standin_checkouts()
    found = Lived(checkout, new_canaries())
    checkout.keep("a")
    # Fifty seconds for the point: time for the inspection, also on a busy machine.
    checkout.config["workloads"]["chat"] |= {"requests": 50, "concurrency": 2}
    running = checkout.start(STANDIN_TOKEN_S="0.5", **found.canaries)
    checkout.wait_for_progress("chat-c2-r1: 50 requests", subject="a", seconds=90)
    server = checkout.record("deployments/a/ready.json")["url"].removeprefix("http://")
    found.answers = {f"{node}: {route}": curl(checkout.cluster, node, server, route) for node in NODES for route in ROUTES}
    found.look(checkout.attempts("a")[-1])
    found.done = running.wait(180)
    return found


ROUTES = ("/health", "/metrics", "/v1/models", "/version", "/", "/nothing")


def curl(cluster: Sandbox, node: str, address: str, route: str) -> dict:
    """Return the HTTP status that the user nobody, without a key, gets on a node."""
    argv = [
        "curl",
        "--silent",
        "--noproxy",
        "*",
        "--max-time",
        "10",
        "--output",
        "/dev/null",
        "--write-out",
        "%{http_code}",
    ]
    return {"http": cluster.run([*argv, f"http://{address}{route}"], node=node, user="nobody").stdout}


@pytest.mark.timeout(400)
def test_secrets_of_user_and_run_are_stored_nowhere(lived: Lived, tmp_path: Path) -> None:
    assert lived.done is not None and lived.done.rc == 0, lived.done and lived.done.text
    assert_no_canary(lived, tmp_path)


def test_other_users_read_only_results(lived: Lived) -> None:
    assert_closed_files(lived)


def test_requests_without_the_key_are_refused_on_both_nodes(lived: Lived) -> None:
    assert {route: answer["http"] for route, answer in lived.answers.items()} == {
        f"{node}: {route}": "401" for node in NODES for route in ROUTES
    }


# On real vLLM and Ray


CASES = {
    "ray": tiny(nodes=2, tensor_parallel=2, executor="ray"),
    "mp": tiny(nodes=2, tensor_parallel=2),
    "replicas": tiny(nodes=2, replicas=2, tensor_parallel=2),
}
# (program, bound to, what another user gets), without refusals and Slurm's own ports. docs/security.md explains each row.
REACHED: dict[str, set[tuple[str, str, str]]] = {
    "ray": {
        ("VLLM::EngineCor", "fabric", "ZeroMQ"),
        ("ray::RayWorkerP", "fabric", "ZeroMQ"),
        ("ray::RayWorkerP", "fabric", "connection"),
        ("ray::RayWorkerP", "every address", "torch store"),
    },
    "mp": {
        ("VLLM::EngineCor", "fabric", "ZeroMQ"),
        ("VLLM::Worker_TP", "fabric", "ZeroMQ"),
        ("VLLM::Worker_TP", "fabric", "connection"),
        ("VLLM::Worker_TP", "every address", "torch store"),
    },
    "replicas": {
        ("VLLM::Worker_TP", "loopback", "connection"),
        ("vllm::router", "loopback", "HTTP 200"),
    },
}
REFUSALS = ("no connection", "HTTP 401", "gRPC UNAUTHENTICATED")


@pytest.mark.faults
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kind", CASES)
def test_ports_give_other_users_only_what_docs_security_lists(
    kind: str, real_checkouts: Callable[[], RealCheckout], tmp_path: Path
) -> None:
    checkout = real_checkouts()
    checkout.config["deployments"] = {"a": CASES[kind]}
    lived = Lived(checkout, new_canaries())
    running = checkout.start("--", "serve", **lived.canaries)
    checkout.wait_for_progress("READY", subject="a", seconds=700)
    attempt = max((checkout.results / "serving/a/attempts").iterdir())
    lived.look(attempt)

    listening = [listener for node in NODES for listener in listeners(checkout, node)]
    said = {node: knock(checkout, node, [d for d in listening if not d.loopback or d.node == node]) for node in NODES}
    table = []
    for listener in listening:
        words = {node: verdict(said[node].get(listener.address, {"connect": False})) for node in NODES}
        table.append((listener.node, listener.program, listener.flag, listener.bound, *words.values()))
    head = ("on", "program", "option", "bound to", "another user on node1 gets", "another user on node2 gets")
    print(
        "\n" + "".join(f"| {' | '.join(row)} |\n" for row in (head, ("---",) * 6, *dict.fromkeys(table))),
        file=sys.stderr,
    )
    found = {(listener.program, listener.place, word) for listener, row in zip(listening, table, strict=True) for word in row[4:]}
    found = {row for row in found if row[0] != "srun" and row[2] not in REFUSALS}
    given = {word for row in table for word in row[4:]}
    assert "HTTP 401" in given
    if kind == "ray":
        assert {listener.program for listener in listening} >= {"gcs_server", "raylet"}
        assert {"gRPC UNAUTHENTICATED"} == {word for word in given if word.startswith("gRPC")}
    counters = [d for d in listening if d.program == "vllm::router" and (d.program, d.place, "HTTP 200") in found]
    for listener in counters:
        body = said[listener.node][listener.address]["body"]
        assert requests_repeated(body) == 0 and RUN not in body
    sockets = [listener.address for listener in listening if not listener.loopback and verdict(said["node2"][listener.address]) == "ZeroMQ"]
    heard = overheard(checkout, sockets, attempt) if sockets else False
    print(f"{kind}: prompts are {'read' if heard else 'not read'} from {len(sockets)} sockets", file=sys.stderr)
    assert found == REACHED[kind]
    # If this changes, update docs/security.md and servemark.planning.exposure.
    assert heard == (kind != "replicas")

    stopped = checkout.cluster.run(
        [sys.executable, "-m", "servemark.cli", "stop", "a"], cwd=checkout.path,
        env={"PYTHONPATH": str(checkout.path / "workflow" / "lib")},
    )  # fmt: skip
    assert stopped.returncode == 0, stopped.stderr
    lived.done = running.wait(90)
    assert lived.done.rc == 0, lived.done.text
    checkout.assert_nothing_left()
    assert ("ray-token" in lived.canaries) == (kind == "ray") and "api-key" in lived.canaries
    assert_closed_files(lived)
    assert_no_canary(lived, tmp_path)
