"""What another user of the same nodes and network gets: no answer, no file, no secret; and what cannot be closed is named.

On the stand-in: secrets of the user and of the run are nowhere, also where a site stores every job's script and environment. On real
vLLM and Ray: every port that a deployment opens is tried from both nodes by somebody without key or token.
"""

from __future__ import annotations

import json
import pwd
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zstandard
from real_checkout import NODES, RealCheckout, tiny
from sandbox import Sandbox

from integration.harness import RUN, Finished
from servemark import launch_router

NOBODY = pwd.getpwnam("nobody").pw_uid


@dataclass
class Lived:
    """A deployment that was looked at while it lived, and has ended since."""

    checkout: RealCheckout
    canaries: dict[str, str]
    command_lines: str = ""
    readable: dict[str, list[str]] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    answers: dict[str, dict] = field(default_factory=dict)
    done: Finished | None = None

    def look(self, folder: Path) -> None:
        """Everything that is to be seen of a living deployment, without the answers of its ports. ``folder``: of its newest attempt."""
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
    """Files below the roots that another user can read on this node."""
    found = cluster.run(
        ["find", *roots, "-xdev", "-type", "f", "-readable", "-print"], node=node, user="nobody", timeout=60
    )
    return found.stdout.splitlines()


def shared_memory(pid: int) -> dict[str, int]:
    """Files of shared memory that a process has mapped, with their modes."""
    try:
        names = {
            line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if " /dev/shm/" in line
        }
    except OSError:
        return {}
    return {name: Path(name).stat().st_mode & 0o777 for name in names if Path(name).exists()}


def new_canaries() -> dict[str, str]:
    """Secrets as users have them in their environment, by the variable; each is found by its text alone."""
    return {
        "HF_TOKEN": "hf_" + secrets.token_hex(17),
        "DATABASE_SECRET": "canary" + secrets.token_hex(16),
        "TEAM_API_KEY": "canary" + secrets.token_hex(16),
        "OPENAI_API_KEY": "canary" + secrets.token_hex(16),
        "SITE_PASSWORD": "canary" + secrets.token_hex(16),
    }


def holding(texts: list[str], folders: list[Path]) -> list[str]:
    """Files below the folders that hold one of the texts."""
    # The texts go by standard input: nothing is searched for on a command line that others see.
    argv = ["grep", "--recursive", "--files-with-matches", "--text", "--fixed-strings", "--devices=skip", "--file=-"]
    done = subprocess.run([*argv, *map(str, folders)], input="\n".join(texts), capture_output=True, text=True)
    assert done.returncode in (0, 1) or "No such file" in done.stderr, done.stderr
    return done.stdout.splitlines()


def accounting(cluster: Sandbox, jobs: list[str]) -> str:
    """All that Slurm tells of jobs: every field, and each stored script and environment."""
    text = cluster.run(
        ["sacct", "--allusers", "--parsable2", "--format=ALL", f"--jobs={','.join(jobs)}"], check=True
    ).stdout
    for job in jobs:
        for stored in ("--batch-script", "--env-vars"):
            text += cluster.run(["sacct", f"--jobs={job}", stored], check=True).stdout
        text += cluster.run(["scontrol", "show", "job", "-dd", job]).stdout
    return text


def assert_no_canary(lived: Lived, tmp_path: Path) -> None:
    """None of the secrets is in what Slurm stores, on a command line, in the run's files, in the archive, or on a node."""
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
    """Of what an attempt holds nobody else reads anything; secrets are the owner's alone."""
    assert lived.modes["."] == 0o700
    private = {
        name: mode
        for name, mode in lived.modes.items()
        if name in ("api-key", "ray-token") or re.match(r"(requests|tools)/", name)
    }
    assert "api-key" in private and len(private) > 1
    private = {name: mode for name, mode in private.items() if ".place." not in name}
    assert set(private.values()) == {0o600}, private
    for node, files in lived.readable.items():
        assert any("/checkout/config/" in name for name in files), "nobody gets as far as the checkout"
        inside = [name for name in files if "/attempts/" in name or name.startswith("/tmp/servemark-")]
        assert inside == [], f"{node}: readable by anybody"
    assert {name: oct(mode) for name, mode in lived.shared.items() if mode & 0o077} == {}, "shared memory of others"


