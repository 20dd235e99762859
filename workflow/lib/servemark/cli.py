"""The ``servemark`` command: looks at a configuration before a run, and writes the generated files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from servemark import __version__, schemas
from servemark.config import document
from servemark.config.expand import expand, points
from servemark.config.load import load
from servemark.errors import ServemarkError


def check(path: Path, cluster: str | None = None) -> None:
    """Validate a configuration and print what it asks for."""
    config = expand(load(path, cluster))
    where = "on the cluster" if config.cluster else "on this machine"
    print(f"{path}: valid. Run {config.run}, {where}, results in results/{config.run}/")
    for name, deployment in config.deployments.items():
        topology = deployment.topology
        more = "".join(
            f", {count} {what}"
            for count, what in ((topology.replicas, "replicas"), (topology.all_nodes, "nodes"))
            if count > 1
        )
        print(
            f"  {name}: model {deployment.model}, environment {deployment.environment}, executor {topology.executor}, "
            f"{topology.record().world_size} rank(s), {len(points(config, name))} load points{more}"
        )


def generate(root: Path) -> None:
    """Write the configuration's schema and reference, and the records' schemas."""
    document.write(root / "config")
    schemas.write(root / "workflow" / "schemas")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code: 0, or 2 for a bad configuration."""
    parser = argparse.ArgumentParser(prog="servemark", description=__doc__)
    parser.add_argument("--version", action="version", version=f"servemark {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="validate a configuration; starts nothing")
    checking.add_argument("config", type=Path, nargs="?", default=Path("config/config.yaml"))
    checking.add_argument("--cluster", help="NAME of config/clusters/NAME.yaml, or a path, in place of the file's own")
    generating = commands.add_parser("generate", help="write the schemas and the table of keys anew (for developers)")
    generating.add_argument("root", type=Path, nargs="?", default=Path())
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "check":
            check(arguments.config, arguments.cluster)
        else:
            generate(arguments.root)
    except ServemarkError as error:
        print(f"servemark: {error.message()}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
