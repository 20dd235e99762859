"""Write the configuration of a reproduction with the archive's lock files and manifests, all or nothing."""

import contextlib
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from servemark.config import load as config_load
from servemark.config import paths
from servemark.config.expand import expand
from servemark.config.field_types import NAME_LENGTH, RUN_PATTERN
from servemark.errors import ConfigError
from servemark.reproduction import apart, archived, configuration
from servemark.reproduction.archived import CannotReproduce
from servemark.verification import printable

FOLDER, SUFFIX = Path("reproduced"), "-reproduced"


@dataclass(frozen=True)
class Reproduction:
    """A written configuration.

    Attributes:
        notes: what cannot be the same as in the archive's run.
        problems: what must be repaired before the run can start, a sentence each.
        profile: Snakemake's profile for it.
    """

    run: str
    identity: str
    folder: Path
    notes: tuple[str, ...]
    problems: tuple[str, ...]
    profile: str

    @property
    def config(self) -> Path:
        """Return the configuration."""
        return self.folder / configuration.CONFIG

    @property
    def results(self) -> Path:
        """Return the folder of the new run's results."""
        return Path("results") / self.run


def prepare(archive: Path, directory: Path | None = None, cluster: str | None = None) -> Reproduction:
    """Write what reproduces an archive into a new folder of this checkout.

    Args:
        directory: the folder; its name is the name of the new run. Default reproduced/RUN-reproduced.
        cluster: name or path of a cluster file, in place of the archive's.

    Raises:
        CannotReproduce: the archive does not verify, a folder exists, or this version cannot use its configuration. Nothing was written.
    """
    if not Path("Snakefile").is_file():
        do = "Change to the checkout of servemark and run the command again."
        raise CannotReproduce(f"{Path.cwd()} is not a checkout of servemark: it has no Snakefile.", do=do)
    try:
        return _prepared(archive, directory, cluster)
    # Valid records of an untrusted sender may still hold values from which no configuration can be made.
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        raise CannotReproduce(f"{archive} holds values that cannot be used: {type(error).__name__}: {str(error)[:200]}") from None


def _prepared(archive: Path, directory: Path | None, cluster: str | None) -> Reproduction:
    found = archived.read(archive)
    run = directory.name if directory else f"{found.records.run[: NAME_LENGTH - len(SUFFIX)]}{SUFFIX}"
    folder = directory or FOLDER / run
    if not re.fullmatch(RUN_PATTERN, run) or len(run) > NAME_LENGTH:
        do = "Name the folder with lower-case letters, digits, dots, dashes and underscores; its name is the name of the new run."
        raise CannotReproduce(f"{run!r} is no name of a run.", do=do)
    for place in (folder, Path("results") / run):
        if os.path.lexists(place):
            do = f"Continue the earlier reproduction with snakemake, or pass another folder: servemark reproduce {archive} DIRECTORY"
            raise CannotReproduce(f"{place} exists already. servemark does not overwrite it.", do=do, reason="exists")
    made = configuration.make(found, folder, run, cluster)
    files = {name: content for name, content in found.files.items() if name != "config.json"}
    files |= {"archived-config.json": found.files["config.json"], configuration.CONFIG: _yaml(made.config)}
    if made.cluster is not None:
        files[configuration.CLUSTER] = _yaml(made.cluster)
    scheduled = made.config["cluster"] is not None
    notes = printable(*apart.notes(found.records, Path.cwd(), scheduled=scheduled), *made.notes)
    _write(folder, files)
    try:
        config = expand(config_load.load(folder / configuration.CONFIG))
    except ConfigError as error:
        shutil.rmtree(folder)
        if not directory:
            with contextlib.suppress(OSError):  # It holds other reproductions.
                FOLDER.rmdir()
        what = f"This version of servemark cannot use the archive's configuration.\n{error.what.replace(str(folder) + '/', '')}"
        do = "Check out the commit that the archive states (`servemark show` prints it), or write the configuration by hand."
        raise CannotReproduce(what, do=do) from None
    missing = () if scheduled else apart.missing_gpus(found.records)
    problems = printable(*missing, *(f"{'.'.join(map(str, one.loc))}: {one.text}" for one in paths.problems(config)))
    return Reproduction(run, found.identity, folder, notes, problems, "profiles/slurm" if scheduled else "profiles/local")


def _yaml(value: Any) -> bytes:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=140).encode()


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """Write all files, or none: the folder appears when it is complete."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".reproduced-", dir=folder.parent) as temporary:
            whole = Path(temporary) / "whole"
            for name, content in files.items():
                path = whole / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            whole.rename(folder)
    except OSError as error:
        raise CannotReproduce(
            f"servemark cannot write the folder {folder}: {error.strerror or error}.",
            do="Pass another folder: servemark reproduce ARCHIVE DIRECTORY",
            reason="cannot_write",
        ) from None