# On the stand-in


@pytest.fixture(scope="module")
def lived(prepared_standin: RealCheckout, standin_checkouts: Callable[[], RealCheckout]) -> Iterator[Lived]:
    checkout = standin_checkouts()
    found = Lived(checkout, new_canaries())
    checkout.keep("a")
    # Fifty seconds for the point: time to look at what lives, on a busy machine too.
    checkout.config["workloads"]["chat"] |= {"requests": 50, "concurrency": 2}
    running = checkout.start(STANDIN_TOKEN_S="0.5", **found.canaries)
    checkout.wait_for_progress("chat-c2-r1: 50 requests", subject="a", seconds=90)
    server = checkout.record("deployments/a/ready.json")["url"].removeprefix("http://")
    found.answers = {
        f"{node}: {route}": curl(checkout.cluster, node, server, route) for node in NODES for route in ROUTES
    }
    found.look(checkout.attempts("a")[-1])
    found.done = running.wait(180)
    yield found


ROUTES = ("/health", "/metrics", "/v1/models", "/version", "/", "/nothing")


def curl(cluster: Sandbox, node: str, address: str, route: str) -> dict:
    """The status that nobody, without a key, gets on a node."""
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
def test_secrets_of_the_user_and_the_run_are_stored_nowhere(lived: Lived, tmp_path: Path) -> None:
    assert lived.done is not None and lived.done.rc == 0, lived.done and lived.done.text
    assert_no_canary(lived, tmp_path)


def test_no_other_user_reads_what_is_not_a_result(lived: Lived) -> None:
    assert_closed_files(lived)


def test_nobody_without_the_key_is_answered_on_either_node(lived: Lived) -> None:
    assert {route: answer["http"] for route, answer in lived.answers.items()} == {
        f"{node}: {route}": "401" for node in NODES for route in ROUTES
    }


# On real vLLM and Ray


@dataclass(frozen=True)
class Door:
    """A listening socket of a node: who has it, and on which addresses."""

    node: str
    bound: str
    port: int
    program: str
    flag: str

    @property
    def address(self) -> str:
        """How to reach it; loopback only from the node itself."""
        host = self.bound.strip("[]").removeprefix("::ffff:")
        return f"{ADDRESS[self.node] if host in ('0.0.0.0', '*', '::') else host}:{self.port}"

    @property
    def loopback(self) -> bool:
        return self.address.startswith("127.")


ADDRESS = {"node1": "10.77.0.11", "node2": "10.77.0.12"}
_SOCKET = re.compile(r"LISTEN +\d+ +\d+ +(\S+):(\d+) .*?\(\(\"([^\"]+)\",pid=(\d+)")


def doors(checkout: RealCheckout, node: str) -> list[Door]:
    """Every listening socket on a node but Slurm's own daemon's, with the option of its program's command line that names the port."""
    listed = checkout.cluster.run(["ss", "-ltnpH"], node=node, check=True).stdout
    commands = {process.node_pid: process.command for process in checkout.cluster.processes(node)}
    found = []
    for line in listed.splitlines():
        bound, port, program, pid = _SOCKET.match(line).groups()
        flag = re.search(rf"--([\w-]+)[= ]{port}\b", commands.get(int(pid), ""))
        if program != "slurmd":
            found.append(Door(node, bound, int(port), program, flag[1] if flag else ""))
    return found


