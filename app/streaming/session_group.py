"""Several requests that are one answer: the prompts of a completion, read as one session.

Choice j of prompt i is choice i·n + j of the answer. The requests are admitted together or rejected together. If one
ends badly, the answer fails, and leaving the group aborts the others.

The reader gets at most one event of each request in a `receive`, since asking a session for the next one says that the
last one was delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from app.contract.errors import ErrorInfo
from app.contract.events import (
    ChoiceEnd,
    EngineEvent,
    Finished,
    PromptScored,
    Timings,
    TokenDelta,
    Usage,
    total_usage,
)
from app.contract.ports import EngineClient
from app.contract.requests import EngineRequest
from app.streaming.event_reader import EventReader
from app.streaming.flow.delta_buffer import PIECE_BYTES, delta_bytes
from app.streaming.flow.slow_reader import SlowReader
from app.streaming.session import Session
from app.streaming.streams import Streams
from app.streaming.waker import Waker


class SessionGroup(EventReader):
    """The sessions of one answer, with the members of `Session` that HTTP responses use. Loop only; one reader.

    All requests have the same account and `n`. For `release` see `Session`.
    """

    def __init__(
        self,
        engine: EngineClient,
        requests: Sequence[EngineRequest],
        *,
        streams: Streams | None = None,
        slow_reader: SlowReader = SlowReader.PAUSE,
        release: Callable[[], None] | None = None,
    ) -> None:
        self._engine = engine
        self._streams = streams or Streams()
        self._waker = Waker()
        self._sessions = [
            Session(engine, request, streams=self._streams, slow_reader=slow_reader, on_ready=self._waker.wake)
            for request in requests
        ]
        self._release = release
        self._num_choices = requests[0].params.n
        self._turn = 0  # the session that is asked first
        self._is_woken = False

    def open(self) -> None:
        """Submit all requests, or none. If that fails, the group is closed.

        Raises:
            ModelLoading, EngineFailed, Draining, RateLimitExceeded, Overloaded: see `Session.open`.
        """
        with self.closed_on_error():
            self._streams.check_pending(self._sessions[0].request.account)
            self._engine.submit_all([session.submission for session in self._sessions])
        for session in self._sessions:
            session.note_open()

    def close(self) -> None:
        """Stop reading; requests that have not ended are aborted. Idempotent, never blocks."""
        for session in self._sessions:
            session.close()
        if self._release is not None:
            self._release()

    def note_disconnect(self) -> None:
        """Count a reader that is disconnected because it took nothing for the stall timeout."""
        self._sessions[0].note_disconnect()

    async def receive(self) -> list[EngineEvent]:
        """Wait for events and return them, up to a piece; [] when the answer is over, or after a `wake`.

        Cancel-safe: no event is lost.
        """
        while self.failure is None:
            events = self._poll()
            if events or self.is_finished or self._is_woken:
                self._is_woken = False
                return events
            await self._waker.wait()
        return []

    def wake(self) -> None:
        """Let `receive` return once, with [] if there are no events."""
        self._is_woken = True
        self._waker.wake()

    def span(self) -> Timings:
        """Return the engine's times of all ended choices, at least one."""
        spans = [session.span() for session in self._sessions if session.usage is not None]
        return Timings(
            min(span.queue_s for span in spans),
            min(span.first_token_s for span in spans),
            max(span.total_s for span in spans),
        )

    @property
    def num_choices(self) -> int:
        """The number of choices of the answer."""
        return self._num_choices * len(self._sessions)

    @property
    def num_prompt_tokens(self) -> int:
        """The number of tokens of all prompts."""
        return sum(session.num_prompt_tokens for session in self._sessions)

    @property
    def num_tokens(self) -> int:
        """The number of tokens read so far."""
        return sum(session.num_tokens for session in self._sessions)

    @property
    def ends(self) -> dict[int, ChoiceEnd]:
        """Why the choices have ended whose ends were read."""
        return {
            index * self._num_choices + choice: end
            for index, session in enumerate(self._sessions)
            for choice, end in session.ends.items()
        }

    @property
    def usage(self) -> Usage | None:
        """The sums of the requests' token counts, once the end of a choice was read."""
        found = [session.usage for session in self._sessions if session.usage is not None]
        return total_usage(found) if found else None

    @property
    def error(self) -> ErrorInfo | None:
        """The error of the first request that failed."""
        return next((session.error for session in self._sessions if session.error is not None), None)

    @property
    def failure(self) -> ErrorInfo | None:
        """The reason why the answer is incomplete, as far as it was read."""
        return next((failure for session in self._sessions if (failure := session.failure) is not None), None)

    @property
    def is_finished(self) -> bool:
        """Whether the end of every choice, or a failure, was read."""
        return all(session.is_finished for session in self._sessions) or self.failure is not None

    @property
    def end_reason(self) -> str:
        """The distinct finish reasons of the ended choices."""
        return ", ".join(dict.fromkeys(end.reason for end in self.ends.values()))

    def _poll(self) -> list[EngineEvent]:
        """Return one event of each session that has one, up to a piece; the next call goes on behind them."""
        events: list[EngineEvent] = []
        num_bytes = 0
        for _ in range(len(self._sessions)):
            index = self._turn
            self._turn = (index + 1) % len(self._sessions)
            event = self._sessions[index].poll()
            if isinstance(event, TokenDelta):
                num_bytes += delta_bytes(event)
                event = event._replace(choice=index * self._num_choices + event.choice)
            elif isinstance(event, PromptScored):
                num_bytes += len(event.logprobs.rows)
                event = event._replace(choice=index * self._num_choices)
            elif isinstance(event, Finished):
                event = replace(event, choice=index * self._num_choices + event.choice)
            if event is not None:
                events.append(event)
            if num_bytes >= PIECE_BYTES:
                break
        return events
