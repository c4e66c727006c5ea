"""One stream of a WebSocket: from `start` or `resume` to its `done`, `error` or `detach`, and its line in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from starlette.types import Scope

from app.api.http.access_log import log_stream
from app.api.http.context import ApiContext
from app.api.http.error_response import FROM_OUTSIDE
from app.api.http.stream_failure import failure_of
from app.api.wire.api_request import ApiRequest
from app.api.wire.parsed_answer import ParsedAnswer, tool_pieces
from app.api.wire.positions import Positions, check_positions
from app.api.wire.resumable_answer import Resumable, find_answer
from app.contract.errors import ErrorInfo
from app.contract.events import Embedded, Finished, FinishReason, PromptScored, RequestFailed, TokenDelta
from app.runtime.clock import monotonic
from app.runtime.contain import contain
from app.runtime.stall_detector import StallDetector
from app.streaming.chat_frames import Accepted, Entries
from app.streaming.chat_protocol import ChatProtocol
from app.streaming.flow.flow_window import Credit
from app.streaming.flow.outbox import Outbox
from app.streaming.kept.live_stream import LiveStream
from app.streaming.kept.polling_reader import PollingReader
from app.streaming.openai_shapes import TokenBytes, logprobs_entries
from app.streaming.session import Session
from app.text.answer.parsed import Parsed

START, RESUME = "START", "RESUME"  # how a stream was opened, in the log


class Begun(Protocol):
    """A checked request, and its stream if the answer is kept: `body.new_answer.BegunAnswer`."""

    @property
    def request(self) -> ApiRequest:
        """The request."""

    @property
    def stream(self) -> LiveStream | None:
        """The stream, which was started."""

    @property
    def is_replayed(self) -> bool:
        """Whether the stream is that of an earlier request."""


@dataclass(slots=True, eq=False)
class SocketStream:
    """One stream, a source of frames for the outbox. Loop only.

    `on_end` is called once, when the stream's last frame is in the outbox, or when it was detached or closed. With
    `outlives_detach` a stream that is detached while it starts is started nevertheless.
    """

    client_id: str
    context: ApiContext
    protocol: ChatProtocol
    outbox: Outbox
    scope: Scope
    credit: Credit
    stall_detector: StallDetector
    on_end: Callable[[str], None]
    outlives_detach: bool = False
    _began: float = field(default_factory=monotonic)
    _method: str = START
    _session: Session | PollingReader | None = None
    _is_accepted: bool = False
    _token_bytes: TokenBytes = field(init=False)  # set with the session
    _answer: ParsedAnswer | None = None
    _positions: Positions = field(init=False)  # of the client; set with the session
    _waiting: Finished | None = None  # the end of a choice, behind a delta with what its parsers held back
    _is_cancelled: bool = False
    _has_ended: bool = False

    async def start(self, begin: Callable[[], Awaitable[Begun]]) -> None:
        """Let the request be checked and submitted; an error ends the stream. Cancel-safe.

        A stream that was detached meanwhile is only begun.
        """
        with contain(self._fail_with, FROM_OUTSIDE):
            begun = await begin()
            if begun.stream is None:
                self._read_alone(begun.request)
            elif self._is_cancelled and self._has_ended:
                begun.stream.cancel()
            elif not self._has_ended:
                await self._read_kept(begun.stream, [0] * len(begun.stream.transcripts))

    async def resume(self, stream_id: str, after: Sequence[int], tenant: str | None) -> None:
        """Read a kept stream behind the positions `after`; an error ends this view of it alone. Cancel-safe."""
        self._method = RESUME
        with contain(self._fail_with, FROM_OUTSIDE):
            if self.context.journal is not None:
                await self.context.journal.restored()
            stream = find_answer(self.context, stream_id, tenant)
            if self.must_end_kept and self._has_ended:
                stream.cancel()
                return
            await self._read_kept(stream, check_positions(after, stream))

    def _read_alone(self, request: ApiRequest) -> None:
        """Submit a request whose answer ends with this stream."""
        if self._has_ended:
            request.release()
            return
        session = Session(
            self.context.engine,
            request.request,
            streams=self.context.streams,
            slow_reader=request.slow_reader,
            credit=self.credit,
            on_ready=self._mark_ready,
            on_pause=self._tell_pause,
            on_resume=self._tell_resume,
            release=request.release,
        )
        session.open()
        self._session = session
        self._positions = Positions([0] * request.num_choices)
        self._accept(request, request.new_parsers(), Accepted(request.id, request.model, self._positions.after))

    async def _read_kept(self, stream: LiveStream, after: list[int]) -> None:
        """Attach to a stream; what the client has of it, the parsers read again, in pieces of a millisecond each."""
        request = Resumable.of(stream).request
        self._positions = Positions(after)
        reader = self._session = PollingReader(
            stream,
            after,
            credit=self.credit,
            on_ready=self._mark_ready,
            on_pause=self._tell_pause,
            on_resume=self._tell_resume,
        )
        reader.open()
        answer = request.new_parsers()
        if answer is not None:
            for delta in reader.retold():
                self._positions.take(delta)
                answer.feed(delta)
                await asyncio.sleep(0)
        if not self._has_ended:
            told = zip(after, stream.transcripts, strict=True)
            numbers = [min(position, transcript.num_tokens) for position, transcript in told]
            kept = (stream.ttl_s, stream.is_durable, stream.is_recovered)
            self._accept(request, answer, Accepted(request.id, request.model, after, numbers, *kept))
            if reader.is_paused:
                self._tell_pause()

    def _accept(self, request: ApiRequest, answer: ParsedAnswer | None, accepted: Accepted) -> None:
        self._answer, self._token_bytes = answer, request.token_bytes
        self._is_accepted = True
        self.outbox.put_control(self.protocol.accept(self.client_id, accepted))
        self.outbox.mark_ready(self)
        if self._is_cancelled:
            self.cancel()

    def _mark_ready(self) -> None:
        self.outbox.mark_ready(self)

    def _tell_pause(self) -> None:
        self.outbox.put_control(self.protocol.pause(self.client_id))

    def _tell_resume(self) -> None:
        self.outbox.put_control(self.protocol.resume(self.client_id))

    def next_frame(self) -> str | None:
        """Return the stream's next frame, if there is one; put the last one into the outbox. The outbox only."""
        if self._session is None or not self._is_accepted or self._has_ended:
            return None
        with contain(self._fail_with, FROM_OUTSIDE):
            return self._next_frame(self._session)
        return None

    @property
    def has_more(self) -> bool:
        """Whether the stream needs another turn although there is no new event."""
        if self._session is None or self._has_ended:
            return False
        return self._waiting is not None or self._session.has_more

    def grant_credit(self, upto: tuple[int, ...]) -> None:
        """Allow choice i to be sent up to its token `upto[i]`."""
        self.credit.grant(upto)
        self.outbox.mark_ready(self)

    @property
    def must_end_kept(self) -> bool:
        """Whether the client has cancelled an answer that goes on without it, which may not be known yet."""
        return self._is_cancelled and (self.outlives_detach or self._method == RESUME)

    @property
    def is_paused(self) -> bool:
        """Whether generation waits for the client."""
        return self._session is not None and self._session.is_paused

    def cancel(self) -> None:
        """Cancel the request, now or as soon as it is submitted. Idempotent."""
        self._is_cancelled = True
        if self._session is not None:
            self._session.cancel()

    def has_stalled(self, now: float) -> bool:
        """Return whether data has waited for credit for the stall timeout; call it at regular intervals."""
        stamp = None
        if self._session is not None and self._session.lacks_credit:
            stamp = (self.credit.num_raises, self._session.num_tokens)
        return self.stall_detector.observe(stamp, now)

    def note_disconnect(self) -> None:
        """Count this stream as one whose client is disconnected because it reads nothing."""
        if self._session is not None:
            self._session.note_disconnect()

    def close(self, end_reason: str) -> None:
        """End the stream because it is detached or its socket ends, `end_reason` in the log. Idempotent.

        A kept stream goes on without this reader; a request that nothing keeps is aborted.
        """
        if not self._has_ended:
            self._end(None, end_reason)

    def _next_frame(self, session: Session | PollingReader) -> str | None:
        answer, event = self._answer, self._waiting or session.poll()
        if event is None:
            return None
        if isinstance(event, TokenDelta):
            self._positions.take(event)
            entries = None if event.logprobs is None else logprobs_entries(event.logprobs, self._token_bytes)
            if answer is None:
                return self.protocol.send(self.client_id, event, entries)
            return self._send_parsed(event, answer.feed(event), entries)
        if answer is not None and isinstance(event, Finished):
            is_over = event is self._waiting or event.reason is FinishReason.CANCELLED
            rest = Parsed() if is_over else answer.finish(event.choice)
            if (rest.text or rest.reasoning or rest.calls) and self._positions.take_rest(event.choice):
                self._waiting = event
                number = self._positions.of(event.choice)
                return self._send_parsed(TokenDelta(event.request_id, event.choice, number, (), ""), rest)
            self._waiting = None
            event = replace(event, end=answer.end_of(event.choice, event.end))
        if session.failure is not None or isinstance(event, RequestFailed):
            assert session.failure is not None
            self._fail(session.failure)
            return None
        assert not isinstance(event, (Embedded, PromptScored)), "quire.v1 has chats alone, and scores no prompts"
        frame = self.protocol.send(self.client_id, event)
        if session.is_finished:
            timings = session.timings()
            assert session.usage is not None and timings is not None
            num_reasoning = None if answer is None else answer.reasoning_tokens
            # `done` is sent next: after this frame, and before frames of other streams.
            self.outbox.put_control(self.protocol.finish(self.client_id, session.usage, timings, num_reasoning))
            self._end(None, session.end_reason)
        return frame

    def _send_parsed(self, delta: TokenDelta, parsed: Parsed, entries: Entries | None = None) -> str:
        return self.protocol.send(
            self.client_id,
            delta._replace(text=parsed.text),
            entries,
            reasoning=parsed.reasoning,
            tool=tool_pieces(parsed.calls, delta.request_id, delta.choice),
        )

    def _fail_with(self, error: BaseException) -> None:
        self._fail(failure_of(error))

    def _fail(self, failure: ErrorInfo) -> None:
        if not self._has_ended:
            self.outbox.put_control(self.protocol.fail(self.client_id, failure))
            self._end(failure, failure.code)

    def _end(self, failure: ErrorInfo | None, end_reason: str) -> None:
        self._has_ended = True
        if self._session is not None:
            self._session.close()
        log_stream(
            self.scope,
            self._session,
            failure,
            method=self._method,
            end_reason=end_reason,
            duration_s=monotonic() - self._began,
        )
        # The session refers to this stream: without this both would stay until cycles are collected.
        self._session = self._answer = None
        self.on_end(self.client_id)
