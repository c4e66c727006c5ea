"""One response of a WebSocket: from its frame to its last event, or to the error that it could not begin for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from starlette.types import Scope

from app.api.body.new_answer import BegunAnswer
from app.api.http.access_log import log_stream
from app.api.http.context import ApiContext
from app.api.http.error_response import FROM_OUTSIDE
from app.api.http.stream_failure import failure_of
from app.api.responses.answered_response import AnsweredResponse
from app.api.responses.response_events import ResponseEvent
from app.api.responses.response_memory import NextResponse
from app.api.responses.responses import asked_in
from app.api.responses.responses_protocol import Create, error_frame
from app.api.wire.json_line import text_line
from app.contract.errors import ErrorInfo
from app.contract.events import EngineEvent, Finished, FinishReason, Progress, TokenDelta
from app.runtime.clock import monotonic
from app.runtime.contain import contain
from app.streaming.flow.outbox import Outbox
from app.streaming.kept.delta_reader import PollingDeltaReader
from app.streaming.session import Session

METHOD = "CREATE"  # in the log


class SocketResponse:
    """Implements `FrameSource` for one response. Loop only; `run` is called once."""

    def __init__(
        self, create: Create, context: ApiContext, outbox: Outbox, scope: Scope, remembered: NextResponse
    ) -> None:
        self._stream_id, self._has_output = create.stream_id, create.has_output  # the body can be large
        self._context = context
        self._outbox = outbox
        self._scope = scope
        self._remembered = remembered
        self._frames: deque[str] = deque()
        self._session: Session | PollingDeltaReader | None = None
        self._answered: AnsweredResponse  # set with the session
        self._has_begun = False
        self._is_over = False  # all frames are made
        self._is_sent = asyncio.Event()
        self._failure: ErrorInfo | None = None

    async def run(self, begin: Callable[[], Awaitable[BegunAnswer]]) -> None:
        """Let the request be checked, submit it, and wait until its last frame was sent. Cancel-safe: it is aborted."""
        began = monotonic()
        try:
            with contain(self._fail_with, FROM_OUTSIDE):
                begun = await begin()
                del begin  # it has the body, which nobody needs any longer
                self._open(begun)
                del begun
            self._outbox.mark_ready(self)
            await self._is_sent.wait()
        finally:
            session, self._session = self._session, None
            if session is not None:
                session.close()
            log_stream(
                self._scope,
                session,
                self._failure,
                method=METHOD,
                end_reason="client_disconnected",
                duration_s=monotonic() - began,
            )

    def note_disconnect(self) -> None:
        """Count a client that is disconnected because it reads nothing."""
        if self._session is not None:
            self._session.note_disconnect()

    def next_frame(self) -> str | None:
        with contain(self._fail_with, FROM_OUTSIDE):
            self._make_frames()
        if self._frames:
            return self._frames.popleft()
        if self._is_over:
            self._is_sent.set()
        return None

    @property
    def has_more(self) -> bool:
        if self._is_over:
            return not self._is_sent.is_set()
        return bool(self._frames) or (self._session is not None and self._session.has_more)

    def _open(self, begun: BegunAnswer) -> None:
        """Begin to read the response, which ends if this reader leaves, also if it is kept."""
        request = begun.request
        session: Session | PollingDeltaReader
        with request.released_on_error():
            self._answered = AnsweredResponse(request, asked_in(request), repeats_logprobs=False)
            if begun.stream is not None:
                session = PollingDeltaReader(begun.stream, on_ready=self._mark_ready)
            else:
                session = Session(
                    self._context.engine,
                    request.request,
                    streams=self._context.streams,
                    slow_reader=request.slow_reader,
                    on_ready=self._mark_ready,
                    release=request.release,
                )
        session.open()  # releases the request itself if that fails
        self._session = session

    def _mark_ready(self) -> None:
        self._outbox.mark_ready(self)

    def _make_frames(self) -> None:
        """Make the frames of the next event that has some."""
        while not self._frames and not self._is_over and self._session is not None:
            event = self._session.poll()
            if event is None:
                # It has no end here if it goes on in the next process.
                self._is_over = isinstance(self._session, PollingDeltaReader) and self._session.is_stopped
                return
            self._take(self._session, event)

    def _take(self, session: Session | PollingDeltaReader, event: EngineEvent) -> None:
        if isinstance(event, Progress):
            return
        if session.failure is not None:
            self._fail(session.failure)
            return
        if not self._has_begun:
            self._has_begun = True
            self._add(self._answered.begin())
        if isinstance(event, TokenDelta):
            self._add(self._answered.add(event))
        elif isinstance(event, Finished):
            self._add(self._answered.finish(event.reason if self._has_output else FinishReason.STOP))
        if session.is_finished:
            assert session.usage is not None
            response = self._answered.ended(session.usage, session.span())
            self._remembered.end(response.output)
            self._add(self._answered.end(session.usage, session.span()))
            self._is_over = True

    def _add(self, events: Iterable[ResponseEvent]) -> None:
        for event in events:
            if self._stream_id is not None:
                event.stream_id = self._stream_id
            self._frames.append(text_line(event).decode())

    def _fail_with(self, error: BaseException) -> None:
        self._fail(failure_of(error))

    def _fail(self, failure: ErrorInfo) -> None:
        """End the response with its last event or, if it has not begun, with an error."""
        if self._is_over:
            return
        self._failure = failure
        self._is_over = True
        if self._has_begun:
            self._add(self._answered.fail(failure))
        else:
            self._frames.append(error_frame(failure, self._stream_id))
