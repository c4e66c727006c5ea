"""Whether a client takes what it is sent, as its kernel tells: one that takes nothing of what waits has stalled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from app.runtime.stall_detector import StallDetector

# At least what a protocol adds to a piece: a frame's header, the size of a chunk. Too much here changes nothing for a
# client that takes nothing, since then nothing more can be sent; too little would hide what a slow one takes.
_OVERHEAD_BYTES = 16


class Connection(Protocol):
    """A client's connection as the kernel sees it. Event loop only."""

    def unread_bytes(self) -> int:
        """Return how many of the bytes written so far the peer's kernel has not acknowledged; 0 once it is closed."""

    def abort(self) -> None:
        """Reset the connection at once and drop what is still to be sent; once closed, do nothing."""

    def set_kernel_patience(self, *, is_on: bool) -> None:
        """Let the kernel give the client up when it takes nothing for long, as it does from the beginning, or not.

        The kernel's clock runs on while a client reads slowly in small pieces, so it is off while a monitor watches.
        """


class AckMonitor:
    """Watches one connection for its stall timeout (seconds; 0: it may stall for ever). Loop only.

    What the client's kernel has acknowledged counts as taken. So a client whose system buffers much seems to read for a
    while after it has stopped, and one that reads slowly takes in steps of what its system asks for at once.
    """

    def __init__(self, connection: Connection, timeout_s: float, interval_s: float) -> None:
        self._connection = connection
        self._stall_detector = StallDetector(timeout_s, interval_s)
        self._num_sent = 0
        self._num_taken = 0

    def note_sent(self, num_bytes: int) -> None:
        """Count one piece that was given to the connection, and what the protocol adds to it."""
        self._num_sent += num_bytes + _OVERHEAD_BYTES

    def has_stalled(self, now: float) -> bool:
        """Say whether nothing of what waits was taken for the timeout; ask every `interval_s` seconds."""
        unread = self._connection.unread_bytes()
        # What the protocol sends by itself (pings) is not counted, so the difference may also fall.
        self._num_taken = max(self._num_taken, self._num_sent - unread)
        return self._stall_detector.observe(self._num_taken if unread else None, now)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """For the length of a block, judge the client here and not in the kernel, which cannot tell slow from stuck."""
        self._connection.set_kernel_patience(is_on=False)
        try:
            yield
        finally:
            self._connection.set_kernel_patience(is_on=True)
