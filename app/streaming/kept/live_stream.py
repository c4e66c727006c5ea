"""One resumable answer: what was told of it so far, the readers that are attached, and when its requests pause.

    engine ──put──▶ transcript of each choice ◀──cut── reader, reader, ...

An answer belongs to its stream, not to a connection: a reader that goes only detaches. Readers copy nothing, so a slow
one costs no memory. Generation pauses while at least one reader is attached and every attached one lags; without a
reader it goes on to its end.

With a journal, what the engine tells is recorded before readers are told (`Recorder`); generation then pauses, too, for
a disk that is slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from app.contract.errors import Draining, ErrorInfo, RateLimitExceeded, StreamCancelled
from app.contract.events import ChoiceEnd, Finished, FinishReason, Progress, TokenDelta
from app.contract.ports import EngineClient
from app.contract.requests import EngineRequest, ToldChoice
from app.journal.entries import Columns
from app.streaming.flow.flow_window import Lag
from app.streaming.flow.slow_reader import SlowReader
from app.streaming.kept.request_sink import RequestSink
from app.streaming.kept.roles import Keeper, LiveReader, Recorder
from app.streaming.kept.transcript import Transcript
from app.streaming.streams import Streams

MAX_READERS = 8
TTL_S = 300.0
# What is kept besides what was told: the objects of a stream and of each choice, and the prompt's ids (a pointer and an
# int for each). `python -m benchmarks kept_memory` compares them with the memory of a process.
STREAM_BYTES, CHOICE_BYTES, PROMPT_TOKEN_BYTES = 4096, 1024, 36
# Tokens that may wait to be recorded before a stream pauses, and before it goes on again.
HIGH_WAITING, LOW_WAITING = 192, 64
_NOW, _NEVER = (0.0, 0.0), (math.inf, math.inf)


class State(StrEnum):
    """The state of a stream."""

    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The end of a stream that has not ended with its choices: its state, and why."""

    state: State
    error: ErrorInfo


