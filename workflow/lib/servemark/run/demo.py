"""What ``make demo`` does and how long it takes, printed before it begins: ``python -m servemark.run.demo``."""

import sys
from collections.abc import Iterator
from pathlib import Path

from servemark.config.expand import expand, points
from servemark.config.load import load
from servemark.config.model import Config
from servemark.config.restarts import starts
from servemark.environments import lockfiles
from servemark.environments.build import MARKER, prefix_of
from servemark.errors import ServemarkError
from servemark.planning.advice_data import NUMBERS

CONFIG = Path("config/config.yaml")


def preview(config: Config) -> Iterator[str]:
    """Yield the lines; none if the run has completed before, because another `make demo` then has little or nothing to do."""
    folder = Path("results") / config.run
    if (folder / "check.json").exists():
        return
    built, download = [], ""
    locks = lockfiles.table(Path("envs"))
    for name, lock in ((name, locks.get(asked.lock or "")) for name, asked in config.environments.items()):
        if lock is None:
            continue
        if (prefix_of(lock, Path(config.cache)) / MARKER).exists():
            built.append(f"- find the environment {name}, which was built before")
        else:
            size, download = f"{lock.wheels_gib} GiB to download, {lock.installed_gib} GiB on disk, once", " plus the download"
            built.append(f"- build the environment {name} with vLLM and Ray: {len(lock.packages())} packages, {size}")
    yield f"make demo runs {CONFIG} on this machine. It takes about {NUMBERS['demo']} on {NUMBERS['demo'].hardware}{download}:"
    yield from built
    counts = [len(points(config, name)) for name in starts(config)]
    yield f"- start {len(counts)} deployments, one after the other: {', '.join(starts(config))}"
    yield f"- measure {sum(counts)} load points in all, and write {folder}/report.html, measurements.csv and an archive"
    yield "Ctrl-C stops everything. `make demo` then continues."


def main() -> None:
    """Print the lines. A refused configuration prints nothing here, because Snakemake reports it next."""
    try:
        lines = list(preview(expand(load(CONFIG))))
    except ServemarkError:
        return
    for line in lines:
        print(f"servemark: {line}", file=sys.stderr)


if __name__ == "__main__":
    main()
