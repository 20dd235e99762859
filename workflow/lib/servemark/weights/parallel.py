"""Work on several things at once, in threads that never hold the process up when it is told to end."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
TICK_S = 1.0
GRACE_S = 5.0


def in_parallel(work: Callable[[Item], None], items: Sequence[Item], at_once: int, wait: Callable[[], None]) -> None:
    """Call ``work`` for every item, ``at_once`` at a time, in order; ``wait`` is called about every second meanwhile.

    The first error is raised here. No new item is begun then; what still goes on has some seconds to end, and is then left to end
    with the process, since a download cannot be interrupted from outside. An interrupt waits for nothing.
    """
    todo: queue.SimpleQueue[Item] = queue.SimpleQueue()
    for item in items:
        todo.put(item)
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    stopped = threading.Event()

    def run() -> None:
        try:
            while not stopped.is_set():
                work(todo.get_nowait())
        except queue.Empty:
            ended.put(None)
        except BaseException as error:  # whatever it is, the caller is to see it
            ended.put(error)

    # Daemons, since the pool of concurrent.futures is waited for at the interpreter's end.
    threads = [threading.Thread(target=run, daemon=True) for _ in range(min(at_once, len(items)))]
    for thread in threads:
        thread.start()
    running = len(threads)
    try:
        while running:
            try:
                error = ended.get(timeout=TICK_S)
            except queue.Empty:
                wait()
                continue
            running -= 1
            if error is not None:
                stopped.set()
                deadline = time.monotonic() + GRACE_S
                for thread in threads:
                    thread.join(max(0.0, deadline - time.monotonic()))
                raise error
    finally:
        stopped.set()
