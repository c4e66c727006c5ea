"""All live streams of one server: how much waits for their readers, how many of those are slow, when all have ended."""

from __future__ import annotations

import asyncio
from enum import StrEnum

from app.streaming.flow.mailbox import Mailbox
from app.streaming.flow.pending_bytes import PendingBytes


class SlowReader(StrEnum):
    """What happens when a stream's reader lags (`stream_options.slow_reader`)."""

    PAUSE = "pause"  # generation waits for the reader
    COALESCE = "coalesce"  # it goes on until 96 KiB wait, merged
    DROP = "drop"  # the stream ends with an error


DISCONNECT = "cut"
"""What is done about a reader who takes nothing for the stall timeout, whatever the policy."""


class Streams:
    """The streams that are open now, and counts of all there ever were. Loop only.

    Attributes:
        pending: what waits for their readers, with its limit (`max_pending_bytes`).
        slow_readers: how often a reader lagged, by what was done about it.
    """

    def __init__(self, max_pending_bytes: int | None = None) -> None:
        self.pending = PendingBytes(max_pending_bytes)
        self.slow_readers = dict.fromkeys((*map(str, SlowReader), DISCONNECT), 0)
        self._open: set[Mailbox] = set()
        self._num_merged = 0  # by streams that have ended
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @property
    def num_open(self) -> int:
        """How many streams are open."""
        return len(self._open)

    @property
    def num_merged(self) -> int:
        """Deltas that were merged into an earlier one because their reader had not come for it yet."""
        return self._num_merged + sum(mailbox.num_merged for mailbox in self._open)

    @property
    def pending_bytes(self) -> int:
        """Bytes of tokens, their text and log-probabilities that wait for their readers now."""
        return self.pending.num_bytes

    def enter(self, mailbox: Mailbox) -> None:
        """Count a stream that begins."""
        self._open.add(mailbox)
        self._is_idle.clear()

    def leave(self, mailbox: Mailbox) -> None:
        """Count a stream that has ended. Idempotent."""
        if mailbox in self._open:
            self._open.remove(mailbox)
            self._num_merged += mailbox.num_merged
            if not self._open:
                self._is_idle.set()

    async def wait_idle(self) -> None:
        """Wait until no stream is open. Cancel-safe."""
        await self._is_idle.wait()
