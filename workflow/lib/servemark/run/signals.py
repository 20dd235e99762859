"""End the main Snakemake process in order, and in bounded time, after a signal.

By default Snakemake waits for its running jobs after SIGTERM, and after a SIGINT to it alone (not to the terminal's process group). After
SIGHUP it dies at once. Here each of these signals interrupts the scripts of the running rules. The scripts end their tools, Snakemake
removes incomplete outputs and its lock, and the supervisors end because their heartbeat pipe closes.
"""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable

import psutil

from servemark.processes import identity

BOUND_S = 8.0
_before_exit: list[Callable[[], None]] = []


def install() -> None:
    """Handle SIGINT, SIGTERM, and SIGHUP unless it is ignored (nohup). Call it after Snakemake has set its own handler (onstart)."""
    for number in _ours():
        signal.signal(number, _interrupt)


def _ours() -> tuple[signal.Signals, ...]:
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM) if ignored else (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def before_exit(action: Callable[[], None]) -> None:
    """Call ``action`` before this process ends at once. It may take no lock."""
    _before_exit.append(action)


def at(moment: float, why: str) -> None:
    """Print ``why`` at this moment (seconds since 1970), and send SIGTERM to this process."""

    def wait() -> None:
        threading.Event().wait(min(max(0.0, moment - time.time()), threading.TIMEOUT_MAX))
        _say(why)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="own end", daemon=True).start()


def _interrupt(number: int, _: object) -> None:
    for other in _ours():
        signal.signal(other, lambda *_: _end_now("interrupted again"))
    name = signal.Signals(number).name
    _say(f"{name}: ending the running stages. Finished measurements are kept. Run the same command again to continue.")
    identity.signal_all(psutil.Process().children(), signal.SIGINT)
    timer = threading.Timer(BOUND_S, _end_now, [f"the running stages did not end within {BOUND_S:.0f} s"])
    timer.daemon = True
    timer.start()
    raise KeyboardInterrupt


def _end_now(why: str) -> None:
    for action in _before_exit:
        action()
    _say(f"{why}; killing all processes of this run.")
    identity.signal_all(identity.descendants(os.getpid()), signal.SIGKILL)
    os._exit(130)


def _say(text: str) -> None:
    # Not print: it raises if the signal interrupts another print, and blocks if no process reads the pipe.
    with contextlib.suppress(OSError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, f"servemark: {text}\n".encode())
