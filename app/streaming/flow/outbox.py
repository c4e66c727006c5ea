"""The frames that one WebSocket is going to send: control frames first, then one frame of each stream in turn."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from app.streaming.waker import Waker


class FrameSource(Protocol):
    """One stream of a connection."""

    def next_frame(self) -> str | None:
        """Return the next frame of the stream, or None if there is none; the frame before has been sent."""

    @property
    def has_more(self) -> bool:
        """Whether the stream should get another turn without a new event."""


class Outbox:
    """Filled by the streams of one connection, emptied by its writer. Loop only.

    A stream is only marked as ready; its frame is made in its turn. So a slow connection holds no frames of streams:
    their events are merged in their mailboxes. The frames of a stream keep their order even if the last one is a
    control frame, since that is added after all others have left.
    """

    def __init__(self) -> None:
        self._control: deque[str] = deque()
        self._turns: deque[FrameSource] = deque()
        self._ready: set[FrameSource] = set()  # the sources in `_turns`
        self._waker = Waker()
        self._is_finished = False

    @property
    def num_control(self) -> int:
        """The number of control frames in the outbox."""
        return len(self._control)

    def put_control(self, frame: str | None) -> None:
        """Add a frame that is sent before the frames of all streams; None is ignored."""
        if frame is not None:
            self._control.append(frame)
            self._waker.wake()

    def mark_ready(self, source: FrameSource) -> None:
        """Give a stream a turn, after the streams that are ready. Idempotent until the stream has no frame."""
        if source not in self._ready:
            self._ready.add(source)
            self._turns.append(source)
            self._waker.wake()

    def finish(self) -> None:
        """Drop the streams; `get` returns None after the last control frame. Idempotent."""
        self._turns.clear()
        self._ready.clear()
        self._is_finished = True
        self._waker.wake()

    async def get(self) -> str | None:
        """Return the next frame to send, or None after `finish`; the frame before has been sent. The writer only.

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
