"""One live stream: a client's view of a request, from its submission to its end. Knows no transport.

A session is opened, read and closed:

    async with Session(engine, request) as session:
        async for events in session:
            ...

Leaving the block before the end aborts the request in the engine, exactly once. The promise is kept by `close`, a
plain method, and not by a generator's `finally`: a response that is cancelled before its generator has started never
runs that generator's `finally`. So the owner of a response closes its session itself.

A session has two halves. One owns the request: it submits, pauses, resumes and aborts it, as the policy for slow
readers says. The other reads its mailbox and keeps what was read. They meet where the mailbox says how far the reader
lags, and where one of them ends the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

from app.contract.errors import Draining, ErrorInfo, Overloaded
from app.contract.events import EngineEvent, Finished, FinishReason, RequestFailed, TokenDelta, Usage
from app.contract.ports import EngineClient
from app.contract.requests import EngineRequest
from app.runtime.clock import Clock, monotonic
from app.streaming.flow.credit import Credit
from app.streaming.flow.flow_window import Lag
from app.streaming.flow.mailbox import Mailbox
from app.streaming.stream_timings import Stopwatch, StreamTimings
from app.streaming.streams import DISCONNECT, SlowReader, Streams


class Session:
    """One live stream. Loop only; one reader at a time, who waits in `receive`, or has `on_news` and polls.

    `credit` bounds what the reader gets; `on_pause` and `on_resume` are called when generation stops for the reader and
    when it goes on.

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
        streams: Streams | None = None,
        slow_reader: SlowReader = SlowReader.PAUSE,
        credit: Credit | None = None,
        on_news: Callable[[], None] | None = None,
        on_pause: Callable[[], None] | None = None,
        on_resume: Callable[[], None] | None = None,
    ) -> None:
        self.request = request
        self._streams = streams or Streams()
        self._mailbox = Mailbox(
            request.params.n,
            credit=credit,
            pending=self._streams.pending.of(request.account),
            on_high_water=self._check_lag,
            on_news=on_news,
        )
        # The request.
        self.is_paused = False
        self._engine = engine
        self._slow_reader = slow_reader
        self._on_pause = on_pause
        self._on_resume = on_resume
        self._is_open = self._is_aborted = self._was_slow = False
        # What was read of it.
        self.finish_reasons: dict[int, FinishReason] = {}
        self.usage: Usage | None = None
        self.error: ErrorInfo | None = None
        self.num_tokens = 0
        self._clock = clock
        self._stopwatch = Stopwatch()

    # --- The request ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Submit the request.

        Raises:
            ModelLoading, EngineFailed, Draining, Overloaded: the engine refuses it; there is nothing to close.
            Overloaded: too much waits for the readers of all streams, and much of it for those of the account.
        """
        assert not self._is_open
        self._streams.pending.check(self.request.account)
        self._engine.submit(self.request, self._mailbox)
        self._is_open = True
        self._streams.enter(self._mailbox)

    def cancel(self) -> None:
        """Ask the engine to end the request; the reader gets the ends, but no more text. Idempotent."""
        if self._is_open and not self._is_aborted and not self.is_finished:
            self._abort()
            self._mailbox.discard_text()

    def close(self) -> None:
        """Stop reading; a request that has not ended is aborted. Idempotent, never blocks."""
        self.cancel()
        self._streams.leave(self._mailbox)
        self._mailbox.close()

    def note_disconnect(self) -> None:
        """Count the reader as one who is disconnected for taking nothing."""
        self._streams.slow_readers[DISCONNECT] += 1

    def _check_lag(self, lag: Lag) -> None:
        """Do what the policy says about a reader who lags; where no more may wait, generation always stops."""
        if self._is_aborted:
            return
        if lag and not self._was_slow:
            self._streams.slow_readers[self._slow_reader] += 1
        self._was_slow = bool(lag)
        if self._slow_reader is SlowReader.DROP:
            if lag:
                self._drop()
            return
        is_paused = lag >= (Lag.SLOW if self._slow_reader is SlowReader.PAUSE else Lag.FULL)
        if is_paused != self.is_paused:
            self.is_paused = is_paused
            (self._engine.pause if is_paused else self._engine.resume)(self.request.id)
            callback = self._on_pause if is_paused else self._on_resume
            if callback is not None:
                callback()

    def _drop(self) -> None:
        self._abort()
        lag = Overloaded("The answer was dropped: its reader is too slow, and asked for that (slow_reader: drop).")
        self._mailbox.fail(RequestFailed(self.request.id, lag.info()))

    def _abort(self) -> None:
        self._is_aborted = True
        self._engine.abort(self.request.id)

    # --- Its reader ----------------------------------------------------------------------------------------------

    async def receive(self) -> list[EngineEvent]:
        """Wait for news and return all of it; [] when the stream is over, or after a `wake`.

        Cancel-safe: no event is lost.
        """
        events = await self._mailbox.get()
        for event in events:
            self._note(event)
        return events

    def wake(self) -> None:
        """Let `receive` return once, with nothing if there is nothing."""
        self._mailbox.wake()

    def poll(self) -> EngineEvent | None:
        """Return one event that may be sent now, or None; whatever was returned before has been delivered."""
        event = self._mailbox.poll()
        if event is not None:
            self._note(event)
        return event

    @property
    def has_more(self) -> bool:
        """Whether the reader should poll again although nothing new comes."""
        return self._mailbox.has_more

    @property
    def lacks_credit(self) -> bool:
        """Whether something waits for the reader, and all of it for credit."""
        return self._mailbox.lacks_credit

    @property
    def is_finished(self) -> bool:
        """Whether every choice has ended, or the request has failed, as far as has been read."""
        return self.error is not None or len(self.finish_reasons) == self.request.params.n

    @property
    def failure(self) -> ErrorInfo | None:
        """Why the answer is not complete, as far as has been read; None also if it was given up here."""
        if FinishReason.CANCELLED in self.finish_reasons.values() and not self._is_aborted:
            return Draining("The server was stopped before the answer was complete.").info()
        return self.error

    @property
    def ending(self) -> str:
        """Why the choices ended that have, in their order; each reason once."""
        return ", ".join(dict.fromkeys(self.finish_reasons[choice] for choice in sorted(self.finish_reasons)))

    def timings(self) -> StreamTimings | None:
        """Return the figures of the choices that have ended, or None before that."""
        return None if self.usage is None else self._stopwatch.read(self.usage, len(self.finish_reasons))

    def _note(self, event: EngineEvent) -> None:
        if isinstance(event, TokenDelta):
            self.num_tokens += len(event.token_ids)
            if event.choice == 0:
                self._stopwatch.note_tokens(len(event.token_ids), self._clock())
        elif isinstance(event, Finished):
            self.finish_reasons[event.choice] = event.reason
            # What is the request's is newest in its newest end; generated tokens are each choice's own.
            num_before = 0 if self.usage is None else self.usage.completion_tokens
            self.usage = replace(event.usage, completion_tokens=num_before + event.usage.completion_tokens)
            self._stopwatch.note_end(event.timings)
        elif isinstance(event, RequestFailed):
            self.error = event.error

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
