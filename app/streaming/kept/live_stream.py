"""One resumable answer: what was told of it so far, the readers that are attached, and when its requests pause.

    engine ──put──▶ transcript of each choice ◀──cut── reader, reader, ...

An answer belongs to its stream, not to a connection: a reader that goes only detaches. Readers copy nothing, so a slow
one costs no memory. Generation pauses while at least one reader is attached and every attached one lags; without a
reader it goes on to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Protocol

from app.contract.errors import Draining, ErrorInfo, RateLimitExceeded, StreamCancelled
from app.contract.events import (
    ChoiceEnd,
    EngineEvent,
    Finished,
    FinishReason,
    Progress,
    RequestFailed,
    TokenDelta,
)
from app.contract.ports import EngineClient
from app.contract.requests import EngineRequest
from app.streaming.flow.flow_window import Lag
from app.streaming.flow.slow_reader import SlowReader
from app.streaming.kept.transcript import Transcript
from app.streaming.streams import Streams

MAX_READERS = 8
TTL_S = 300.0
# What is kept besides what was told: the objects of a stream and of each choice, and the prompt's ids (a pointer and an
# int for each). `python -m benchmarks kept_memory` compares them with the memory of a process.
STREAM_BYTES, CHOICE_BYTES, PROMPT_TOKEN_BYTES = 4096, 1024, 36


class State(StrEnum):
    """The state of a stream."""

    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


class LiveReader(Protocol):
    """A reader as its stream sees it."""

    def check(self) -> Lag:
        """Return how far the reader lags; called before a step's events are added and whenever that may change."""

    def on_put(self) -> None:
        """Note that there may be something to read."""

    def note_pause(self, is_paused: bool) -> None:
        """Note that generation has stopped for the readers, or goes on."""

    def drop(self) -> None:
        """End with the error of a reader that is too slow."""


class Keeper(Protocol):
    """Who keeps a stream for readers that come back."""

    def grow(self, stream: LiveStream, num_bytes: int) -> None:
        """Count what was told."""

    def settle(self, stream: LiveStream) -> None:
        """Note that the stream has ended, or that a reader has come or gone."""

    def forget(self, stream: LiveStream) -> None:
        """Keep a stream without readers no longer."""


