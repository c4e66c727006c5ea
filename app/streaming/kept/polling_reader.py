"""A reader of a live stream that polls, within its credit, as a stream of a WebSocket does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from app.contract.errors import ErrorInfo
from app.contract.events import ChoiceEnd, EngineEvent, Finished, FinishReason, RequestFailed, TokenDelta
from app.runtime.clock import Clock, monotonic
from app.streaming.flow.flow_window import Credit, Watermarks
from app.streaming.kept.live_stream import LiveStream, State
from app.streaming.kept.stream_cursor import StreamCursor
from app.streaming.stream_timings import StreamTimings


class PollingReader(StreamCursor):
    """Reads a stream in `poll`, with the members of `Session` that quire.v1 uses. Loop only; one task reads.

    It begins behind `after`; its transport feeds its parsers with what `retold` yields. `credit` limits what it gets.
    `on_ready` is called whenever `poll` may return an event, `on_pause` and `on_resume` when generation stops for the
    readers and when it goes on. If the stream is cancelled, the reader gets the ends of the open choices.
    """

    __slots__ = ("_clock", "_credit", "_is_cancelled", "_on_pause", "_on_ready", "_on_resume", "_progress")
    transport = "websocket"

    def __init__(
        self,
        stream: LiveStream,
        after: Sequence[int] | None = None,
        marks: Watermarks | None = None,
        clock: Clock = monotonic,
        *,
        on_ready: Callable[[], None],
        credit: Credit | None = None,
        on_pause: Callable[[], None] | None = None,
        on_resume: Callable[[], None] | None = None,
    ) -> None:
        after = [0] * len(stream.transcripts) if after is None else after
        super().__init__(stream, after, after, marks)
        self._credit = credit
        self._progress = stream.progress if stream.num_tokens else None  # the last one that was read
        self._is_cancelled = False
        self._on_ready: Callable[[], None] | None = on_ready
        self._on_pause, self._on_resume = on_pause, on_resume
        self._clock = clock

    def close(self) -> None:
        """Detach from the stream. Idempotent, never blocks."""
        super().close()
        self._on_ready = self._on_pause = self._on_resume = None  # what they call may refer to this reader

    def cancel(self) -> None:
        """Cancel the stream for all its readers; this one gets the ends of its choices alone. Idempotent."""
        self._is_cancelled = True
        self.stream.cancel()
        self.on_put()

    def on_put(self) -> None:
        """Tell the transport that there may be something to read."""
        if self._on_ready is not None:
            self._on_ready()

    def note_pause(self, is_paused: bool) -> None:
        """Tell the transport that generation has stopped, or goes on."""
        on_change = self._on_pause if is_paused else self._on_resume
        if on_change is not None:
            on_change()

    def retold(self) -> Iterator[TokenDelta]:
        """Yield what was told before `after`, in pieces."""
        for after, told in zip(self.after, self.stream.transcripts, strict=True):
            position = 0
            while position < min(after, told.last):
                delta = told.piece(position, min(after, told.last))
                position += len(delta.token_ids) or 1
                yield delta

    def poll(self) -> EngineEvent | None:
        """Return one event that may be sent now, or None; all events returned before have been delivered."""
        self._deliver()
        if self._dropped is not None:
            return self._fail(self._dropped)
        if (progress := self.stream.progress) is not self._progress:
            self._progress = progress
            return progress
        for choice in self._turns:
            if (event := self._next(choice)) is not None:
                self._turn = choice + 1 if choice + 1 < len(self._positions) else 0
                return event
        return None if (failure := self._failure_now) is None else self._fail(failure)

    @property
    def has_more(self) -> bool:
        """Whether the reader should poll again without a new event."""
        num_tokens, num_bytes = self._num_taken - self._num_delivered, self._taken_bytes - self._delivered_bytes
        if self._lag or num_tokens >= self._marks.low_tokens or num_bytes >= self._marks.low_bytes:
            return True
        stream = self.stream
        has_all_ends = len(self._finished) == len(stream.ends) + len(stream.cancelled_ends)
        if self._taken_bytes == stream.told_bytes and has_all_ends and stream.failure is None:
            return False
        return self._failure_now is not None or any(map(self._may_read, self._turns))

    @property
    def lacks_credit(self) -> bool:
        """Whether tokens are pending, and none of them may be sent without more credit."""
        positions = enumerate(self._positions)
        return self._has_pending and not any(position < self._limit(choice) for choice, position in positions)

    def timings(self) -> StreamTimings | None:
        """Return the figures of the ended choices; None before the first has ended."""
        usage = self.usage
        return None if usage is None else self._stopwatch.read(usage, len(self._finished))

    def _next(self, choice: int) -> TokenDelta | Finished | None:
        limit = self._limit(choice)
        if self._positions[choice] >= limit:
            return None if (end := self._end_of(choice)) is None else self._take_end(choice, end)
        delta = self._take(choice, limit)
        if choice == 0:
            self._stopwatch.note_tokens(len(delta.token_ids), self._clock())
        return delta

    def _end_of(self, choice: int) -> Finished | None:
        """Return the end of a choice, if it was not read and the reader has all that it gets of the choice."""
        end = self.stream.ends.get(choice)
        if end is None and self.stream.is_over:  # a cancel is told once it is recorded
            end = self.stream.cancelled_ends.get(choice)
        if end is None or choice in self._finished:
            return None
        if self._positions[choice] >= self.stream.transcripts[choice].last:
            return end
        return replace(end, end=ChoiceEnd(FinishReason.CANCELLED)) if self._is_cancelled else None

    def _limit(self, choice: int) -> int:
        """Return the position in a choice up to which the reader gets it now."""
        if self._is_cancelled:
            return 0
        told = self.stream.transcripts[choice]
        if self._credit is None or (upto := self._credit.upto(choice)) >= told.num_tokens:
            return told.last
        return upto

    def _may_read(self, choice: int) -> bool:
        return self._positions[choice] < self._limit(choice) or self._end_of(choice) is not None

    @property
    def _has_pending(self) -> bool:
        """Whether the reader will get tokens that were told already."""
        return not self._is_cancelled and any(
            position < told.last for position, told in zip(self._positions, self.stream.transcripts, strict=True)
        )

    @property
    def _failure_now(self) -> ErrorInfo | None:
        """Why the reader gets no more, once it has what was told and the ends of a cancelled stream."""
        if self.stream.failure is None or self.is_finished or self._has_pending:
            return None
        is_open = self.stream.state is State.CANCELLED and not self.stream.is_settled
        return None if is_open else self.stream.failure

    def _fail(self, error: ErrorInfo) -> RequestFailed:
        self.error = error
        return RequestFailed(self.stream.id, error)
