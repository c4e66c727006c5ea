"""A reader's place in a live stream: what it has of each choice, what was delivered to it, and how far it lags.

No delta that a reader takes is on both sides of `after`. Only what is behind `after` counts as undelivered; what was
taken is delivered when the reader comes back for more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from app.contract.errors import ErrorInfo, Overloaded
from app.contract.events import ChoiceEnd, Finished, Timings, TokenDelta, Usage, total_usage
from app.streaming.flow.delta_buffer import delta_bytes
from app.streaming.flow.flow_window import Lag, Watermarks
from app.streaming.flow.slow_reader import DISCONNECT, SlowReader
from app.streaming.kept.live_stream import LiveStream
from app.streaming.stream_timings import Stopwatch


class StreamCursor(ABC):
    """Implements `LiveReader` for a reader of a stream, which waits or polls. Loop only; one task reads.

    It is attached from `open` to `close`. `after` has the reader's position in each choice, as the stream has told it
    before; the reader begins at `first`.

    Attributes:
        transport: whose reader it is, in the counts of readers that came back.
        stream: the stream.
        after: see above.
        has_caught_up: whether it has once not lagged; one that comes back may begin far behind.
        num_merged: 0: a reader that is behind has no deltas that could be merged.
        error: why the answer is incomplete, once that was read.
    """

    __slots__ = (
        "_delivered_bytes", "_dropped", "_finished", "_lag", "_last_bytes", "_marks", "_num_before", "_num_delivered",
        "_num_taken", "_positions", "_stopwatch", "_taken_bytes", "_turn", "after", "error", "has_caught_up", "stream",
    )  # fmt: skip
    transport: str
    num_merged = 0

    def __init__(
        self, stream: LiveStream, after: Sequence[int], first: Sequence[int], marks: Watermarks | None
    ) -> None:
        self.stream = stream
        self.after = tuple(after)
        self.error: ErrorInfo | None = None
        self._positions = [*first]
        self._turn = 0  # the choice that is asked first
        self._finished: dict[int, Finished] = {}
        self._stopwatch = Stopwatch()
        self._dropped: ErrorInfo | None = None
        self._marks = marks or Watermarks()
        self._lag = Lag.NONE
        self.has_caught_up = False
        # As the stream counts them: what is before `after` counts as taken and delivered from the beginning.
        told = [*zip(after, stream.transcripts, strict=True)]
        self._num_before = sum(min(position, one.num_tokens) for position, one in told)
        self._num_taken = self._num_delivered = self._num_before
        self._taken_bytes = self._delivered_bytes = sum(one.num_bytes(position) for position, one in told)
        self._last_bytes = 0  # of the deltas, also of those before `after`, that were taken since it was set to 0

    # --- Its stream ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Attach to the stream. If that fails, the reader is closed.

        Raises:
            RateLimitExceeded: see `LiveStream.attach`.
        """
        try:
            self.stream.attach(self)
        except BaseException:
            self.close()
            raise
        self.stream.streams.enter(self)

    def close(self) -> None:
        """Detach from the stream. Idempotent, never blocks."""
        self.stream.detach(self)
        self.stream.streams.leave(self)

    def note_disconnect(self) -> None:
        """Count a reader that is disconnected because it took nothing for the stall timeout."""
        self.stream.streams.slow_readers[DISCONNECT] += 1

    def check(self) -> Lag:
        """Return how much is undelivered: too much from a high mark on, until both low ones are reached."""
        num_tokens = self.stream.num_tokens - self._num_delivered
        num_bytes = self.stream.told_bytes - self._delivered_bytes
        marks = self._marks
        if not self._lag and num_tokens < marks.high_tokens and num_bytes < marks.high_bytes:
            self.has_caught_up = True
            return Lag.NONE
        is_above_low = num_tokens > marks.low_tokens or num_bytes > marks.low_bytes
        is_high = num_tokens >= marks.high_tokens or num_bytes >= marks.high_bytes
        if num_bytes >= marks.full_bytes or (self._lag is Lag.FULL and num_bytes > marks.full_bytes // 2):
            lag = Lag.FULL
        else:
            lag = Lag.SLOW if is_high or (self._lag and is_above_low) else Lag.NONE
        if lag and not self._lag and self.stream.slow_reader is not SlowReader.DROP:
            self.stream.streams.slow_readers[self.stream.slow_reader] += 1
        self.has_caught_up |= not lag
        self._lag = lag
        return lag

    @property
    def lag_from(self) -> tuple[float, float]:
        """The tokens and the bytes of the stream from which on the reader would lag, if it reads no more."""
        return self._num_delivered + self._marks.high_tokens, self._delivered_bytes + self._marks.high_bytes

    @abstractmethod
    def on_put(self) -> None:
        """Note that there may be something to read."""

    @abstractmethod
    def note_pause(self, is_paused: bool) -> None:
        """Note that generation has stopped for the readers, or goes on."""

    @property
    def is_paused(self) -> bool:
        """Whether generation is paused for the readers."""
        return self.stream.is_paused

    def drop(self) -> None:
        """Detach from the stream, which goes on; the reader gets an error at once."""
        self.stream.streams.slow_readers[SlowReader.DROP] += 1
        self._dropped = Overloaded("The reader was dropped: it is too slow (slow_reader: drop).").info()
        self.stream.detach(self)
        self.on_put()

    # --- What it takes -------------------------------------------------------------------------------------------

    def _take(self, choice: int, limit: int) -> TokenDelta:
        """Return the next delta of a choice, up to the position `limit` at most, which is behind the reader's."""
        position, after = self._positions[choice], self.after[choice]
        delta = self._cut(choice, position, min(after, limit) if position < after else limit)
        num_tokens, num_bytes = len(delta.token_ids), delta_bytes(delta)
        self._positions[choice] = position + (num_tokens or 1)
        self._last_bytes += num_bytes
        if position >= after:
            self._num_taken += num_tokens
            self._taken_bytes += num_bytes
        return delta

    def _cut(self, choice: int, after: int, upto: int) -> TokenDelta:
        """Return the next delta of a choice, or the beginning of it."""
        return self.stream.transcripts[choice].piece(after, upto)

    def _take_end(self, choice: int, end: Finished) -> Finished:
        """Note that the end of a choice is read; return it."""
        self._finished[choice] = end
        self._stopwatch.note_end(end.timings)
        return end

    def _deliver(self) -> None:
        """Count what was taken as delivered."""
        if self._delivered_bytes != self._taken_bytes or self._num_delivered != self._num_taken:
            self._num_delivered, self._delivered_bytes = self._num_taken, self._taken_bytes
            if self._lag:
                self.stream.judge()

    @property
    def _turns(self) -> Iterable[int]:
        """The choices, from the one that is asked first."""
        turn, num_choices = self._turn, len(self._positions)
        return chain(range(turn, num_choices), range(turn)) if turn else range(num_choices)

    # --- What was read -------------------------------------------------------------------------------------------

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
        return self._num_taken - self._num_before

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