Ending = tuple[int, Finished] | StreamEnd
"""What a stream tells besides tokens: the end of a choice, or its own."""


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
        recorder: what records it; None without a journal.
        is_stopped: whether the process ends before the stream does, which goes on in the next process.
        is_recovered: whether it went on in a process that may choose other tokens than the one before.
        num_bytes: the memory that it takes.
        num_tokens, told_bytes: the tokens that were told, of all choices, and their bytes.
        num_waiting: the tokens that wait to be recorded.
        is_behind: whether too many tokens wait: from a high mark on, until a low one is reached.
    """

    __slots__ = (
        "_answer_bytes", "_engine", "_is_failing", "_is_paused", "_is_submitted", "_lag_from", "_last_report",
        "_parts", "_release", "_was_read", "account", "answer", "cancelled_ends", "ends", "failure", "id",
        "is_behind", "is_recovered", "is_stopped", "keeper", "num_tokens", "num_told", "num_waiting", "progress",
        "readers", "recorder", "requests", "slow_reader", "state", "streams", "tenant", "told_bytes", "transcripts",
        "ttl_s",
    )  # fmt: skip

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
        self.recorder: Recorder | None = None
        self.is_stopped = self.is_recovered = self.is_behind = False
        self.num_tokens = self.told_bytes = self.num_told = self.num_waiting = 0
        self._parts = [RequestSink(self, index * per_prompt, range(per_prompt)) for index in range(len(self.requests))]
        self._engine = engine
        self._answer_bytes = answer_bytes
        self._release = release
        self._last_report: int | None = None
        self._lag_from: tuple[float, float] = _NOW  # the tokens and bytes from which on a reader may lag
        self._is_submitted = self._is_paused = self._is_failing = False
        self._was_read = False  # also in an earlier process

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

    @property
    def is_durable(self) -> bool:
        """Whether the stream outlives the process."""
        return self.recorder is not None and self.recorder.is_durable(self)

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
            for part in self._parts:
                part.close()
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
        if self._was_read and self.keeper is not None:
            self.keeper.note_return(reader.transport)
        self._was_read = True
        self._settle()
        self.judge()

    def restore(self, deltas: Iterable[Columns], ends: Iterable[Ending]) -> None:
        """Take the deltas that an earlier process has told, and then the ends; `submit_again` goes on."""
        self._is_submitted = self._was_read = True
        for columns in deltas:
            self.told_bytes += self.transcripts[columns.choice].extend(columns)
        self.num_tokens = sum(transcript.num_tokens for transcript in self.transcripts)
        self.num_told = sum(transcript.last for transcript in self.transcripts)
        if self.keeper is not None:
            self.keeper.grow(self, self.told_bytes)
        for ending in ends:
            self.take_ending(ending)
        for part in self._parts:
            part.close()

    def submit_again(self) -> list[EngineRequest]:
        """Submit the requests of a restored stream again, to go on behind what was told; return them. A stream that
        ends meanwhile is left alone.

        Raises:
            QuireError: see `EngineClient.submit_all`.
        """
        if self.is_over or self._is_failing:
            return []
        again: dict[int, tuple[EngineRequest, RequestSink]] = {}
        for index, request in enumerate(self.requests):
            first = index * request.params.n
            told = tuple(self._told_of(choice) for choice in range(first, first + request.params.n))
            if open_choices := [choice for choice, one in enumerate(told) if not one.has_ended]:
                is_begun = any(one.token_ids or one.has_ended for one in told)
                goes_on = replace(request, told=told) if is_begun else request
                again[index] = goes_on, RequestSink(self, first, open_choices)
        self._engine.submit_all([*again.values()])
        for index, (_, part) in again.items():
            self._parts[index] = part
        return [request for request, _ in again.values()]

    def detach(self, reader: LiveReader) -> None:
        """Remove a reader; the answer goes on. Idempotent."""
        if reader in self.readers:
            del self.readers[reader]
            self._settle()
            self.judge()

    def cancel(self) -> None:
        """End the stream for all its readers, which get what was told. Idempotent."""
        self._fail(State.CANCELLED, StreamCancelled("The stream was cancelled.").info())

    @property
    def is_settled(self) -> bool:
        """Whether the engine has reported the ends of all requests, also of those that were aborted."""
        return all(part.is_complete for part in self._parts)

    # --- Its requests --------------------------------------------------------------------------------------------

    def note_report(self, report: int | None) -> None:
        """Judge the lags before the events of a step are added: what came at once has not been pending yet."""
        if report is None or report != self._last_report:
            self._last_report = report
            lag_tokens, lag_bytes = self._lag_from
            if self.num_tokens >= lag_tokens or self.told_bytes >= lag_bytes or self.num_waiting >= HIGH_WAITING:
                self.judge()

    def add(self, choice: int, delta: TokenDelta) -> None:
        """Add new tokens of an open choice of the answer; those of a cancelled one are told to nobody."""
        if self._is_failing or choice in self.ends:
            return
        self.num_waiting += len(delta.token_ids)
        if self.recorder is None:
            self.take(choice, delta)
        else:
            self.recorder.add(self, choice, delta)

    def note_progress(self, progress: Progress) -> None:
        """Note how far a request is that has no token yet."""
        self.progress = progress
        self._notify()

    def end_choice(self, choice: int, event: Finished) -> None:
        """Add the end of an open choice of the answer, also of a cancelled one."""
        event = replace(event, choice=choice, params=None)  # they can be large, and are not counted
        if self.is_over or self._is_failing:
            self.cancelled_ends[choice] = replace(event, end=ChoiceEnd(FinishReason.CANCELLED))
            self._notify()
        elif event.reason is FinishReason.CANCELLED:
            self.stop(Draining("The server was stopped before the answer was complete.").info())
        elif choice not in self.ends:
            self._tell((choice, event))

    def fail(self, error: ErrorInfo) -> None:
        """End the stream: one of its requests has failed, so the answer has; the others are aborted."""
        self._fail(State.FAILED, error)

    def stop(self, error: ErrorInfo) -> None:
        """Note that the engine ends before the answer does. A stream that outlives the process has no end then."""
        if not self.is_durable:
            self.fail(error)
        elif not self.is_over:
            self.is_stopped = True
            self._notify()

    def take(self, choice: int, delta: TokenDelta) -> None:
        """Tell the readers tokens, which are recorded if the stream is."""
        num_tokens = len(delta.token_ids)
        self.num_waiting -= num_tokens
        if self.state is not State.RUNNING:
            return
        num_bytes = self.transcripts[choice].append(delta)
        self.told_bytes += num_bytes
        self.num_tokens += num_tokens
        if self.keeper is not None:
            self.keeper.grow(self, num_bytes)
        for reader in self.readers:
            reader.on_put()

    def take_ending(self, ending: Ending) -> None:
        """Tell the readers an ending, which is recorded if the stream is."""
        if not self.is_over:
            if isinstance(ending, StreamEnd):
                self.failure = ending.error
                self._end(ending.state)
            else:
                self._take_end(*ending)
        self._notify()

    def judge(self) -> None:
        """Let the requests pause or go on, as the lags of readers and recorder ask for. The one place that decides."""
        lags = [reader.check() for reader in self.readers]
        self.is_behind = is_behind = self.num_waiting >= (LOW_WAITING + 1 if self.is_behind else HIGH_WAITING)
        if not self._is_paused and not is_behind and not any(lags):
            # What readers have only grows, so none of them lags before: this is far less work for each token.
            marks = [reader.lag_from for reader in self.readers] or [_NEVER]
            self._lag_from = min(tokens for tokens, _ in marks), min(num_bytes for _, num_bytes in marks)
            return
        self._lag_from = _NOW
        if self.slow_reader is SlowReader.DROP and not self.is_over:
            # Who comes back far behind is not slow yet: the answer waits for it, once.
            for reader in [one for one, lag in zip(self.readers, lags, strict=True) if lag and one.has_caught_up]:
                reader.drop()
        # With `coalesce` generation stops where nothing more may become pending, as for the mailbox of a session.
        least = Lag.FULL if self.slow_reader is SlowReader.COALESCE else Lag.SLOW
        is_lagging = bool(self.readers) and all(lag >= least for lag in lags)
        is_paused = (is_lagging or is_behind) and not self.is_over
        if is_paused == self._is_paused:
            return
        self._is_paused = is_paused
        for request in self.requests:
            (self._engine.pause if is_paused else self._engine.resume)(request.id)
        for reader in self.readers:
            reader.note_pause(is_paused)

    @property
    def is_paused(self) -> bool:
        """Whether generation is paused for the readers or the recorder."""
        return self._is_paused and not self.is_over

    def _tell(self, ending: Ending) -> None:
        if self.recorder is None:
            self.take_ending(ending)
        else:
            self.recorder.add_ending(self, ending)

    def _told_of(self, choice: int) -> ToldChoice:
        if choice in self.ends:
            return ToldChoice(has_ended=True)
        return ToldChoice(self.transcripts[choice].token_ids)

    def _take_end(self, choice: int, event: Finished) -> None:
        self.ends[choice] = event
        if len(self.ends) == len(self.transcripts):
            self._end(State.FINISHED)

    def _fail(self, state: State, error: ErrorInfo) -> None:
        if not self.is_over and not self._is_failing:
            self._is_failing = True
            for part, request in zip(self._parts, self.requests, strict=True):
                if not part.is_complete:
                    if state is State.FAILED:
                        part.close()
                    self._engine.abort(request.id)
            self._tell(StreamEnd(state, error))
        self._notify()

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
