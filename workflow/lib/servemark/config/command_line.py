"""Check the files given to Snakemake's ``--configfile`` before Snakemake reads them.

Snakemake reads them before it includes the Snakefile. A missing file, a folder, another encoding or deep nesting then ends in a traceback
with exit code 1, and an alias bomb never ends (snakemake 9.27: settings/types.py, ConfigSettings; common/configfile.py). Snakemake imports
every installed executor plugin before it parses its command line. The plugin ``slurm-guarded`` then calls :func:`check` with every
executor, because ``servemark-1.dist-info`` names it. The Snakefile checks its own ``config/config.yaml``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from servemark.config.load import read_mapping
from servemark.errors import ConfigError


def check(argv: Sequence[str] | None = None) -> None:
    """Refuse files of ``--configfile`` that are not configurations. ``argv``: of this process; ignored unless it runs Snakemake."""
    argv = sys.argv if argv is None else argv
    program = Path(argv[0]) if argv else Path()
    if program.name == "snakemake" or program.parts[-2:] == ("snakemake", "__main__.py"):
        refuse_unreadable(_files(argv[1:]))


def refuse_unreadable(paths: Iterable[Path]) -> None:
    """End the process with a message and exit code 2 if a file is not a configuration."""
    try:
        for path in paths:
            read_mapping(path)
    except ConfigError as error:
        print(f"servemark: {error.message()}", file=sys.stderr)
        sys.exit(error.exit_code)


def _files(arguments: Sequence[str]) -> list[Path]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--configfile", "--configfiles", nargs="+", type=Path, default=[])
    try:
        found: list[Path] = parser.parse_known_args(arguments)[0].configfile
    except argparse.ArgumentError:  # Snakemake reports it
        return []
    return found
