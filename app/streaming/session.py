"""One live stream: a client's view of a request, from its submission to its end. Knows no transport.

A session is opened, read and closed:

    async with Session(engine, request) as session:
        async for events in session:
            ...

Leaving the block before the end aborts the request in the engine, exactly once. The promise is kept by `close`, a
plain method, and not by a generator's `finally`: a response that is cancelled before its generator has started never
runs that generator's `finally`. So the owner of a response closes its session itself.

A reader who lags is the session's business, by the policy of its request: it pauses the request in the engine, lets
what waits be merged, or gives the answer up. The mailbox says when, the engine says what that means.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from types import TracebackType
from typing import NamedTuple

from app.contract.errors import ErrorInfo, Overloaded
from app.contract.events import EngineEvent, Finished, FinishReason, RequestFailed, TokenDelta, Usage
from app.contract.events import Timings as EngineTimings
from app.contract.ports import EngineClient, EventStream
from app.contract.requests import EngineRequest
from app.runtime.clock import Clock, monotonic
from app.streaming.flow.flow_window import Lag
from app.streaming.streams import CUT, SlowReader, Streams

MAX_GAPS = 1024


class StreamTimings(NamedTuple):
    """What a client is told of its stream's speed: times in ms from arrival, rates in tokens per second.

    `itl_p50_ms` is the median time between tokens as the session met them, over the last 1,024 deliveries.
    """

    queue_ms: float
    ttft_ms: float
    prefill_tok_s: float
    decode_tok_s: float
    itl_p50_ms: float


class Session:
    """One live stream. Loop only; one reader at a time.

    Attributes:
        request: what was asked.
        finish_reasons: why each choice ended, as far as they have.
        usage: the token counts, once a choice has ended: generated ones of the choices that have.
        error: why the request failed, if it did.
        num_tokens: tokens read so far, of all choices.
        is_paused: whether generation waits for the reader.
    """

    def __init__(
        self,
        engine: EngineClient,
        request: EngineRequest,
        clock: Clock = monotonic,
        *,
        slow_reader: SlowReader = SlowReader.PAUSE,
        streams: Streams | None = None,
        on_pause: Callable[[bool], None] = lambda is_paused: None,
    ) -> None:
        self.request = request
        self.finish_reasons: dict[int, FinishReason] = {}
        self.usage: Usage | None = None
        self.error: ErrorInfo | None = None
        self.num_tokens = 0
        self.is_paused = False
        self._engine = engine
        self._clock = clock
        self._slow_reader = slow_reader
        self._streams = streams or Streams()
        self._on_pause = on_pause
        self._stream: EventStream | None = None
        self._is_aborted = False
        self._lag = 0
        self._engine_timings: EngineTimings | None = None
        self._deliveries: deque[tuple[float, int]] = deque(maxlen=MAX_GAPS + 1)  # (time, tokens), first choice only

    @property
    def is_finished(self) -> bool:
        """Whether every choice has ended, or the request has failed, as far as has been read."""
        return self.error is not None or len(self.finish_reasons) == self.request.params.n

    @property
    def lacks_credit(self) -> bool:
        """Whether something waits for the reader, and all of it for credit."""
        return self._stream is not None and self._stream.lacks_credit

    @property
    def ending(self) -> str:
        """Why the choices ended that have, in their order; a reason that several share is told once."""
        return ", ".join(dict.fromkeys(self.finish_reasons[choice] for choice in sorted(self.finish_reasons)))

    def open(self) -> None:
        """Submit the request.

        Raises:
            ModelLoading, EngineFailed, Draining, Overloaded: the engine refuses it; there is nothing to close.
            Overloaded: too much waits for the readers of all streams, and much of it for those of the account.
        """
        assert self._stream is None
        self._streams.pending.check(self.request.account)
        self._stream = self._engine.submit(self.request)
        self._stream.watch(self._take_backlog)
        self._streams.enter(self._stream, self.request.account)

    async def receive(self) -> list[EngineEvent]:
        """Wait for news and return all of it; [] when the stream is over, or after a `wake`.

        Cancel-safe: no event is lost.
        """
        assert self._stream is not None
        events = await self._stream.get()
        for event in events:
            self._note(event)
        return events

    def wake(self) -> None:
        """Let `receive` return once, with nothing if there is nothing."""
        assert self._stream is not None
        self._stream.wake()

    def listen(self, on_news: Callable[[], None]) -> None:
        """Call `on_news` whenever `poll` may have something, instead of waiting in `receive`."""
        assert self._stream is not None
        self._stream.listen(on_news)

    def poll(self) -> EngineEvent | None:
        """Return one event that may be told now, or None; whatever was returned before has been delivered."""
        assert self._stream is not None
        event = self._stream.poll()
        if event is not None:
            self._note(event)
        return event

    @property
    def has_more(self) -> bool:
        """Whether the reader should poll again although nothing new comes."""
        return self._stream is not None and self._stream.has_more

    def grant_credit(self, upto: Sequence[int]) -> None:
        """Take the reader's credit: of choice i it may be told up to token `upto[i]`."""
        assert self._stream is not None
        self._stream.grant_credit(upto)

    def cancel(self) -> None:
        """Ask the engine to end the request; the reader is told of ends, but of no more text. Idempotent."""
        if self._stream is not None and not self._is_aborted and not self.is_finished:
            self._is_aborted = True
            self._engine.abort(self.request.id)
            self._stream.discard_text()

    def cut(self) -> None:
        """Count the reader as one who is cut for taking nothing."""
        self._streams.note_slow(CUT)

    def close(self) -> None:
        """Stop reading; a request that has not ended is aborted. Idempotent, never blocks."""
        self.cancel()
        if self._stream is not None:
            self._streams.leave(self._stream)
            self._stream.close()

    def timings(self) -> StreamTimings | None:
        """Return the figures of the choices that have ended, or None before that.

        Those of several choices: the tokens of all of them, from the first token of one to the last of another.
        """
        if self._engine_timings is None or self.usage is None:
            return None
        engine, usage = self._engine_timings, self.usage
        num_decoded = usage.completion_tokens - len(self.finish_reasons)  # the first tokens are the prefill's
        return StreamTimings(
            queue_ms=engine.queue_s * 1000,
            ttft_ms=engine.first_token_s * 1000,
            prefill_tok_s=_rate(usage.prompt_tokens - usage.cached_tokens, engine.first_token_s - engine.queue_s),
            decode_tok_s=_rate(num_decoded, engine.total_s - engine.first_token_s),
            itl_p50_ms=self._median_gap_s() * 1000,
        )

    async def __aenter__(self) -> Session:
        self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Session:
        return self

    async def __anext__(self) -> list[EngineEvent]:
        events = await self.receive()
        if not events:
            raise StopAsyncIteration
        return events

    def _take_backlog(self, lag: int) -> None:
        """The reader lags, or has caught up: do what its policy says; where no more may wait, generation does."""
        if self._is_aborted:
            return
        if lag and not self._lag:
            self._streams.note_slow(self._slow_reader)
        self._lag = lag
        if self._slow_reader is SlowReader.DROP:
            if lag:
                self._drop()
        else:
            self._pause(lag >= (Lag.SLOW if self._slow_reader is SlowReader.PAUSE else Lag.FULL))

    def _pause(self, is_paused: bool) -> None:
        if is_paused != self.is_paused:
            self.is_paused = is_paused
            (self._engine.pause if is_paused else self._engine.resume)(self.request.id)
            self._on_pause(is_paused)

    def _drop(self) -> None:
        """End the stream of a reader that lags."""
        assert self._stream is not None
        self._is_aborted = True
        self._engine.abort(self.request.id)
        lag = Overloaded("The answer was dropped: its reader is too slow, and asked for that (slow_reader: drop).")
        self._stream.fail(RequestFailed(self.request.id, lag.info()))

    def _note(self, event: EngineEvent) -> None:
        if isinstance(event, RequestFailed):
            self.error = event.error
        elif isinstance(event, Finished):
            self.finish_reasons[event.choice] = event.reason
            # What is the request's is newest in its newest end; generated tokens are each choice's own.
            num_before = 0 if self.usage is None else self.usage.completion_tokens
            self.usage = replace(event.usage, completion_tokens=num_before + event.usage.completion_tokens)
            self._engine_timings = _span(self._engine_timings or event.timings, event.timings)
        elif isinstance(event, TokenDelta):
            self.num_tokens += len(event.token_ids)
            if event.choice == 0:
                self._deliveries.append((self._clock(), len(event.token_ids)))

    def _median_gap_s(self) -> float:
        """Seconds per token: a delivery of k tokens counts as k equal gaps since the one before."""
        gaps: list[float] = []
        for (before, _), (now, count) in pairwise(self._deliveries):
            gaps += [(now - before) / count] * count if count else []
        return median(gaps) if gaps else 0.0


def _span(one: EngineTimings, other: EngineTimings) -> EngineTimings:
    """From the earlier beginning to the later end."""
    return EngineTimings(
        min(one.queue_s, other.queue_s),
        min(one.first_token_s, other.first_token_s),
        max(one.total_s, other.total_s),
    )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count > 0 and seconds > 0 else 0.0
