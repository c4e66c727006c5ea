"""One stream of a WebSocket: from `start` to `done` or `error`, and its line in the access log."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from starlette.types import Scope

from app.api.http.access_log import log_stream
from app.api.http.accounts import Sender
from app.api.http.context import ApiContext
from app.api.http.error_response import FROM_OUTSIDE
from app.api.wire.api_request import ApiRequest
from app.api.wire.parsed_answer import ParsedAnswer, tool_pieces
from app.contract.errors import EngineFailed, ErrorInfo, QuireError
from app.contract.events import Embedded, Finished, FinishReason, PromptScored, RequestFailed, TokenDelta
from app.runtime.clock import monotonic
from app.runtime.contain import contain
from app.runtime.stall_detector import StallDetector
from app.streaming.chat_frames import Entries
from app.streaming.chat_protocol import ChatProtocol
from app.streaming.flow.flow_window import Credit
from app.streaming.flow.outbox import Outbox
from app.streaming.openai_shapes import TokenBytes, logprobs_entries
from app.streaming.session import Session
from app.text.answer.parsed import Parsed


@dataclass(slots=True, eq=False)
class SocketStream:
    """One stream, a source of frames for the outbox. Loop only.

    `parse` reads a body. `on_end` is called once, when the stream's last frame is in the outbox or it was closed.
    """

    client_id: str
    context: ApiContext
    protocol: ChatProtocol
    outbox: Outbox
    scope: Scope
    credit: Credit
    stall_detector: StallDetector
    parse: Callable[[bytes, Sender], Awaitable[ApiRequest]]
    on_end: Callable[[str], None]
    _began: float = field(default_factory=monotonic)
    _session: Session | None = None
    _token_bytes: TokenBytes = field(init=False)  # set with the session
    _answer: ParsedAnswer | None = None
    _waiting: Finished | None = None  # the end of a choice, behind a delta with what its parsers held back
    _is_cancelled: bool = False
    _has_ended: bool = False

    async def start(self, body: bytes, sender: Sender) -> None:
        """Check the request and submit it; an error ends the stream. Cancel-safe."""
        client_id, context, outbox, protocol = self.client_id, self.context, self.outbox, self.protocol
        with contain(self._fail_with, FROM_OUTSIDE):
            parsed = await self.parse(body, sender)
            if self._has_ended:
                parsed.release()
                return
            request = parsed.request
            session = Session(
                context.engine,
                request,
                streams=context.streams,
                slow_reader=parsed.slow_reader,
                credit=self.credit,
                on_ready=lambda: outbox.mark_ready(self),
                on_pause=lambda: outbox.put_control(protocol.pause(client_id)),
                on_resume=lambda: outbox.put_control(protocol.resume(client_id)),
                release=parsed.release,
            )
            session.open()
            self._session = session
            self._token_bytes = parsed.token_bytes
            self._answer = parsed.new_parsers()
            outbox.put_control(protocol.accept(client_id, request.id, parsed.model, request.params.n))
            if self._is_cancelled:
                session.cancel()

    def next_frame(self) -> str | None:
        """Return the stream's next frame, if there is one; put the last one into the outbox. The outbox only."""
        if self._session is None or self._has_ended:
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
        """End the stream because its socket ends, for the reason `end_reason` in the log. Idempotent."""
        if not self._has_ended:
            self._end(None, end_reason)

    def _next_frame(self, session: Session) -> str | None:
        answer, event = self._answer, self._waiting or session.poll()
        if event is None:
            return None
        if isinstance(event, TokenDelta):
            entries = None if event.logprobs is None else logprobs_entries(event.logprobs, self._token_bytes)
            if answer is None:
                return self.protocol.send(self.client_id, event, entries)
            return self._send_parsed(event, answer.feed(event), entries)
        if answer is not None and isinstance(event, Finished):
            is_over = event is self._waiting or event.reason is FinishReason.CANCELLED
            rest = None if is_over else answer.finish(event.choice)
            if rest is not None and (rest.text or rest.reasoning or rest.calls):
                self._waiting = event
                number = self.protocol.last_number(self.client_id, event.choice) + 1
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
        if not isinstance(error, QuireError):
            logging.getLogger(__name__).error("internal error on a stream", exc_info=error)
            error = EngineFailed("Internal error on this stream; see the server log.")
        self._fail(error.info())

    def _fail(self, failure: ErrorInfo) -> None:
        if not self._has_ended:
            self.outbox.put_control(self.protocol.fail(self.client_id, failure))
            self._end(failure, failure.code)

    def _end(self, failure: ErrorInfo | None, end_reason: str) -> None:
        self._has_ended = True
        if self._session is not None:
            self._session.close()
        log_stream(self.scope, self._session, failure, end_reason=end_reason, duration_s=monotonic() - self._began)
        # The session refers to this stream: without this both would stay until cycles are collected.
        self._session = self._answer = None
        self.on_end(self.client_id)
