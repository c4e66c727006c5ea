"""What one connection has still to send: control frames first, then its streams in turn, one frame each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple


class _Batch(NamedTuple):
    frames: deque[str]
    is_taken: asyncio.Event  # set by the writer's `get` of the last frame


class Outbox:
    """Filled by the streams of one connection, emptied by its one writer. Loop only.

    A stream waits until its batch is taken before it brings the next one, so a slow connection holds one batch per
    stream here and the rest waits, merged, in the streams' mailboxes. That wait also keeps a stream's order: whoever
    sends its last frame as a control frame does so after all others have left.
    """

    def __init__(self) -> None:
        self._control: deque[str] = deque()
        self._turns: deque[_Batch] = deque()
        self._news = asyncio.Event()
        self._is_finished = False

    @property
    def num_control(self) -> int:
        """How many control frames wait."""
        return len(self._control)

    def put_control(self, frame: str) -> None:
        """Add a frame that goes before all deltas."""
        self._control.append(frame)
        self._news.set()

    async def put(self, frames: Iterable[str]) -> None:
        """Add a batch of one stream's frames and wait until the writer has taken all of it.

        A cancelled `put` leaves its frames here; cancel it only when the connection ends.
        """
        batch = _Batch(deque(frames), asyncio.Event())
        if batch.frames:
            self._turns.append(batch)
            self._news.set()
            await batch.is_taken.wait()

    def finish(self) -> None:
        """Drop the streams' frames; `get` returns None once the control frames are gone."""
        self._turns.clear()
        self._is_finished = True
        self._news.set()

    async def get(self) -> str | None:
        """Return the next frame to send, or None after `finish`. Cancel-safe; the writer only."""
        while not self._control and not self._turns and not self._is_finished:
            self._news.clear()
            await self._news.wait()
        if self._control:
            return self._control.popleft()
        if not self._turns:
            return None
        batch = self._turns.popleft()
        frame = batch.frames.popleft()
        if batch.frames:
            self._turns.append(batch)
        else:
            batch.is_taken.set()
        return frame
