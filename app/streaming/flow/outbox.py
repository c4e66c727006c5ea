"""What one connection has still to send: control frames first, then its streams in turn, one frame each."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from app.streaming.waker import Waker


class FrameSource(Protocol):
    """One stream of a connection."""

    def next_frame(self) -> str | None:
        """Return the frame whose turn it is, or None while there is none; the one before has been sent."""

    @property
    def has_more(self) -> bool:
        """Whether it should have another turn although nothing new comes."""


class Outbox:
    """Filled by the streams of one connection, emptied by its one writer. Loop only.

    A stream is only marked ready; its frame is made when its turn comes. So no frames of streams wait here on a slow
    connection: their events do, merged, in their mailboxes. The order of a stream's frames holds by itself, also where
    its last one is a control frame: that is put here after all others have left.
    """

    def __init__(self) -> None:
        self._control: deque[str] = deque()
        self._turns: deque[FrameSource] = deque()
        self._ready: set[FrameSource] = set()  # those in `_turns`
        self._waker = Waker()
        self._is_finished = False

    @property
    def num_control(self) -> int:
        """How many control frames wait."""
        return len(self._control)

    def put_control(self, frame: str | None) -> None:
        """Add a frame, if there is one, that goes before those of all streams."""
        if frame is not None:
            self._control.append(frame)
            self._waker.wake()

    def mark_ready(self, source: FrameSource) -> None:
        """Give a stream its turn, behind the others. Idempotent until it has no frame."""
        if source not in self._ready:
            self._ready.add(source)
            self._turns.append(source)
            self._waker.wake()

    def finish(self) -> None:
        """Drop the streams; `get` returns None once the control frames are gone."""
        self._turns.clear()
        self._is_finished = True
        self._waker.wake()

    async def get(self) -> str | None:
        """Return the next frame to send, or None after `finish`; the one before has been sent. The writer only.

        Cancel-safe.
        """
        while True:
            frame = self._next()
            if frame is not None or self._is_finished:
                return frame
            await self._waker.wait()

    def _next(self) -> str | None:
        while not self._control and self._turns:
            source = self._turns.popleft()
            frame = source.next_frame()
            if frame is not None and source.has_more:
                self._turns.append(source)
            else:
                self._ready.discard(source)
            if frame is not None:
                return frame
        return self._control.popleft() if self._control else None
