"""``servemark compare``: print a comparison of two runs, write its page and record, and exit with 1 for a regression."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from servemark.errors import ServemarkError

PAGE, RECORD = "compare.html", "compare.json"


def compare(a: Path, b: Path, gate: str | None = None, output: Path | None = None) -> None:
    """Print how B differs from A.

    Args:
        gate: the limits, as ``--gate`` takes them.
        output: a folder for the page and the record; None: write nothing.

    Raises:
        ServemarkError: ``gate_exceeded``, a regression is beyond a limit. Exit code 2: the sides cannot be compared, or ``gate`` is wrong.
    """
    # Here, because pandas takes longer to load than the other commands take in all.
    from servemark.compare import compared, page, text
    from servemark.compare import gate as limits

    asked = limits.parsed(gate) if gate is not None else ()
    if output:
        # Before the comparison, which takes seconds for large runs.
        with _writing(output), tempfile.TemporaryFile(dir=_made(output)):
            pass
    found = compared.compare(a, b, asked)
    print(text.text(found.record), end="", flush=True)
    if output:
        with _writing(output):
            found.record.write(output / RECORD)
            page.write(found, output / PAGE)
        print(f"wrote {(output / PAGE).absolute().as_uri()} and {RECORD} next to it")
    failed = [one for one in found.record.gates if one.exceeded]
    if failed:
        lines = [f"  {text.limit(one)}: {text.place(found.record.points[at])}" for one in failed for at in one.exceeded]
        more = [f"  and {len(lines) - text.MOST} more"] if len(lines) > text.MOST else []
        raise ServemarkError(
            "\n".join(["B is worse than A beyond the limits of --gate:", *lines[: text.MOST], *more]),
            do="Look at what differs between A and B, above. To accept the change, raise the limit.",
            reason="gate_exceeded",
        )


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn an OSError into the error of a comparison: exit code 1 means a regression and nothing else."""
    from servemark.compare.errors import NotComparable

    try:
        yield
    except OSError as error:
        raise NotComparable(
            f"servemark cannot write in {folder}: {error.strerror or error}.",
            do="Pass another folder with -o. It must be a folder that you can write, or servemark must be able to create it.",
            reason="cannot_write",
        ) from None
