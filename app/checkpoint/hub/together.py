"""Downloads of several files at the same time, with one display of what has arrived.

Threads do the downloads; the thread that calls shows the progress and gets Ctrl-C. A download that is to end early does
so at its next report of bytes, and keeps what has arrived.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from functools import partial
from threading import Event, Thread
from time import monotonic

from app.checkpoint.hub.download import Watch

MAX_TOGETHER = 4
"""Downloads at the same time: a single connection is often slower than the line; hubs limit many."""
_LOOK_S = 0.1
# How long all downloads that are to end are waited for; one that waits for the network ends at the next bytes.
_LEAVE_S = 1.0


class _Ended(Exception):
    """The download is not wanted any more."""


def download_together(
    downloads: Sequence[Callable[[Watch], None]], there: Sequence[int], show: Callable[[int], None]
) -> None:
    """Run all downloads, MAX_TOGETHER at a time in their order; blocks. `show` gets the bytes of all of them.

    `there` are the bytes of each that are there already. A download calls the function that it gets with the number of
    its bytes that are there. The first error of one, and an exception in this thread such as KeyboardInterrupt, ends
    the others.

    Raises:
        Exception: that of the download that failed first.
    """
    arrived = list(there)
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    is_over = Event()
    for index in range(len(downloads)):
        waiting.put(index)

    def watch(index: int, num_bytes: int) -> None:
        if is_over.is_set():
            raise _Ended
        arrived[index] = num_bytes

    def work() -> None:
        while not is_over.is_set():
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                downloads[index](partial(watch, index))
            except BaseException as error:
                ended.put(error)
                return
            ended.put(None)

    # Daemons: a thread that waits for the network must not keep the process.
    threads = [Thread(target=work, name="quire-download", daemon=True) for _ in downloads[:MAX_TOGETHER]]
    for thread in threads:
        thread.start()
    try:
        _wait(len(downloads), ended, lambda: show(sum(arrived)))
    finally:
        is_over.set()
        deadline = monotonic() + _LEAVE_S
        for thread in threads:
            thread.join(max(0.0, deadline - monotonic()))


def _wait(count: int, ended: queue.SimpleQueue[BaseException | None], look: Callable[[], None]) -> None:
    """Wait until `count` downloads have ended, or raise the first error; `look` is called all the time."""
    while count:
        try:
            error = ended.get(timeout=_LOOK_S)
        except queue.Empty:
            pass
        else:
            if error is not None:
                raise error
            count -= 1
        look()
