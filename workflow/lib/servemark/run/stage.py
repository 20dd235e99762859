"""What every rule's script does in addition to its work: log, heartbeat pipe, progress, and a message for an error."""

import contextlib
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servemark import supervisor
from servemark.deployment.stage import Stage
from servemark.errors import ServemarkError
from servemark.files import storage
from servemark.processes import identity
from servemark.processes.children import OwnerWatch
from servemark.progress import Progress
from servemark.records import write_atomically
from servemark.supervisor import ownership


@contextmanager
def stage(name: str, subject: str, log: str, deployment: Path | None = None, *, begins: bool = False) -> Iterator[Stage]:
    """Run a rule's work. All output goes to ``log``, which is below the run's folder in ``logs/``.

    A :class:`ServemarkError` ends the script with its message, without a traceback. A script that fails stops its deployment, so that no
    process outlives the rule.

    Args:
        deployment: the deployment's folder, for the stages of a live deployment.
        begins: this stage begins a deployment and becomes its owner.
    """
    # SIGINT too: a run that a shell script starts in the background ignores it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    log_path, run_folder = Path(log), Path(log.partition("/logs/")[0])
    worker = supervisor.worker_file(deployment) if deployment else None
    progress = Progress(run_folder / "progress.jsonl", name, subject, log)
    terminal = os.dup(1), os.dup(2)
    superseded = False
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log_path.write_bytes(b"")
        # Append mode, because tools write to the same log.
        with open(log_path, "ab", buffering=0) as stream:
            for descriptor, output in ((1, sys.stdout), (2, sys.stderr)):
                output.flush()
                os.dup2(stream.fileno(), descriptor)
        if worker:
            write_atomically(worker, str(identity.myself()))
        if deployment and begins:
            ownership.take(deployment)
        elif deployment:
            ownership.check(deployment)
        yield Stage(progress, log_path, OwnerWatch(), deployment)
    except ownership.TakenOver as error:
        superseded = True
        _note(f"servemark: {name} {subject}: {error.message()}")
        ownership.end_those_above()
        sys.exit(error.exit_code)
    except ServemarkError as error:
        _tell(f"{name} {subject}", error, progress, terminal)
        _stop(deployment)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        _note(f"servemark: {name} {subject}: interrupted")
        _stop(deployment)
        sys.exit(130)
    except Exception as error:
        places = (run_folder, log_path.parent, Path(".snakemake"), Path(tempfile.gettempdir()))
        if refused := storage.refusal(error, places):
            # Not through sys.stderr: text in its buffer could reach the terminal later.
            with contextlib.suppress(OSError), open(log_path, "ab", buffering=0) as stream:
                stream.write(traceback.format_exc().encode(errors="backslashreplace"))
            _tell(f"{name} {subject}", refused, progress, terminal)
        else:
            _note(traceback.format_exc().rstrip())
            progress.say("failed because of an unexpected error, probably a defect of servemark")
            progress.say(f"look at: {log}, which has the traceback")
            progress.say("what to do: Rerun the same command. If it fails again, report the defect with `servemark ticket RUN`.")
        _stop(deployment)
        sys.exit(1)
    finally:
        if not superseded:  # the newer job displays its own progress
            progress.end()
        for copy in terminal:
            os.close(copy)
        if worker:
            with contextlib.suppress(OSError):
                worker.unlink(missing_ok=True)


def _tell(who: str, error: ServemarkError, progress: Progress, terminal: tuple[int, int]) -> None:
    """Write an error to the run's progress and to the log, or to the terminal if the disk is full."""
    first, *reasons = error.what.splitlines()
    quoted = [f"| {line.strip()}" for line in getattr(error, "quote", ())]
    look, do = error.look and f"look at: {error.look}", error.do and f"what to do: {error.do}"
    for line in filter(None, (f"failed: {first}", *map(str.strip, reasons), *quoted, look, do)):
        progress.say(line)
    if progress.lost:
        for stream, number in zip(terminal, (1, 2), strict=True):
            os.dup2(stream, number)
    _note(f"servemark: {who}: {error.message()}")


def _note(text: str) -> None:
    # The disk of the log may be full.
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _stop(deployment: Path | None) -> None:
    """End the deployment of a failed stage; write an OSError to the log, because the stage reports its own error."""
    if deployment is None:
        return
    try:
        if ownership.taken_over(deployment):
            # Nothing here belongs to this job, not even the stop file.
            ownership.end_those_above()
            return
        from servemark.deployment import attempts  # only here: it imports what most stages do not need

        if attempt := attempts.latest(deployment):
            _end(attempt)
    except OSError as error:
        _note(f"servemark: cannot ask the supervisor of {deployment} to end: {error}")


def _end(attempt: Path) -> None:
    if not supervisor.is_alive(attempt):
        # The supervisor ended after a daemon did, and left the keys.
        storage.tidy(supervisor.remove_secrets, attempt)
        return
    supervisor.ask_to_end(attempt)
    spec = supervisor.read_spec(attempt)
    if spec.machine_lock is None:
        # When the script of a job ends, Slurm kills all its processes, even a supervisor that is cleaning up.
        with contextlib.suppress(TimeoutError):
            supervisor.stop(attempt, spec.stop_grace_s + 15)
