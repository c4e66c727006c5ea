"""A reader of a live stream that waits for what comes next, as a response over HTTP does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from app.contract.events import EngineEvent
from app.streaming.event_reader import EventReader
from app.streaming.flow.delta_buffer import PIECE_BYTES
from app.streaming.flow.flow_window import Watermarks
from app.streaming.kept.live_stream import LiveStream
from app.streaming.kept.stream_cursor import StreamCursor
from app.streaming.waker import Waker


class StreamStopped(Exception):
    """The process ends before the stream does: its connection breaks off, so that nobody takes it for complete."""


class WaitingReader(StreamCursor, EventReader):
    """Reads a stream in `receive`, with the members of `Session` that HTTP responses use. Loop only; one task reads.

    It begins at the front, also one that comes back: what was told before `after` it reads again, for the parsers of
    its transport, which drops what they return (api/wire/numbered_wire.py). If the stream is cancelled, it gets an
    error.
    """

    __slots__ = ("_has_news", "_is_closed", "_is_woken", "_waker")
    transport = "http"

    def __init__(self, stream: LiveStream, after: Sequence[int] | None = None, marks: Watermarks | None = None) -> None:
        front = [0] * len(stream.transcripts)
        super().__init__(stream, front if after is None else after, front, marks)
        self._last_bytes = stream.told_bytes  # one that is far behind waits for its turn at once
        self._has_news = True  # whether `_read` may find something
        self._is_woken = self._is_closed = False
        self._waker = Waker()

    def close(self) -> None:
        """Detach from the stream; a waiting `receive` returns []. Idempotent, never blocks."""
        self._is_closed = True
        super().close()
        self._waker.wake()

    def on_put(self) -> None:
        """Wake the task that reads."""
        self._has_news = True
        self._waker.wake()

    def note_pause(self, is_paused: bool) -> None:
        """Do nothing: a response does not say that generation has stopped."""

    async def receive(self) -> list[EngineEvent]:
        """Wait for events and return them, up to a piece; [] when the answer is over, or after a `wake`.

        Cancel-safe: no event is lost. What was returned before has been delivered.

        Raises:
            StreamStopped: the stream goes on in the next process.
        """
        if self._last_bytes >= PIECE_BYTES:
            # Written as JSON a piece can take a millisecond, and hundreds of readers may come back at once.
            async with self.stream.streams.piece_turn:
                await asyncio.sleep(0)
        self._deliver()
        while True:
            events = self._read() if self._has_news else []
            if events or self._is_woken or self._is_closed or self.is_finished:
                self._is_woken = False
                return events
            await self._waker.wait()

    def wake(self) -> None:
        """Let `receive` return once, with [] if there are no events."""
        self._is_woken = True
        self._waker.wake()

    def _read(self) -> list[EngineEvent]:
        """Return the next events of each choice, up to a piece; the next call goes on behind it."""
        if self._dropped is not None:
            self.error = self._dropped
            return []
        events: list[EngineEvent] = []
        stream = self.stream
        failure = stream.failure
        self._last_bytes = 0
        self._has_news = failure is not None or stream.is_stopped
        for choice in self._turns:
            while self._last_bytes < PIECE_BYTES and (event := self._next(choice)) is not None:
                events.append(event)
            if self._last_bytes >= PIECE_BYTES:
                self._turn = (choice + 1) % len(self._positions)
                self._has_news = True
                break
        if not events and failure is not None:
            self.error = failure
        elif not events and stream.is_stopped and not self.is_finished:
            raise StreamStopped
        return events

    def _next(self, choice: int) -> EngineEvent | None:
        last = self.stream.transcripts[choice].last
        if self._positions[choice] < last:
            return self._take(choice, last)
        end = self.stream.ends.get(choice)
        return None if end is None or choice in self._finished else self._take_end(choice, end)
