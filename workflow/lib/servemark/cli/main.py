"""The ``servemark`` command: looks at a configuration, at what lives, stops it, tells support of a run, and checks its archive."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from servemark import __version__
from servemark.cli import reference, ticket
from servemark.cli import status as status_table
from servemark.cli import stop as stopping
from servemark.cli.live import Jobs, living
from servemark.config import document, paths
from servemark.config.expand import expand, points
from servemark.config.load import load
from servemark.errors import ServemarkError
from servemark.files import storage
from servemark.planning import exposure
from servemark.records import schemas, write_atomically

RESULTS = Path("results")


def check(path: Path, cluster: str | None = None) -> None:
    """Validate a configuration and print what it asks for."""
    config = expand(load(path, cluster, paths.problems))
    where = "on the cluster" if config.cluster else "on this machine"
    print(f"{path}: valid. Run {config.run}, {where}, results in results/{config.run}/")
    for name, deployment in config.deployments.items():
        topology = deployment.topology
        more = "".join(f", {count} {what}" for count, what in ((topology.replicas, "replicas"), (topology.all_nodes, "nodes")) if count > 1)
        print(
            f"  {name}: model {deployment.model}, environment {deployment.environment}, executor {topology.executor}, "
            f"{topology.record().world_size} rank(s), {len(points(config, name))} load points{more}"
        )
        exclusive = config.cluster is None or config.cluster.exclusive
        for note in exposure.notes(topology.record(), exclusive=exclusive):
            print(f"    warning: {note} See {exposure.PAGE}.")
    for text in paths.warnings(config):
        print(f"servemark: {text}", file=sys.stderr)


def generate(root: Path) -> None:
    """Write the configuration's schema and reference, the records' schemas, and the page of all reasons."""
    document.write(root / "config")
    schemas.write(root / "workflow" / "schemas")
    reference.write(root)


def status(as_json: bool) -> None:
    """Print what lives in this checkout."""
    jobs, now = Jobs(), time.time()
    found = living(RESULTS, jobs, now)
    print(status_table.as_json(found) if as_json else status_table.table(found, now), end="")
    if jobs.trouble and any(one.job_id for one in found):
        print(f"servemark: Slurm was not asked ({jobs.trouble}); this is what the files say.", file=sys.stderr)


def write_ticket(run: str, output: Path | None) -> None:
    """Write the support ticket of a run and say where it is."""
    made = ticket.compile_ticket(RESULTS / run)
    path = output or Path(f"servemark-ticket-{run}.txt")
    # For its user alone until they hand it on.
    write_atomically(path, made.text, mode=0o600)
    print(f"wrote {path} ({len(made.text.encode()) / 1024:.0f} KiB); look it over, then attach or paste it")
    for kind, count in made.redacted.items():
        print(
            f"servemark: {count} x {kind} was replaced in it; renew that secret, since a log or record has it",
            file=sys.stderr,
        )


def verify(path: Path) -> None:
    """Check an archive and print what was looked at.

    Raises:
        ServemarkError: something is wrong with it; the message names everything.
    """
    # Here, because pandas takes longer to load than the other commands take to answer.
    from servemark import verification

    answer = verification.verify(path)
    print(f"{path}: {'wrong' if answer.wrong else 'all well'}")
    print(answer.summary(), flush=True)
    if not answer.wrong:
        return
    raise ServemarkError(
        f"{path.name}: {len(answer.wrong)} found that should not be so:\n" + "\n".join(f"  {text}" for text in answer.wrong),
        look=f"{path}, unpacked with tar --zstd -xf into an empty folder",
        do="Rely on no figure that is named. Ask who sealed it for another copy, and for its identity.",
        reason="archive_wrong",
    )


def show(path: Path) -> None:
    """Print the main table of an archive or of a run's folder."""
    from servemark.verification import show as showing

    print(showing.show(path), end="")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="servemark", description=__doc__)
    parser.add_argument("--version", action="version", version=f"servemark {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="validate a configuration; starts nothing")
    checking.add_argument("config", type=Path, nargs="?", default=Path("config/config.yaml"))
    checking.add_argument("--cluster", help="NAME of config/clusters/NAME.yaml, or a path, in place of the file's own")
    looking = commands.add_parser("status", help="what lives in this checkout: measured deployments and held endpoints")
    looking.add_argument("--json", action="store_true", help="as JSON")
    ending = commands.add_parser("stop", help="end one deployment or endpoint, from any machine that sees its files")
    ending.add_argument("name", help="of the deployment, as `servemark status` shows it")
    ending.add_argument("--run", help="which run's, where several have that name")
    telling = commands.add_parser("ticket", help="one text file about a run for the cluster's support")
    telling.add_argument("run", help="name of the run")
    telling.add_argument("-o", "--output", type=Path, help="where to write it; default servemark-ticket-RUN.txt")
    verifying = commands.add_parser("verify", help="recompute an archive's digests and figures from what is in it; needs no network")
    verifying.add_argument("archive", type=Path, metavar="FILE", help="results/RUN/archive/RUN.tar.zst")
    showing = commands.add_parser("show", help="the main table of an archive, or of a run's folder")
    showing.add_argument("run", type=Path, metavar="FILE", help="a .tar.zst, or results/RUN")
    generating = commands.add_parser("generate", help="write the schemas and the table of keys anew (for developers)")
    generating.add_argument("root", type=Path, nargs="?", default=Path())
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code: 0, 1 when it could not be done, 2 for a bad configuration or an unknown name."""
    arguments = _parser().parse_args(argv)
    try:
        match arguments.command:
            case "check":
                check(arguments.config, arguments.cluster)
            case "status":
                status(arguments.json)
            case "stop":
                stopping.stop(RESULTS, arguments.name, arguments.run, lambda text: print(text, flush=True))
            case "ticket":
                write_ticket(arguments.run, arguments.output)
            case "verify":
                verify(arguments.archive)
            case "show":
                show(arguments.run)
            case _:
                generate(arguments.root)
    except ServemarkError as error:
        print(f"servemark: {error.message()}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("servemark: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Who read us, such as `head`, has enough; what is still to be written at the end has nowhere to go either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        refused = storage.refusal(error)
        if refused is None:
            raise
        print(f"servemark: {refused.message()}", file=sys.stderr)
        return refused.exit_code
    return 0
