"""One reader of a live stream: a cursor over its transcripts, with the members of `Session` that responses use.

A reader that waits in `receive` begins at the front, also one that comes back: what was told before `after` it reads
again, for the parsers of its transport, which drops what they return (api/wire/numbered_wire.py). No delta that it
reads is on both sides of `after`. Only what is behind `after` counts as undelivered. A reader that polls begins behind
`after`; its transport feeds its parsers with what `retold` yields.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from app.contract.errors import ErrorInfo, Overloaded
from app.contract.events import (
    ChoiceEnd,
    EngineEvent,
    Finished,
    FinishReason,
    RequestFailed,
    Timings,
    TokenDelta,
    Usage,
    total_usage,
)
from app.runtime.clock import Clock, monotonic
from app.streaming.event_reader import EventReader
from app.streaming.flow.delta_buffer import PIECE_BYTES, delta_bytes
from app.streaming.flow.flow_window import Credit, Lag, Watermarks
from app.streaming.flow.slow_reader import DISCONNECT
from app.streaming.kept.live_stream import LiveStream, State
from app.streaming.stream_timings import Stopwatch, StreamTimings
from app.streaming.waker import Waker


class StreamStopped(Exception):
    """The process ends before the stream does: its connection breaks off, so that nobody takes it for complete."""


class StreamReader(EventReader):
    """Reads a live stream while it is open; closing it detaches it. Loop only; one task reads.

    `after` has the reader's position in each choice, as the stream has told it before. A reader
    with `on_ready` polls: it is called whenever `poll` may return an event, and `on_pause` and `on_resume` when
    generation stops for the readers and when it goes on. `credit` limits what it gets. If the stream is cancelled, it
    gets the ends of the open choices; a reader that waits gets an error.

    Attributes:
        stream: the stream.
        after: see above.
        num_merged: 0: a reader that is behind has no deltas that could be merged.
        error: why the answer is incomplete, once that was read.
    """

    num_merged = 0

    def __init__(
        self,
        stream: LiveStream,
        after: Sequence[int] | None = None,
        marks: Watermarks | None = None,
        clock: Clock = monotonic,
        *,
        credit: Credit | None = None,
        on_ready: Callable[[], None] | None = None,
        on_pause: Callable[[], None] | None = None,
        on_resume: Callable[[], None] | None = None,
    ) -> None:
        self.stream = stream
        self.after = [0] * len(stream.transcripts) if after is None else [*after]
        self._polls = on_ready is not None
        self._positions = [*self.after] if self._polls else [0] * len(stream.transcripts)
        self._finished: dict[int, Finished] = {}
        self._progress = stream.progress if stream.num_tokens else None  # the last one that was read
        self.error: ErrorInfo | None = None
        self._dropped: ErrorInfo | None = None
        self._marks = marks or Watermarks()
        self._credit = credit
        self._lag = Lag.NONE
        self._is_woken = self._is_closed = self._is_cancelled = False
        self._has_news = True  # whether `_read` may find something
        # Delivered: what is before `after`, and what was handed over before the reader came back for more.
        told = [*zip(self.after, stream.transcripts, strict=True)]
        self._num_delivered = sum(min(position, one.num_tokens) for position, one in told)
        self._delivered_bytes = sum(one.num_bytes(position) for position, one in told)
        self._num_read = self._handed_tokens = self._handed_bytes = 0
        self._last_bytes = stream.told_bytes  # of the last events, also of those before `after`; at first of all
        self._num_positions = sum(min(position, one.last) for position, one in told) if self._polls else 0
        self._choices = range(len(stream.transcripts))
        self._turn = 0  # the choice that is asked first
        self._waker = Waker()
        self._notify = on_ready or self._waker.wake
        self._on_pause, self._on_resume = on_pause, on_resume
        self._clock = clock
        self._stopwatch = Stopwatch()

    # --- Its stream ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Attach to the stream.

        Raises:
            RateLimitExceeded: see `LiveStream.attach`.
        """
        with self.closed_on_error():
            self.stream.attach(self)
        self.stream.streams.enter(self)

    def close(self) -> None:
        """Detach from the stream. Idempotent, never blocks."""
        self._is_closed = True
        self.stream.detach(self)
        self.stream.streams.leave(self)
        # What they call may refer to this reader, which would stay with them.
        self._on_pause = self._on_resume = None
        self._notify = self._waker.wake
        self._notify()

    def cancel(self) -> None:
        """Cancel the stream for all its readers; this one gets the ends of its choices alone. Idempotent."""
        self._is_cancelled = True
        self.stream.cancel()
        self.on_put()

    def note_disconnect(self) -> None:
        """Count a reader that is disconnected because it took nothing for the stall timeout."""
        self.stream.streams.slow_readers[DISCONNECT] += 1

    def check(self) -> Lag:
        """Return how much is undelivered: too much from a high mark on, until both low ones are reached."""
        num_tokens = self.stream.num_tokens - self._num_delivered
        num_bytes = self.stream.told_bytes - self._delivered_bytes
        marks = self._marks
        if not self._lag and num_tokens < marks.high_tokens and num_bytes < marks.high_bytes:
            return Lag.NONE
        is_above_low = num_tokens > marks.low_tokens or num_bytes > marks.low_bytes
        is_high = num_tokens >= marks.high_tokens or num_bytes >= marks.high_bytes
        if num_bytes >= marks.full_bytes or (self._lag is Lag.FULL and num_bytes > marks.full_bytes // 2):
            lag = Lag.FULL
        else:
            lag = Lag.SLOW if is_high or (self._lag and is_above_low) else Lag.NONE
        if lag and not self._lag:
            self.stream.streams.slow_readers[self.stream.slow_reader] += 1
        self._lag = lag
        return lag

    def on_put(self) -> None:
        """Wake the task that reads."""
        self._has_news = True
        self._notify()

    def note_pause(self, is_paused: bool) -> None:
        """Tell the transport that generation has stopped, or goes on."""
        on_change = self._on_pause if is_paused else self._on_resume
        if on_change is not None:
            on_change()

    @property
    def is_paused(self) -> bool:
        """Whether generation is paused for the readers."""
        return self.stream.is_paused

    def drop(self) -> None:
        """Detach from the stream, which goes on; the reader gets an error at once."""
        self._dropped = Overloaded("The reader was dropped: it is too slow (slow_reader: drop).").info()
        self.stream.detach(self)
        self.on_put()

    # --- Its task ------------------------------------------------------------------------------------------------

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
                self._turn = choice + 1 if choice + 1 < self.num_choices else 0
                return event
        return None if (failure := self._failure_now) is None else self._fail(failure)

    @property
    def has_more(self) -> bool:
        """Whether the reader should poll again without a new event."""
        is_much_handed = self._handed_tokens >= self._marks.low_tokens or self._handed_bytes >= self._marks.low_bytes
        if self._lag or is_much_handed:
            return True
        stream = self.stream
        num_ends = len(stream.ends) + len(stream.cancelled_ends)
        if self._num_positions == stream.num_told and len(self._finished) == num_ends and stream.failure is None:
            return False
        return self._failure_now is not None or any(self._may_read(choice) for choice in self._turns)

    @property
    def _turns(self) -> Iterable[int]:
        """The choices, from the one that is asked first."""
        turn, num_choices = self._turn, len(self._positions)
        return chain(range(turn, num_choices), range(turn)) if turn else range(num_choices)

    @property
    def lacks_credit(self) -> bool:
        """Whether tokens are pending, and none of them may be sent without more credit."""
        return self._has_pending and not any(
            self._positions[choice] < self._limit(choice) for choice in range(self.num_choices)
        )

    @property
    def num_choices(self) -> int:
        """The number of choices of the answer."""
        return len(self._positions)

    @property
    def num_prompt_tokens(self) -> int:
        """The number of tokens of all prompts."""
        return sum(len(request.prompt_token_ids) for request in self.stream.requests)

    @property
    def num_tokens(self) -> int:
        """The number of tokens behind `after` that were read."""
        return self._num_read

    @property
    def ends(self) -> dict[int, ChoiceEnd]:
        """Why the choices have ended whose ends were read."""
        return {choice: finished.end for choice, finished in self._finished.items()}

    @property
    def usage(self) -> Usage | None:
        """The token counts, once the end of a choice was read; generated tokens are those of the ended choices."""
        if not self._finished:
            return None
        by_request: dict[int, Usage] = {}
        for choice, finished in self._finished.items():
            index = choice // self.stream.requests[0].params.n
            before = by_request[index].completion_tokens if index in by_request else 0
            by_request[index] = replace(finished.usage, completion_tokens=before + finished.usage.completion_tokens)
        return total_usage(by_request.values())

    def span(self) -> Timings:
        """Return the engine's times of the ended choices, at least one."""
        return self._stopwatch.span

    def timings(self) -> StreamTimings | None:
        """Return the figures of the ended choices; None before the first has ended."""
        usage = self.usage
        return None if usage is None else self._stopwatch.read(usage, len(self._finished))

    @property
    def failure(self) -> ErrorInfo | None:
        """The reason why the answer is incomplete, as far as it was read."""
        return self.error

    @property
    def is_finished(self) -> bool:
        """Whether the end of every choice, or the failure of the answer, was read."""
        return self.error is not None or len(self._finished) == len(self._positions)

    @property
    def end_reason(self) -> str:
        """The distinct finish reasons of the ended choices, in the order of the choices."""
        return ", ".join(dict.fromkeys(end.reason for _, end in sorted(self.ends.items())))

    def _deliver(self) -> None:
        if self._handed_tokens or self._handed_bytes:
            self._num_delivered += self._handed_tokens
            self._delivered_bytes += self._handed_bytes
            self._handed_tokens = self._handed_bytes = 0
            if self._lag:
                self.stream.judge()

    def _read(self) -> list[EngineEvent]:
        """Return the next events of each choice, up to a piece; the next call goes on behind it."""
        if self._dropped is not None:
            self.error = self._dropped
            return []
        events: list[EngineEvent] = []
        failure = self.stream.failure
        self._last_bytes = 0
        self._has_news = failure is not None or self.stream.is_stopped
        for choice in self._choices if not self._turn else (*self._choices[self._turn :], *self._choices[: self._turn]):
            while self._last_bytes < PIECE_BYTES and (event := self._next(choice)) is not None:
                events.append(event)
            if self._last_bytes >= PIECE_BYTES:
                self._turn = (choice + 1) % len(self._choices)
                self._has_news = True
                break
        if not events and failure is not None:
            self.error = failure
        elif not events and self.stream.is_stopped and not self.is_finished:
            raise StreamStopped
        return events

    def _next(self, choice: int) -> TokenDelta | Finished | None:
        position, is_limited = self._positions[choice], self._credit is not None or self._is_cancelled
        limit = self._limit(choice) if is_limited else self.stream.transcripts[choice].last
        if position < limit:
            return self._read_delta(choice, position, limit)
        if not self._polls and choice not in self.stream.ends:
            return None
        end = self._end_of(choice)
        if end is not None:
            self._finished[choice] = end
            self._stopwatch.note_end(end.timings)
        return end

    def _read_delta(self, choice: int, position: int, limit: int) -> TokenDelta:
        after = self.after[choice]
        delta = self.stream.transcripts[choice].piece(position, min(after, limit) if position < after else limit)
        num_tokens, num_bytes = len(delta.token_ids), delta_bytes(delta)
        self._positions[choice] = position + (num_tokens or 1)
        self._num_positions += num_tokens or 1
        self._last_bytes += num_bytes
        if position >= after:
            self._num_read += num_tokens
            self._handed_tokens += num_tokens
            self._handed_bytes += num_bytes
            if choice == 0 and self._polls:  # no other response has these times
                self._stopwatch.note_tokens(num_tokens, self._clock())
        return delta

    def _end_of(self, choice: int) -> Finished | None:
        """Return the end of a choice, if it was not read and the reader has all that it gets of the choice."""
        end = self.stream.ends.get(choice)
        if end is None and self._polls and self.stream.is_over:  # a cancel is told once it is recorded
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
        """Why a reader that polls gets no more, once it has what was told and the ends of a cancelled stream."""
        if self.stream.failure is None or self.is_finished or self._has_pending:
            return None
        is_open = self.stream.state is State.CANCELLED and not self.stream.is_settled
        return None if is_open else self.stream.failure

    def _fail(self, error: ErrorInfo) -> RequestFailed:
        self.error = error
        return RequestFailed(self.stream.id, error)
