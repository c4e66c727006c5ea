"""Detects clients that have stalled: data is pending, and the client's kernel acknowledges none of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from app.runtime.stall_detector import StallDetector

# At least what a protocol adds to a piece (a frame header, the size of a chunk). A value that is too large does not
# matter for a stalled client, to which nothing more is sent; one that is too small hides what a slow client reads.
_OVERHEAD_BYTES = 16


class Connection(Protocol):
    """The connection of a client, as the kernel reports it. Loop only."""

    def unread_bytes(self) -> int:
        """Return the number of bytes written that the peer's kernel has not acknowledged; 0 for a closed connection."""

    def abort(self) -> None:
        """Reset the connection at once and drop its unsent data; does nothing if it is closed."""

    def set_kernel_patience(self, *, is_on: bool) -> None:
        """Switch the kernel's own timeout for unacknowledged data (initially on).

        It must be off while a monitor watches, because it also expires for a client that reads slowly in small pieces.
        """


class AckMonitor:
    """Watches one connection for a stall of `timeout_s` seconds (0: disabled), every `interval_s`. Loop only.

    Bytes that the client's kernel has acknowledged count as read. So a client with large buffers seems to read for a
    while after it has stopped, and a slow one seems to read in large steps.
    """

    def __init__(self, connection: Connection, timeout_s: float, interval_s: float) -> None:
        self._connection = connection
        self._stall_detector = StallDetector(timeout_s, interval_s)
        self._num_sent = 0
        self._num_read = 0

    def note_sent(self, num_bytes: int) -> None:
        """Count a piece that was written to the connection, and the overhead of its protocol."""
        self._num_sent += num_bytes + _OVERHEAD_BYTES

    def has_stalled(self, now: float) -> bool:
        """Return whether data was pending and none of it was read for the timeout; call it every `interval_s`."""
        unread = self._connection.unread_bytes()
        # Bytes that the protocol sends on its own (pings) are not counted, so the difference can also decrease.
        self._num_read = max(self._num_read, self._num_sent - unread)
        return self._stall_detector.observe(self._num_read if unread else None, now)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Switch off the kernel's timeout within a block: the kernel cannot tell a slow client from a stuck one."""
        self._connection.set_kernel_patience(is_on=False)
        try:
            yield
        finally:
            self._connection.set_kernel_patience(is_on=True)
