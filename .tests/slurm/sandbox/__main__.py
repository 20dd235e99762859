"""The sandbox by hand: ``python -m sandbox start|stop|status|shell|run DIR``."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from . import trees
from .options import Options, SandboxError
from .sandbox import Sandbox

CHECKOUT = Path(__file__).resolve().parents[3]
_HELP = {
    "accounting": "slurmdbd on a private MariaDB, with accounts, limits and QOS enforced",
    "preemption": "partitions low-requeue, low-cancel and high",
    "kill_wait": "seconds from SIGTERM to SIGKILL at a job's end",
    "client_node": "a third node, client1, without GPUs; partitions client and mixed",
    "proctrack": "cgroup: a job's daemons die with it; linuxproc: they may survive",
    "slurmd_timeout": "seconds of silence before a node is DOWN",
    "requeue_wait": "least seconds before a requeued job starts again",
    "accounts": "Slurm accounts, the first is the default",
    "qos": "QOS in addition to normal",
    "second_user": "an existing user that may submit jobs in addition to root",
    "default_route": "a default route through eth0, which leads nowhere",
    "gpus": "pretended GPUs per GPU node",
    "cpus": "pretended cores per node",
    "memory_mb": "pretended memory per node, MiB",
    "release": "Slurm's release, from a tree (`python -m sandbox tree`); empty: this machine's own",
    "shared_paths": "folders below /tmp or /run that all nodes shall see",
}


def _names(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sandbox", description="A small Slurm cluster on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("start", help="start a cluster", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for field in dataclasses.fields(Options):
        flag, help_text = "--" + field.name.replace("_", "-"), _HELP[field.name]
        if isinstance(field.default, bool):
            start.add_argument(flag, default=field.default, action=argparse.BooleanOptionalAction, help=help_text)
        elif isinstance(field.default, tuple):
            start.add_argument(flag, default=field.default, type=_names, metavar="A,B", help=help_text)
        else:
            start.add_argument(flag, default=field.default, type=type(field.default), help=help_text)
    for name, text in (
        ("stop", "end it; logs stay"),
        ("status", "what there is and runs; exit code 1 when nothing does"),
        ("shell", "a shell on the login node"),
        ("run", "run a command on the login node: run DIR -- COMMAND..."),
    ):
        commands.add_parser(name, help=text)
    for parser_ in commands.choices.values():
        parser_.add_argument("folder", type=Path, metavar="DIR")
    commands.add_parser("tree", help="make the tree of another release of Slurm").add_argument("release", choices=list(trees.SUITES))
    for name in ("shell", "run"):
        commands.choices[name].add_argument("--node", default="login")
        commands.choices[name].add_argument("--user", default=None, help="an existing user of this machine")
    commands.choices["run"].add_argument("argv", nargs="+", metavar="COMMAND")
    return parser


def _start(folder: Path, options: Options) -> int:
    sandbox = Sandbox(folder, options).start()
    print(f"Slurm sandbox up in {sandbox.started_in:.1f} s: {_summary(sandbox)}")
    print(f"Next: python -m sandbox shell {folder}; at the end: python -m sandbox stop {folder}")
    return 0


def _stop(folder: Path) -> int:
    begun = time.monotonic()
    sandbox = Sandbox(folder)
    sandbox.stop()
    left = sandbox.leftovers()
    for line in left:
        print(f"still there: {line}", file=sys.stderr)
    print(f"Slurm sandbox stopped in {time.monotonic() - begun:.1f} s; logs are in {folder}/log")
    return 1 if left else 0


def _summary(sandbox: Sandbox) -> str:
    partitions = sandbox.run(["sinfo", "-h", "-o", "%R"]).stdout.split()
    return (
        f"nodes {', '.join(sandbox.nodes)}; pretended GPUs per GPU node: {sandbox.options.gpus}; "
        f"partitions {', '.join(dict.fromkeys(partitions))}; accounting {'on' if sandbox.options.accounting else 'off'}"
    )


def _status(sandbox: Sandbox) -> int:
    if not sandbox.alive:
        print(f"No Slurm sandbox runs in {sandbox.folder}.")
        return 1
    print(_summary(sandbox))
    for argv in (["sinfo", "-N", "-l"], ["squeue", "--all"]):
        done = sandbox.run(argv)
        print(done.stdout or done.stderr, end="")
    return 0


def examples(cluster: Path) -> tuple[str, str, str]:
    """Return three commands to try in the checkout: one takes seconds, the others minutes (real vLLM on CPU)."""
    name, two_nodes = shlex.quote(str(cluster)), "config/examples/two-nodes.yaml"
    return (
        f".venv/bin/servemark check --cluster {name} {two_nodes}",
        f".venv/bin/snakemake --profile slurm --config run=sandbox cluster={name}",
        f".venv/bin/snakemake --profile slurm --configfile {two_nodes} --config cluster={name}",
    )


def _welcome(sandbox: Sandbox, node: str) -> None:
    print(f"You are on {node}: {_summary(sandbox)}. `exit` leaves the shell.")
    print("Name the sandbox's cluster file in every command. Commands to try: check a file, measure on one node, measure on two nodes:\n")
    print("\n".join(f"    {command}" for command in examples(sandbox.cluster_file)) + "\n", flush=True)


def _enter(sandbox: Sandbox, argv: Sequence[str], node: str, user: str | None, here: Path) -> int:
    child = sandbox.popen(argv, node=node, user=user, cwd=here if sandbox.sees(here, node) else "/tmp")
    # The terminal also sends ^C to the command, which handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
    code = child.wait()
    return 128 - code if code < 0 else code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    chosen = vars(_parser().parse_args(arguments))
    command, folder = chosen.pop("command"), chosen.pop("folder", Path())
    try:
        if command == "tree":
            print(f"Slurm {chosen['release']}: {trees.make(chosen['release'])}")
            return 0
        if command == "start":
            return _start(folder, Options(**chosen))
        if command == "stop":
            return _stop(folder)
        sandbox = Sandbox(folder)
        if command == "status":
            return _status(sandbox)
        if command == "shell":
            _welcome(sandbox, chosen["node"])
            return _enter(sandbox, ["/bin/bash"], **chosen, here=CHECKOUT)
        return _enter(sandbox, chosen.pop("argv"), **chosen, here=Path.cwd())
    except SandboxError as error:
        print(f"sandbox: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
