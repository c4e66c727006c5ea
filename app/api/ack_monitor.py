"""What a client takes of what it is sent, as its kernel tells: who takes nothing of what waits has stalled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from app.api.connection import Connection
from app.runtime.stall_detector import StallDetector

# At least what a protocol adds to a piece: a frame's header, the size of a chunk. Counted too much, it tells nothing of
# a client that takes nothing: then nothing more can be sent. Counted too little, it hides what a slow one takes.
_AROUND_BYTES = 16


class AckMonitor:
    """Watches one connection for its stall timeout (seconds; 0: it may stall for ever). Loop only.

    Taken is what the client's side has acknowledged, so a client whose system buffers much seems to read for a while
    after it has stopped, and one that reads slowly takes in steps of what its system asks for at once.
    """

    def __init__(self, connection: Connection, timeout_s: float, interval_s: float) -> None:
        self._connection = connection
        self._stall_detector = StallDetector(timeout_s, interval_s)
        self._num_sent = 0
        self._num_taken = 0

    def sent(self, num_bytes: int) -> None:
        """Count one piece that was given to the connection, and what that puts around it."""
        self._num_sent += num_bytes + _AROUND_BYTES

    def has_stalled(self, now: float) -> bool:
        """Say whether nothing of what waits was taken for the timeout; ask every `interval_s` seconds."""
        unread = self._connection.unread_bytes()
        # What the protocol sends by itself (pings) is not counted, so the difference may also fall.
        self._num_taken = max(self._num_taken, self._num_sent - unread)
        return self._stall_detector.observe(self._num_taken if unread else None, now)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Judge the client here for the length of a block, and not in the kernel, which cannot tell slow from stuck."""
        self._connection.set_kernel_patience(is_on=False)
        try:
            yield
        finally:
            self._connection.set_kernel_patience(is_on=True)
