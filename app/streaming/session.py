"""One live stream: a client's view of a request, from its submission to its end, independent of the transport.

A session is opened, read and closed:

    async with Session(engine, request) as session:
        async for events in session:
            ...

A session that is closed before its end aborts its request, exactly once; one that cannot be opened is closed. `close`
is a plain method, not the `finally` of a generator: if a response is cancelled before its generator has started, such a
`finally` never runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from app.contract.errors import Draining, ErrorInfo, Overloaded
from app.contract.events import (
    ChoiceEnd,
    EngineEvent,
    Finished,
    FinishReason,
    RequestFailed,
    Timings,
    TokenDelta,
    Usage,
)
from app.contract.ports import EngineClient, EventSink
from app.contract.requests import EngineRequest
from app.runtime.clock import Clock, monotonic
from app.streaming.event_reader import EventReader
from app.streaming.flow.flow_window import Credit, Lag
from app.streaming.flow.mailbox import Mailbox
from app.streaming.flow.slow_reader import DISCONNECT, Change, SlowReader, SlowReaderPolicy
from app.streaming.stream_timings import Stopwatch, StreamTimings
from app.streaming.streams import Streams


class Session(EventReader):
    """One live stream. Loop only; one reader at a time, which waits in `receive`, or polls when `on_ready` is called.

    `credit` limits what the reader gets; `on_pause` and `on_resume` are called when generation stops for the reader and
    when it continues. `release`, called when it is closed, lets go of what the request needs, such as its grammar.

    Attributes:
        request: the request.
        ends: why the choices have ended whose ends were read.
        usage: the token counts, once the end of a choice was read; generated tokens are those of the ended choices.
        error: the error of a failed request.
        num_tokens: the number of tokens read so far, of all choices.
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
        on_ready: Callable[[], None] | None = None,
        on_pause: Callable[[], None] | None = None,
        on_resume: Callable[[], None] | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        self.request = request
        self._streams = streams or Streams()
        self._mailbox = Mailbox(
            request.params.n,
            credit=credit,
            pending=self._streams.pending_of(request.account),
            on_lag=self._on_lag,
            on_ready=on_ready,
        )
        # The request.
        self._engine = engine
        self._slow_reader = SlowReaderPolicy(slow_reader, self._streams.slow_readers)
        self._on_pause = on_pause
        self._on_resume = on_resume
        self._release = release
        self._is_open = self._is_aborted = False
        # What was read of it.
        self.ends: dict[int, ChoiceEnd] = {}
        self.usage: Usage | None = None
        self.error: ErrorInfo | None = None
        self.num_tokens = 0
        self._clock = clock
        self._stopwatch = Stopwatch()

    # --- The request ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Submit the request. If that fails, the session is closed.

        Raises:
            ModelLoading, EngineFailed, Draining, RateLimitExceeded: the engine rejects the request.
            Overloaded: the engine rejects it, or too many bytes are pending, many of them for this account.
        """
        assert not self._is_open
        with self.closed_on_error():
            self._streams.check_pending(self.request.account)
            self._engine.submit(*self.submission)
        self.note_open()

    @property
    def submission(self) -> tuple[EngineRequest, EventSink]:
        """The request, and what receives its events."""
        return self.request, self._mailbox

    def note_open(self) -> None:
        """Note that the request was submitted; `open` does both."""
        self._is_open = True
        self._streams.enter(self._mailbox)

    def cancel(self) -> None:
        """Abort the request in the engine; the reader gets the ends of its choices, but no more text. Idempotent."""
        if self._is_open and not self._is_aborted and not self.is_finished:
            self._abort()
            self._mailbox.discard_text()

    def close(self) -> None:
        """Stop reading; a request that has not ended is aborted. Idempotent, never blocks."""
        self.cancel()
        self._streams.leave(self._mailbox)
        self._mailbox.close()
        self._on_pause = self._on_resume = None  # what they call refers to this session, which would stay with it
        if self._release is not None:
            self._release()

    def note_disconnect(self) -> None:
        """Count a reader that is disconnected because it took nothing for the stall timeout."""
        self._streams.slow_readers[DISCONNECT] += 1

    @property
    def is_paused(self) -> bool:
        """Whether generation is paused for the reader."""
        return self._slow_reader.is_paused

    def _on_lag(self, lag: Lag) -> None:
        change = None if self._is_aborted else self._slow_reader.update(lag)
        if change is Change.PAUSE:
            self._engine.pause(self.request.id)
            if self._on_pause is not None:
                self._on_pause()
        elif change is Change.RESUME:
            self._engine.resume(self.request.id)
            if self._on_resume is not None:
                self._on_resume()
        elif change is Change.DROP:
            self._drop()

    def _drop(self) -> None:
        self._abort()
        dropped = Overloaded("The answer was dropped: its reader is too slow (slow_reader: drop).")
        self._mailbox.fail(RequestFailed(self.request.id, dropped.info()))

    def _abort(self) -> None:
        self._is_aborted = True
        self._engine.abort(self.request.id)

    # --- Its reader ----------------------------------------------------------------------------------------------

    async def receive(self) -> list[EngineEvent]:
        """Wait for events and return them; [] when the stream is over, or after a `wake`.

        Cancel-safe: no event is lost.
        """
        events = await self._mailbox.get()
        for event in events:
            self._note(event)
        return events

    def wake(self) -> None:
        """Let `receive` return once, with [] if there are no events."""
        self._mailbox.wake()

    def poll(self) -> EngineEvent | None:
        """Return one event that may be sent now, or None; all events returned before have been delivered."""
        event = self._mailbox.poll()
        if event is not None:
            self._note(event)
        return event

    @property
    def has_more(self) -> bool:
        """Whether the reader should poll again without a new event."""
        return self._mailbox.has_more

    @property
    def lacks_credit(self) -> bool:
        """Whether tokens are pending, and none of them may be sent without more credit."""
        return self._mailbox.lacks_credit

    @property
    def num_choices(self) -> int:
        """The number of choices of the answer."""
        return self.request.params.n

    @property
    def num_prompt_tokens(self) -> int:
        """The number of tokens of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def is_finished(self) -> bool:
        """Whether the end of every choice, or the failure of the request, was read."""
        return self.error is not None or len(self.ends) == self.request.params.n

    @property
    def failure(self) -> ErrorInfo | None:
        """The reason why the answer is incomplete, as far as it was read; None if this session aborted the request."""
        if not self._is_aborted and any(end.reason is FinishReason.CANCELLED for end in self.ends.values()):
            return Draining("The server was stopped before the answer was complete.").info()
        return self.error

    @property
    def end_reason(self) -> str:
        """The distinct finish reasons of the ended choices, in the order of the choices, as in the access log."""
        return ", ".join(dict.fromkeys(end.reason for _, end in sorted(self.ends.items())))

    def timings(self) -> StreamTimings | None:
        """Return the figures of the ended choices; None before the first has ended."""
        return None if self.usage is None else self._stopwatch.read(self.usage, len(self.ends))

    def span(self) -> Timings:
        """Return the engine's times of the ended choices, at least one."""
        return self._stopwatch.span

    def _note(self, event: EngineEvent) -> None:
        if isinstance(event, TokenDelta):
            self.num_tokens += len(event.token_ids)
            if event.choice == 0:
                self._stopwatch.note_tokens(len(event.token_ids), self._clock())
        elif isinstance(event, Finished):
            self.ends[event.choice] = event.end
            # Counts of the request are those of the last end; generated tokens are counted by choice.
            num_before = 0 if self.usage is None else self.usage.completion_tokens
            self.usage = replace(event.usage, completion_tokens=num_before + event.usage.completion_tokens)
            self._stopwatch.note_end(event.timings)
        elif isinstance(event, RequestFailed):
            self.error = event.error
