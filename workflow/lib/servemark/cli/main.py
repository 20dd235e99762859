"""The ``servemark`` command: check configurations, plan, list and stop deployments, verify, compare and reproduce runs."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from servemark import __version__
from servemark.archive import signature
from servemark.cli import bundle as bundling
from servemark.cli import status as status_table
from servemark.cli import stop as stopping
from servemark.cli import ticket
from servemark.cli.check import check
from servemark.cli.compare import compare
from servemark.cli.init import init
from servemark.cli.live import Jobs, living
from servemark.cli.reproduce import reproduce
from servemark.environments import lockfiles
from servemark.errors import ServemarkError
from servemark.files import storage

RESULTS = Path("results")


def plan(given: argparse.Namespace) -> None:
    """Print how many GPUs hold a model, and its topologies."""
    from servemark.cli import plan as planning

    planning.plan(given)


def generate(root: Path) -> None:
    """Write the schemas of the configuration and of the records, and the reference pages."""
    # Here, because pandas takes longer to load than the other commands take in all.
    from servemark.cli import reference

    reference.write(root)


def status(as_json: bool) -> None:
    """Print the active deployments and endpoints of this checkout."""
    jobs, now = Jobs(), time.time()
    found = living(RESULTS, jobs, now)
    print(status_table.as_json(found) if as_json else status_table.table(found, now), end="")
    if jobs.trouble and any(one.job_id for one in found):
        print(f"servemark: Slurm did not respond ({jobs.trouble}). The table uses files only and may be out of date.", file=sys.stderr)


def stop(name: str, run: str | None) -> None:
    """End one deployment or endpoint."""
    stopping.stop(RESULTS, name, run, lambda text: print(text, flush=True))


def remeasure(run: str, patterns: Sequence[str]) -> None:
    """Set points aside and print what the next run measures again."""
    from servemark.cli import remeasure as again

    found = again.remeasure(RESULTS / run, patterns)
    for name, place in found.items():
        print(f"{name}: earlier results are now in {place}")
    print(f"Rerun the command that started this run: it measures {len(found)} point(s) again.")


def bundle(given: argparse.Namespace) -> None:
    """Collect the wheels of a lock file in a folder."""

    def say(text: str) -> None:
        print(text, flush=True)

    bundling.bundle(given.lock, given.folder, say, python=given.python, machine=given.machine, test=given.test)


def write_ticket(run: str, output: Path | None) -> None:
    """Write the support ticket of a run and print where it is."""
    path = output or Path(f"servemark-ticket-{run}.tar.gz")
    redacted = ticket.write(RESULTS / run, path)
    print(f"wrote {path} ({path.stat().st_size / 1024:.0f} KiB); check its files before you attach it")
    for kind, count in redacted.items():
        print(
            f"servemark: replaced {count} x {kind}. A log or record contains this secret: revoke it and create a new one.", file=sys.stderr
        )


def sign(path: Path, key: Path | None) -> None:
    """Sign an archive and print where the signature is.

    Raises:
        NoSuchFile: ``path`` is no archive.
        ServemarkError: the archive was changed after it was sealed, or cannot be signed.
    """
    from servemark.verification import sealed, unpack

    unpack.require_file(path)
    changed = sealed.check_digest(path)
    with unpack.unpacked(path) as archive:
        changed += sealed.check_manifest(archive)
    if changed:
        raise ServemarkError(
            " ".join(changed), look=str(path), do="Do not sign it. Rerun snakemake to seal the run again.", reason="archive_wrong"
        )
    print(f"wrote {signature.sign(path, key)}; send it together with {path.name}")


def verify(path: Path, keys: Path | None = None) -> None:
    """Check an archive and print what was checked.

    Raises:
        ServemarkError: something is wrong with it; the message names everything.
    """
    # Here, because pandas takes longer to load than the other commands take in all.
    from servemark import verification

    answer = verification.verify(path, keys)
    print(f"{path}: {'FAILED' if answer.wrong else 'OK'}")
    print(answer.summary(), flush=True)
    if answer.wrong:
        raise verification.refused(path, answer.wrong)


def show(path: Path) -> None:
    """Print the main table of an archive or of a run's folder."""
    from servemark.verification import show as showing

    print(showing.show(path), end="")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="servemark", description=__doc__)
    parser.add_argument("--version", action="version", version=f"servemark {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser(
        "init", help="write a first configuration, and a cluster file where there is Slurm, from what this machine offers"
    )
    one.add_argument("--model", help="a folder with config.json and safetensors, hf:ORG/NAME@REVISION, or builtin:tiny-dense")
    one.add_argument(
        "--cluster", metavar="NAME", help="name of the cluster file config/clusters/NAME.yaml; default: Slurm's name of the cluster"
    )
    one.add_argument("--output", type=Path, metavar="FILE", default=Path("my.yaml"), help="the configuration to write; default my.yaml")
    one.add_argument(
        "--yes",
        action="store_true",
        help="ask nothing: take the first choice of each question, and builtin:tiny-dense unless --model is given",
    )
    one.set_defaults(do=lambda given: init(given.output, given.model, given.cluster, yes=given.yes))
    one = commands.add_parser("check", help="check a configuration, and whether this machine and Slurm can run it; starts nothing")
    one.add_argument("config", type=Path, nargs="?", default=Path("config/config.yaml"))
    one.add_argument("--cluster", help="cluster file to use, in place of `cluster` in CONFIG: NAME of config/clusters/NAME.yaml, or a path")
    one.set_defaults(do=lambda given: check(given.config, given.cluster))
    one = commands.add_parser(
        "plan", help="calculate how many GPUs hold a model, and rank the topologies; needs no GPU, Slurm or environment"
    )
    one.add_argument(
        "model", metavar="MODEL", help="a folder, a config.json, hf:ORG/NAME@REVISION, or the keys of config.json as KEY=VALUE,KEY=VALUE"
    )
    one.add_argument(
        "--gpu", required=True, help="name of the GPU, such as h200, or its memory, bandwidth and 16-bit rate '24GiB,0.6TB/s,125TFLOP/s'"
    )
    one.add_argument("--gpus-per-node", type=int, required=True, metavar="N", help="GPUs of a node")
    one.add_argument("--nodes", type=int, metavar="N", help="the most nodes; default the fewest that suffice, up to 32")
    one.add_argument(
        "--context",
        type=int,
        metavar="TOKENS",
        help="tokens of a request, and max-model-len; default --option max-model-len, else the model's",
    )
    one.add_argument("--output-tokens", type=int, metavar="TOKENS", help="output of a request; default half of the context")
    one.add_argument("--concurrency", type=int, default=1, metavar="N", help="requests in flight; default 1")
    one.add_argument(
        "--slo", metavar="LATENCY=MS", help="leave out topologies that cannot meet ttft_ms=N,tpot_ms=N,e2el_ms=N by their lower bounds"
    )
    one.add_argument(
        "--option", action="append", metavar="NAME=VALUE", help="an option of `vllm serve`, such as kv-cache-dtype=fp8; repeatable"
    )
    one.add_argument("--cache", type=Path, metavar="FOLDER", help="keeps what the hub stated; default results/cache")
    one.add_argument("--json", action="store_true", help="print JSON with all topologies")
    one.set_defaults(do=plan)
    one = commands.add_parser("bundle", help="collect the wheels of a lock file in a folder, for a machine without internet")
    one.add_argument("lock", metavar="LOCK", help=f"a lock file: {', '.join(lockfiles.NAMES)}, or the path of your own")
    one.add_argument("folder", metavar="DIR", type=Path, help="the folder for the wheels; rerun the command to continue")
    one.add_argument("--python", type=bundling.release, metavar="X.Y", help="version of Python there; default this one")
    one.add_argument("--machine", help="architecture there, as of `uname -m`: x86_64 or aarch64; default this one")
    one.add_argument("--test", action="store_true", help="also what `make setup-test` installs")
    one.set_defaults(do=lambda given: bundle(given))
    one = commands.add_parser("status", help="list active deployments and endpoints of this checkout")
    one.add_argument("--json", action="store_true", help="print JSON")
    one.set_defaults(do=lambda given: status(given.json))
    one = commands.add_parser("stop", help="end one deployment or endpoint, from any machine with access to its files")
    one.add_argument("name", help="name of the deployment in `servemark status`")
    one.add_argument("--run", help="name of the run, if several runs have a deployment NAME")
    one.set_defaults(do=lambda given: stop(given.name, given.run))
    one = commands.add_parser("remeasure", help="set results of load points aside, so that the next run measures these points again")
    one.add_argument("run", metavar="RUN", help="name of the run")
    one.add_argument("points", metavar="POINT", nargs="+", help="deployment/point, in quotes with * and ?, such as 'plain/chat-c8-*'")
    one.set_defaults(do=lambda given: remeasure(given.run, given.points))
    one = commands.add_parser("ticket", help="pack one tar file about a run for the cluster's support")
    one.add_argument("run", help="name of the run")
    one.add_argument("-o", "--output", type=Path, help="the file to write; default servemark-ticket-RUN.tar.gz")
    one.set_defaults(do=lambda given: write_ticket(given.run, given.output))
    one = commands.add_parser("verify", help="recompute an archive's digests and numbers from its content; needs no network")
    one.add_argument("archive", type=Path, metavar="FILE", help="results/RUN/archive/RUN.tar.zst")
    one.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help="the sender's public SSH key or a file of allowed signers; the signature FILE.sig must be of one of them",
    )
    one.set_defaults(do=lambda given: verify(given.archive, given.key))
    one = commands.add_parser("sign", help="sign an archive with your SSH key: writes FILE.sig, which `servemark verify --key` checks")
    one.add_argument("archive", type=Path, metavar="FILE", help="results/RUN/archive/RUN.tar.zst")
    one.add_argument(
        "--key", type=Path, metavar="KEY", help="private key, or the public one of a key in ssh-agent; default the first in ~/.ssh"
    )
    one.set_defaults(do=lambda given: sign(given.archive, given.key))
    one = commands.add_parser("show", help="print the main table of an archive, or of a run's folder")
    one.add_argument("run", type=Path, metavar="FILE", help="a .tar.zst, or results/RUN")
    one.set_defaults(do=lambda given: show(given.run))
    one = commands.add_parser("compare", help="compare run B with run A: what differs, and where B is better or worse")
    one.add_argument("a", type=Path, metavar="A", help="results/RUN, an archive (.tar.zst), or a reference file (.yaml)")
    one.add_argument("b", type=Path, metavar="B", help="the same; ratios are B / A")
    one.add_argument(
        "--gate",
        metavar="METRIC:-N%",
        help="exit with 1 if B is worse than A beyond this limit; +N for latencies, several limits with commas between them. Metrics: "
        "throughput, total_throughput, mean_ttft, p95_ttft, p50_tpot, p95_tpot, p50_e2el",
    )
    one.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="write compare.html and compare.json here; default: write nothing")
    one.set_defaults(do=lambda given: compare(given.a, given.b, given.gate, given.output))
    one = commands.add_parser(
        "reproduce", help="write the configuration that measures an archive's run again; with --yes, also measure and compare"
    )
    one.add_argument("archive", type=Path, metavar="ARCHIVE", help="results/RUN/archive/RUN.tar.zst")
    one.add_argument(
        "directory",
        type=Path,
        nargs="?",
        metavar="DIRECTORY",
        help="new folder for configuration, lock files and manifests; its name is the name of the run. Default reproduced/RUN-reproduced",
    )
    one.add_argument("--cluster", metavar="NAME", help="cluster file to use: NAME of config/clusters/NAME.yaml, or a path")
    one.add_argument("--yes", action="store_true", help="start the run and compare it with the archive; without it, print the commands")
    one.set_defaults(do=lambda given: reproduce(given.archive, given.directory, given.cluster, yes=given.yes))
    one = commands.add_parser("generate", help="write the schemas and the reference tables again (for developers)")
    one.add_argument("root", type=Path, nargs="?", default=Path())
    one.set_defaults(do=lambda given: generate(given.root))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code: 0, 1 if it failed, 2 for a bad configuration or an unknown name."""
    try:
        arguments = _parser().parse_args(argv)
        arguments.do(arguments)
    except KeyboardInterrupt:
        print("servemark: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader, such as `head`, has ended; the flush at our end would fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ServemarkError, OSError) as error:
        refused = error if isinstance(error, ServemarkError) else storage.refusal(error)
        if refused is None:
            raise
        print(f"servemark: {refused.message()}", file=sys.stderr)
        return refused.exit_code
    return 0
