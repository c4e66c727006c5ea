"""One reader of a live stream: a cursor over its transcripts, with the members of `Session` that HTTP responses use.

A reader begins at the front, also one that comes back: what was told before `after` it reads again, for the parsers of
its transport, which drops what they return (api/wire/numbered_wire.py). No delta that it reads is on both sides of
`after`. Only what is behind `after` counts as undelivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from app.contract.errors import ErrorInfo, Overloaded
from app.contract.events import ChoiceEnd, EngineEvent, Finished, Timings, TokenDelta, Usage
from app.streaming.event_reader import EventReader
from app.streaming.flow.delta_buffer import PIECE_BYTES, delta_bytes
from app.streaming.flow.flow_window import Lag, Watermarks
from app.streaming.flow.slow_reader import DISCONNECT
from app.streaming.kept.live_stream import LiveStream
from app.streaming.waker import Waker


class StreamReader(EventReader):
    """Reads a live stream while it is open; closing it detaches it. Loop only; one task reads.

    `after` has the reader's position in each choice, as the stream has told it before (see `positions_in`).

    Attributes:
        num_merged: 0: a reader that is behind has no deltas that could be merged.
        error: why the answer is incomplete, once that was read.
    """

    num_merged = 0

    def __init__(self, stream: LiveStream, after: Sequence[int] | None = None, marks: Watermarks | None = None) -> None:
        self._stream = stream
        self._after = [0] * len(stream.transcripts) if after is None else [*after]
        self._positions = [0] * len(stream.transcripts)
        self._finished: dict[int, Finished] = {}
        self.error: ErrorInfo | None = None
        self._dropped: ErrorInfo | None = None
        self._marks = marks or Watermarks()
        self._lag = Lag.NONE
        self._is_woken = self._is_closed = False
        self._has_news = True  # whether `_read` may find something
        # Delivered: what is before `after`, and what was handed over before the reader came back for more.
        told = [*zip(self._after, stream.transcripts, strict=True)]
        self._num_delivered = sum(min(position, one.num_tokens) for position, one in told)
        self._delivered_bytes = sum(one.num_bytes(position) for position, one in told)
        self._num_read = self._handed_tokens = self._handed_bytes = 0
        self._last_bytes = 0  # of the last events, also of those before `after`
        self._turn = 0  # the choice that is asked first
        self._waker = Waker()

    # --- Its stream ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Attach to the stream; the first reader of all submits its requests.

        Raises:
            QuireError: see `LiveStream.attach`.
        """
        with self.closed_on_error():
            self._stream.attach(self)
        self._stream.streams.enter(self)

    def close(self) -> None:
        """Detach from the stream. Idempotent, never blocks."""
        self._is_closed = True
        self._stream.detach(self)
        self._stream.streams.leave(self)
        self._waker.wake()

    def note_disconnect(self) -> None:
        """Count a reader that is disconnected because it took nothing for the stall timeout."""
        self._stream.streams.slow_readers[DISCONNECT] += 1

    def check(self) -> Lag:
        """Return how much is undelivered: too much from a high mark on, until both low ones are reached."""
        num_tokens = self._stream.num_tokens - self._num_delivered
        num_bytes = self._stream.told_bytes - self._delivered_bytes
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
            self._stream.streams.slow_readers[self._stream.slow_reader] += 1
        self._lag = lag
        return lag

    def on_put(self) -> None:
        """Wake the task that reads."""
        self._has_news = True
        self._waker.wake()

    def drop(self) -> None:
        """Detach from the stream, which goes on; the reader gets an error at once."""
        self._dropped = Overloaded("The reader was dropped: it is too slow (slow_reader: drop).").info()
        self._stream.detach(self)
        self.on_put()

    # --- Its task ------------------------------------------------------------------------------------------------

    async def receive(self) -> list[EngineEvent]:
        """Wait for events and return them, up to a piece; [] when the answer is over, or after a `wake`.

        Cancel-safe: no event is lost. What was returned before has been delivered.
        """
        if self._last_bytes >= PIECE_BYTES:
            await asyncio.sleep(0)  # let other tasks run between two large pieces
        self._deliver()
        while True:
            events = self._read() if self._has_news else []
            if events or self.is_finished or self._is_closed or self._is_woken:
                self._is_woken = False
                return events
            await self._waker.wait()

    def wake(self) -> None:
        """Let `receive` return once, with [] if there are no events."""
        self._is_woken = True
        self._waker.wake()

    @property
    def num_choices(self) -> int:
        """The number of choices of the answer."""
        return len(self._positions)

    @property
    def num_prompt_tokens(self) -> int:
        """The number of tokens of all prompts."""
        return sum(len(request.prompt_token_ids) for request in self._stream.requests)

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
            index = choice // self._stream.requests[0].params.n
            before = by_request[index].completion_tokens if index in by_request else 0
            by_request[index] = replace(finished.usage, completion_tokens=before + finished.usage.completion_tokens)
        found = by_request.values()
        return Usage(
            sum(usage.prompt_tokens for usage in found),
            sum(usage.completion_tokens for usage in found),
            sum(usage.cached_tokens for usage in found),
            sum(usage.preemptions for usage in found),
            sum(usage.lost_tokens for usage in found),
        )

    def span(self) -> Timings:
        """Return the engine's times of the ended choices, at least one."""
        times = [finished.timings for finished in self._finished.values()]
        return Timings(
            min(one.queue_s for one in times),
            min(one.first_token_s for one in times),
            max(one.total_s for one in times),
        )

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
                self._stream.judge()

    def _read(self) -> list[EngineEvent]:
        """Return the next events of each choice, up to a piece; the next call goes on behind it."""
        if self._dropped is not None:
            self.error = self._dropped
            return []
        events: list[EngineEvent] = []
        num_choices, failure = len(self._positions), self._stream.failure
        self._last_bytes = 0
        self._has_news = failure is not None
        for choice in (*range(self._turn, num_choices), *range(self._turn)):
            while self._last_bytes < PIECE_BYTES and (event := self._next(choice)) is not None:
                events.append(event)
            if self._last_bytes >= PIECE_BYTES:
                self._turn = (choice + 1) % num_choices
                self._has_news = True
                break
        if not events and failure is not None:
            self.error = failure
        return events

    def _next(self, choice: int) -> TokenDelta | Finished | None:
        position, after, told = self._positions[choice], self._after[choice], self._stream.transcripts[choice]
        last = told.last
        if position < last:
            delta = told.piece(position, min(after, last) if position < after else last)
            num_tokens, num_bytes = len(delta.token_ids), delta_bytes(delta)
            self._positions[choice] = position + (num_tokens or 1)
            self._last_bytes += num_bytes
            if position >= after:
                self._num_read += num_tokens
                self._handed_tokens += num_tokens
                self._handed_bytes += num_bytes
            return delta
        end = self._stream.ends.get(choice)
        if end is None or choice in self._finished:
            return None
        self._finished[choice] = end
        return end
