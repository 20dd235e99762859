"""What every rule's script does around its work: log, lifeline, progress, and an error a user can read."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from servemark import supervisor
from servemark.deployment import attempts
from servemark.deployment.context import Stage
from servemark.errors import ServemarkError
from servemark.files import storage
from servemark.processes import identity
from servemark.processes.children import LifelineWatch
from servemark.progress import Progress
from servemark.records import write_atomically
from servemark.supervisor import ownership


@contextmanager
def stage(name: str, subject: str, log: str, deployment: Path | None = None, *, begins: bool = False) -> Iterator[Stage]:
    """Run a rule's work. The run's folder is the one that holds ``logs/``.

    Everything printed goes to ``log``. A :class:`ServemarkError` ends the script with its message and no traceback. A script
    that ends in any other way than by success writes the deployment's stop file, so that nothing lives on without a rule.

    Args:
        deployment: the deployment's folder, for the stages of a live deployment.
        begins: this stage begins a deployment: from now on it is ours.
    """
    # SIGINT as well: a run that a script started in the background has inherited to ignore it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _as_interrupt)
    log_path, run_folder = Path(log), Path(log.partition("/logs/")[0])
    worker = supervisor.worker_file(deployment) if deployment else None
    progress = Progress(run_folder / "progress.jsonl", name, subject, log)
    terminal = os.dup(1), os.dup(2)
    try:
        _redirect(log_path)
        if worker:
            write_atomically(worker, str(identity.myself()))
        if deployment and begins:
            ownership.take(deployment)
        elif deployment:
            ownership.check(deployment)
        yield Stage(progress, log_path, LifelineWatch(), deployment)
    except ownership.TakenOver as error:
        _note(f"servemark: {name} {subject}: {error.message()}")
        ownership.end_those_above()
        sys.exit(error.exit_code)
    except ServemarkError as error:
        _tell(f"{name} {subject}", error, progress, terminal)
        _stop(deployment)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        # Told once is enough: what follows is the end.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        _note(f"servemark: {name} {subject}: interrupted")
        _stop(deployment)
        sys.exit(130)
    except Exception as error:
        places = (run_folder, log_path.parent, Path(".snakemake"), Path(tempfile.gettempdir()))
        if refused := storage.refusal(error, places):
            _keep_traceback(log_path)
            _tell(f"{name} {subject}", refused, progress, terminal)
        else:
            _note(traceback.format_exc().rstrip())
            progress.say(f"failed by a defect of servemark or its surroundings; the traceback is in {log}")
        _stop(deployment)
        sys.exit(1)
    finally:
        for stream in terminal:
            os.close(stream)
        if worker:
            with contextlib.suppress(OSError):
                worker.unlink(missing_ok=True)


def _tell(who: str, error: ServemarkError, progress: Progress, terminal: tuple[int, int]) -> None:
    """Write an error to the progress of the run and to the log; to the terminal where the disk of the run takes no progress."""
    first, *reasons = error.what.splitlines()
    for line in (f"failed: {first}", *map(str.strip, reasons), *([f"what to do: {error.do}"] if error.do else [])):
        progress.say(line)
    if progress.lost:
        for stream, number in zip(terminal, (1, 2), strict=True):
            os.dup2(stream, number)
    _note(f"servemark: {who}: {error.message()}")


def _note(text: str) -> None:
    # Where the log's disk is full, what comes next still has to be done.
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _keep_traceback(log: Path) -> None:
    """Append the current traceback to the log only: a traceback in the buffer of ``sys.stderr`` could reach the terminal later."""
    with contextlib.suppress(OSError), open(log, "ab", buffering=0) as stream:
        stream.write(traceback.format_exc().encode(errors="backslashreplace"))


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _redirect(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    # Appending, as the tools do that write to the same log.
    with open(log, "ab", buffering=0) as stream:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)


def _stop(deployment: Path | None) -> None:
    """End the deployment of a failed stage. Write an OSError to the log: the stage has an error of its own to report."""
    try:
        _end(deployment)
    except OSError as error:
        _note(f"servemark: could not ask the supervisor of {deployment} to end: {error}")


def _end(deployment: Path | None) -> None:
    if deployment and ownership.taken_over(deployment):
        # Nothing here is ours any more, the stop file included.
        ownership.end_those_above()
        return
    attempt = attempts.latest(deployment) if deployment else None
    if attempt is None:
        return
    if not supervisor.is_alive(attempt):
        # A keeper that a daemon's end took along has left the keys to the stages.
        storage.tidy(supervisor.remove_secrets, attempt)
        return
    supervisor.ask_to_end(attempt)
    spec = attempts.spec(attempt)
    if spec.machine_lock is None:
        # Slurm kills whatever there still is of a job when its script ends, the keeper that tidies up as well.
        with contextlib.suppress(TimeoutError):
            supervisor.stop(attempt, spec.stop_grace_s + 15)