class LiveStream:
    """The requests of one answer, all of one account. Loop only.

    Choice j of prompt i is choice i·n + j of the answer, as in a `SessionGroup`. `answer` is what its transports need,
    and `answer_bytes` its memory. `release` lets go of what the requests need, such as their grammar; it is called when
    they have ended.

    Attributes:
        id: the id of the answer, 128 random bits.
        requests: the requests; when they have ended, as readers need them.
        account: the account that the stream counts for.
        tenant: the name of the key whose stream it is; None on a server without keys.
        answer: see above.
        ttl_s: the seconds that it is kept without a reader.
        slow_reader: what happens while its readers lag.
        streams: counts the readers.
        transcripts: what was told of each choice.
        ends: the ends of the choices that have ended.
        cancelled_ends: those of the choices that were open when it was cancelled, as the engine reports them.
        progress: the last progress of its requests.
        failure: why the answer is incomplete, if it is.
        state: the state.
        readers: the attached readers.
        keeper: who keeps it; None before it is kept and after it was forgotten.
        num_bytes: the memory that it takes.
        num_tokens, told_bytes: the tokens that were told, of all choices, and their bytes.
    """

    def __init__(
        self,
        engine: EngineClient,
        requests: Sequence[EngineRequest],
        answer_id: str,
        *,
        answer: object = None,
        answer_bytes: int = 0,
        ttl_s: float = TTL_S,
        slow_reader: SlowReader = SlowReader.PAUSE,
        streams: Streams | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        self.id = answer_id
        self.requests = tuple(requests)
        self.account, self.tenant = self.requests[0].account, self.requests[0].tenant
        self.answer = answer
        self.ttl_s = ttl_s
        self.slow_reader = slow_reader
        self.streams = streams or Streams()
        per_prompt = self.requests[0].params.n
        self.transcripts = [Transcript(answer_id, choice) for choice in range(per_prompt * len(self.requests))]
        self.ends: dict[int, Finished] = {}
        self.cancelled_ends: dict[int, Finished] = {}
        self.progress: Progress | None = None
        self.failure: ErrorInfo | None = None
        self.state = State.RUNNING
        self.readers: dict[LiveReader, None] = {}  # in the order of their coming
        self.keeper: Keeper | None = None
        self.num_tokens = self.told_bytes = 0
        self._parts = [_Part(self, index * per_prompt, per_prompt) for index in range(len(self.requests))]
        self._engine = engine
        self._answer_bytes = answer_bytes
        self._release = release
        self._last_report: int | None = None
        self._is_submitted = self._is_paused = False

    # --- Its life ------------------------------------------------------------------------------------------------

    @property
    def num_bytes(self) -> int:
        """The memory that the stream takes."""
        num_prompt = sum(len(request.prompt_token_ids) for request in self.requests)
        objects = STREAM_BYTES + len(self.transcripts) * CHOICE_BYTES
        return objects + num_prompt * PROMPT_TOKEN_BYTES + self._answer_bytes + self.told_bytes

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be told."""
        return self.state is not State.RUNNING

    def start(self) -> None:
        """Submit the requests. If that fails, the stream is kept no longer. Idempotent.

        Raises:
            ModelLoading, EngineFailed, Draining, RateLimitExceeded, Overloaded: see `Session.open`.
        """
        if self._is_submitted:
            return
        try:
            self.streams.check_pending(self.account)
            self._engine.submit_all([*zip(self.requests, self._parts, strict=True)])
        except BaseException:
            self._end(State.FAILED)
            if self.keeper is not None:
                self.keeper.forget(self)
            raise
        self._is_submitted = True

    def attach(self, reader: LiveReader) -> None:
        """Add a reader, of a stream that was started.

        Raises:
            RateLimitExceeded: the stream has as many readers as it may have.
        """
        if len(self.readers) >= MAX_READERS:
            raise RateLimitExceeded(f"{MAX_READERS} readers read this stream; a further one may when one has gone.")
        self.readers[reader] = None
        self._settle()
        self.judge()

    def detach(self, reader: LiveReader) -> None:
        """Remove a reader; the answer goes on. Idempotent."""
        if reader in self.readers:
            del self.readers[reader]
            self._settle()
            self.judge()

    def cancel(self) -> None:
        """End the stream for all its readers, which get what was told. Idempotent."""
        if self.is_over:
            return
        self.failure = StreamCancelled("The stream was cancelled.").info()
        for part, request in zip(self._parts, self.requests, strict=True):
            if not part.is_complete:
                self._engine.abort(request.id)
        self._end(State.CANCELLED)
        self._notify()

    @property
    def is_settled(self) -> bool:
        """Whether the engine has reported the ends of all requests, also of those that were aborted."""
        return all(part.is_complete for part in self._parts)

    def is_told(self, positions: Sequence[int]) -> bool:
        """Return whether a reader at `positions` has been told everything so far."""
        return all(position >= one.last for position, one in zip(positions, self.transcripts, strict=True))

    # --- Its requests --------------------------------------------------------------------------------------------

    def note_report(self, report: int | None) -> None:
        """Judge the lags before the events of a step are added: what came at once has not been pending yet."""
        if report is None or report != self._last_report:
            self._last_report = report
            self.judge()

    def add(self, choice: int, event: TokenDelta | Finished | Progress) -> None:
        """Add an event of an open choice of the answer; of a cancelled one only the end."""
        if isinstance(event, Progress):
            self.progress = event
        elif self.is_over:
            if isinstance(event, Finished):
                self.cancelled_ends[choice] = replace(event, choice=choice, end=ChoiceEnd(FinishReason.CANCELLED))
        elif isinstance(event, TokenDelta):
            num_bytes = self.transcripts[choice].append(event)
            self.told_bytes += num_bytes
            self.num_tokens += len(event.token_ids)
            if self.keeper is not None:
                self.keeper.grow(self, num_bytes)
        elif event.reason is FinishReason.CANCELLED:
            self.fail(Draining("The server was stopped before the answer was complete.").info())
        else:
            self.ends[choice] = replace(event, choice=choice)
            if len(self.ends) == len(self.transcripts):
                self._end(State.FINISHED)
        self._notify()

    def fail(self, error: ErrorInfo) -> None:
        """End the stream: one of its requests has failed, so the answer has; the others are aborted."""
        if not self.is_over:
            self.failure = error
            for part, request in zip(self._parts, self.requests, strict=True):
                if not part.is_complete:
                    part.close()
                    self._engine.abort(request.id)
            self._end(State.FAILED)
        self._notify()

    def judge(self) -> None:
        """Let the requests pause or go on, as the lags of the readers ask for. The one place that decides it."""
        lags = [reader.check() for reader in self.readers]
        if not self._is_paused and not any(lags):
            return
        if self.slow_reader is SlowReader.DROP:
            for reader in [reader for reader, lag in zip(self.readers, lags, strict=True) if lag]:
                reader.drop()
        # With `coalesce` generation stops where nothing more may become pending, as for the mailbox of a session.
        least = Lag.FULL if self.slow_reader is SlowReader.COALESCE else Lag.SLOW
        is_paused = bool(self.readers) and not self.is_over and all(lag >= least for lag in lags)
        if is_paused == self._is_paused:
            return
        self._is_paused = is_paused
        for request in self.requests:
            (self._engine.pause if is_paused else self._engine.resume)(request.id)
        for reader in self.readers:
            reader.note_pause(is_paused)

    @property
    def is_paused(self) -> bool:
        """Whether generation is paused for the readers."""
        return self._is_paused and not self.is_over

    def _end(self, state: State) -> None:
        self.state = state
        if self._release is not None:
            self._release()
        # What generating needed and reading does not can be large, and is not counted.
        self._release = None
        self.requests = tuple(request.for_readers() for request in self.requests)
        for transcript in self.transcripts:
            transcript.trim()
        self._settle()

    def _settle(self) -> None:
        if self.keeper is not None:
            self.keeper.settle(self)

    def _notify(self) -> None:
        for reader in self.readers:
            reader.on_put()


class _Part:
    """Implements `EventSink` for one request: passes its events to the stream, whose choices begin at `first` for it.

    Attributes:
        has_begun: whether a token or a final event was received.
    """

    def __init__(self, stream: LiveStream, first: int, num_choices: int) -> None:
        self._stream = stream
        self._first = first
        self._open_choices = set(range(num_choices))
        self.has_begun = False

    @property
    def is_complete(self) -> bool:
        """Whether the request has ended."""
        return not self._open_choices

    @property
    def num_open_choices(self) -> int:
        """The number of choices that have not ended."""
        return len(self._open_choices)

    def put(self, event: EngineEvent, report: int | None = None) -> None:
        """Add an event. Never blocks."""
        if not self._open_choices:
            return
        self._stream.note_report(report)
        if isinstance(event, RequestFailed):
            self.close()
            self._stream.fail(event.error)
        elif isinstance(event, Progress):
            self._stream.add(self._first, event)
        elif isinstance(event, (TokenDelta, Finished)) and event.choice in self._open_choices:
            self.has_begun = True
            if isinstance(event, Finished):
                self._open_choices.remove(event.choice)
            self._stream.add(self._first + event.choice, event)

    def close(self) -> None:
        """Take no more events: the request has ended, or its answer has."""
        self._open_choices.clear()
