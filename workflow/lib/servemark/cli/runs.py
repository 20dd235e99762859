"""Find the results of a run by its name."""

from pathlib import Path

from servemark.errors import ServemarkError


class NoSuchRun(ServemarkError):
    """The requested run has no results here."""

    exit_code = 2
    default_reason = "no_such_run"


def require(run_folder: Path) -> None:
    """Raise NoSuchRun, with the names of the runs that there are, unless ``run_folder`` holds the results of a run."""
    if not (run_folder / "config.json").exists():
        there = ", ".join(sorted(path.parent.name for path in run_folder.parent.glob("*/config.json"))) or "none"
        raise NoSuchRun(
            f"There is no run {run_folder.name!r} in this checkout. Runs here: {there}.",
            do="Correct the name, or change to the checkout of the run.",
        )
