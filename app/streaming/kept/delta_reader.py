"""Readers of a live stream that get every delta as the engine has told it, for wires whose events are numbered."""

from __future__ import annotations

from app.contract.events import EngineEvent, Finished, TokenDelta
from app.streaming.kept.live_stream import LiveStream
from app.streaming.kept.polling_reader import PollingReader
from app.streaming.kept.waiting_reader import WaitingReader

EVENT_BYTES = 128
"""So much an event counts beside its tokens: a piece then takes about a millisecond to write."""


class DeltaReader(WaitingReader):
    """Reads a stream from the front, no two deltas merged: so all readers get the same events. Loop only.

    With `is_owner` the stream is cancelled if the reader leaves before its end.
    """

    __slots__ = ("_is_owner",)

    def __init__(self, stream: LiveStream, *, is_owner: bool = False) -> None:
        super().__init__(stream)
        self._is_owner = is_owner

    def close(self) -> None:
        """Detach from the stream, and cancel it if it is this reader's. Idempotent, never blocks."""
        super().close()
        if self._is_owner and not self.stream.is_stopped:  # else it goes on in the next process
            self.stream.cancel()

    def _next(self, choice: int) -> EngineEvent | None:
        self._last_bytes += EVENT_BYTES
        return super()._next(choice)

    def _cut(self, choice: int, after: int, upto: int) -> TokenDelta:
        return self.stream.transcripts[choice].delta(after)


class PollingDeltaReader(PollingReader):
    """Polls a stream from the front, no two deltas merged, and cancels it if it leaves before the end. Loop only.

    If the stream is cancelled, the reader gets an error, and if it goes on in the next process, nothing any more.
    """

    __slots__ = ()

    def close(self) -> None:
        """Detach from the stream, and cancel it if it has not ended. Idempotent, never blocks."""
        super().close()
        if not self.is_stopped:
            self.stream.cancel()

    @property
    def is_stopped(self) -> bool:
        """Whether the process ends before the stream does."""
        return self.stream.is_stopped

    def _end_of(self, choice: int) -> Finished | None:
        return super()._end_of(choice) if choice in self.stream.ends else None

    def _cut(self, choice: int, after: int, upto: int) -> TokenDelta:
        return self.stream.transcripts[choice].delta(after)