def knock(checkout: RealCheckout, node: str, wanted: list[Door]) -> dict[str, dict]:
    """What the doors say to another user, without key or token, who stands on this node."""
    python = checkout.record("environments/cpu/environment.json")["python"]
    script = str(Path(__file__).with_name("knock.py"))
    clean = ["env", "--ignore-environment", "PATH=/usr/bin:/bin", "HOME=/nonexistent"]
    addresses = sorted({door.address for door in wanted})
    done = checkout.cluster.run([*clean, python, script, str(NOBODY), *addresses], node=node, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def verdict(door: Door, answer: dict) -> str:
    """In a word, what a stranger gets there."""
    if not answer["connect"]:
        return "no connection"
    if answer["http"] is not None:
        return f"HTTP {answer['http']}"
    if answer["grpc"]:
        return "gRPC " + ", ".join(sorted(set(answer["grpc"].values())))
    return "a connection, no answer"


# What cannot be closed by us: it takes connections of anybody who reaches the node, and speaks no protocol that asks who it is.
OPEN = {
    # torch.distributed's store and gloo's pairs, and vLLM's ZeroMQ sockets: no authentication in any of them.
    "VLLM::Worker", "VLLM::EngineCor", "VLLM::DPCoordin", "ray::RayWorkerP", "ray::DPMoEEngin",
    # Slurm's: it checks munge credentials itself.
    "srun",
}  # fmt: skip


CASES = {
    "ray": tiny(nodes=2, tensor_parallel=2, executor="ray"),
    "replicas": tiny(nodes=2, replicas=2),
}


@pytest.mark.faults
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kind", CASES)
def test_a_stranger_gets_nothing_from_real_vllm_and_ray(
    kind: str, real_checkouts: Callable[[], RealCheckout], tmp_path: Path
) -> None:
    checkout = real_checkouts()
    checkout.config["deployments"] = {"a": CASES[kind]}
    lived = Lived(checkout, new_canaries())
    running = checkout.start("--", "serve", **lived.canaries)
    checkout.wait_for_progress("READY", subject="a", seconds=700)
    attempt = max((checkout.results / "serving/a/attempts").iterdir())
    lived.look(attempt)

    listening = [door for node in NODES for door in doors(checkout, node)]
    said = {node: knock(checkout, node, [d for d in listening if not d.loopback or d.node == node]) for node in NODES}
    table, wrong = [], []
    for door in listening:
        words = {node: verdict(door, said[node].get(door.address, {"connect": False})) for node in NODES}
        table.append((door.node, door.program, door.flag, f"{door.bound}:{door.port}", *words.values()))
        wrong += [(door, word) for word in words.values() if not allowed(door, word, said[door.node][door.address])]
    unique = dict.fromkeys((*row[:3], row[3].rpartition(":")[0], *row[4:]) for row in table)
    head = ("on", "program", "option", "bound to", "a stranger on node1 gets", "a stranger on node2 gets")
    print("\n" + "".join(f"| {' | '.join(row)} |\n" for row in (head, ("---",) * len(head), *unique)), file=sys.stderr)
    assert wrong == []
    answered = {words for row in table for words in row[4:]}
    assert "HTTP 401" in answered
    if kind == "ray":
        assert {door.program for door in listening} >= {"gcs_server", "raylet"}
        assert {"gRPC UNAUTHENTICATED"} == {word for word in answered if word.startswith("gRPC")}

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


def allowed(door: Door, word: str, answer: dict) -> bool:
    """Whether a stranger may get this: a refusal, nothing, or one of what cannot be closed."""
    if word in ("no connection", "HTTP 401", "gRPC UNAUTHENTICATED"):
        return True
    if word == "a connection, no answer":
        return door.program in OPEN
    # The router's counters lie on loopback and ask for no key: numbers of requests, as launch_router says.
    metrics = door.program == "vllm::router" and door.loopback and word == "HTTP 200"
    return metrics and launch_router.requests_repeated(answer["body"]) == 0 and RUN not in answer["body"]
