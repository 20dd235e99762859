"""``servemark reproduce``: write the configuration of an archive, state what cannot be the same here, run it, and compare."""

import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from servemark.cli.compare import compare
from servemark.errors import ServemarkError

_FORWARDED = (signal.SIGTERM, signal.SIGHUP)


class RunFailed(ServemarkError):
    """The run of a reproduction did not complete. Its exit code is Snakemake's."""

    default_reason = "run_failed"

    def __init__(self, what: str, exit_code: int, **rest: str):
        super().__init__(what, **rest)
        self.exit_code = exit_code


def reproduce(archive: Path, directory: Path | None = None, cluster: str | None = None, *, yes: bool = False) -> None:
    """Write the configuration of an archive, and with ``yes`` run it and compare the new run with the archive.

    Args:
        directory: the new folder; its name is the name of the new run.
        cluster: name or path of a cluster file, in place of the archive's.

    Raises:
        CannotReproduce: the archive or the folder cannot be used, or with ``yes`` the run cannot start here.
        RunFailed: Snakemake failed. Its run can be continued.
    """
    # Here, because pandas takes longer to load than the other commands take in all.
    from servemark.reproduction.archived import CannotReproduce
    from servemark.reproduction.prepare import prepare

    made = prepare(archive, directory, cluster)
    running = [_program("snakemake"), "--profile", made.profile, "--configfile", str(made.config)]
    comparing = [_program("servemark"), "compare", str(archive), str(made.results)]
    print(f"{archive}: OK, identity {made.identity}")
    _print("Not the same as in the archive's run:", made.notes)
    _print("The run cannot start here before you repair this:", made.problems)
    print(f"wrote {made.config}")
    print(f"To measure:\n    {shlex.join(running)}\nTo compare with the archive:\n    {shlex.join(comparing)}", flush=True)
    if not yes:
        return
    if made.problems:
        raise CannotReproduce(
            "The run cannot start here; see the lines above.", look=str(made.config), do="Repair it. Then run the commands."
        )
    if code := _run(running):
        do = f"Follow the messages above. Continue with `{shlex.join(running)}`, then `{shlex.join(comparing)}`."
        raise RunFailed(f"The run {made.run} did not complete: snakemake exited with code {code}.", code, look=str(made.results), do=do)
    compare(archive, made.results)


def _print(title: str, lines: Sequence[str]) -> None:
    if lines:
        print("\n".join([title, *(f"  {line}" for line in lines)]))


def _program(name: str) -> str:
    path = Path(sys.executable).with_name(name)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _run(argv: Sequence[str]) -> int:
    """Run a command to its end and return its exit code. Ctrl-C reaches it through the terminal; other signals are forwarded."""
    process = subprocess.Popen(argv)
    before = {number: signal.signal(number, lambda number, _: process.send_signal(number)) for number in _FORWARDED}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code
