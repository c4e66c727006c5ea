"""Sends one session to an HTTP client as a stream; `json_response` sends a session as one JSON body.

The engine's request lives exactly as long as the `async with Session` below: a client that goes away, an error and a
cancelled response all leave that block, and leaving it early aborts the request. No generator is involved. A reader of
a resumable stream (`resumable_answer`) takes the session's place, and leaving it detaches the reader alone.

A stream begins with the first event of the engine, so that a request that fails earlier gets an HTTP status; if no
event comes for long, the stream begins with a heartbeat instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.http.access_log import access_record, figures_of
from app.api.http.connection import ClientStalled, connection_of, direct_send, run_until_disconnect
from app.api.http.context import ApiContext
from app.api.http.error_response import error_response
from app.api.wire.api_request import ApiRequest
from app.api.wire.framing import Framing
from app.api.wire.json_line import next_piece
from app.api.wire.json_response import JsonResponse
from app.api.wire.numbered_wire import NumberedWire
from app.api.wire.response_head import start_message
from app.api.wire.resumable_answer import Resumable, recovered_header
from app.api.wire.wire import Ending, StreamWire, Wire
from app.contract.errors import ErrorInfo
from app.contract.events import EngineEvent, Finished, FinishReason, Progress, PromptScored, TokenDelta
from app.runtime.clock import monotonic
from app.runtime.stall_detector import observation_interval
from app.streaming.flow.ack_monitor import AckMonitor
from app.streaming.kept.live_stream import LiveStream
from app.streaming.kept.waiting_reader import WaitingReader
from app.streaming.session import Session
from app.streaming.session_group import SessionGroup

WRITE_BYTES = 16 * 1024  # of a long chunk or end, which is made in pieces


def make_response(
    context: ApiContext, request: ApiRequest, wire: Wire, headers: Mapping[str, str] = MappingProxyType({})
) -> ASGIApp:
    """Return the ASGI app that sends the response with `wire`: a stream, or one JSON body.

    `headers` are sent beside those of all responses. When called, the app raises what `EngineClient.submit` raises,
    before anything is sent.
    """
    engine, streams, slow_reader, release = context.engine, context.streams, request.slow_reader, request.release
    session: Session | SessionGroup
    if request.others:
        session = SessionGroup(engine, request.requests, streams=streams, slow_reader=slow_reader, release=release)
    else:
        session = Session(engine, request.request, streams=streams, slow_reader=slow_reader, release=release)
    return (StreamResponse if request.stream else JsonResponse)(context, request, session, wire, headers)


def resumed(
    context: ApiContext,
    stream: LiveStream,
    framing: Framing,
    after: Sequence[int] | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> ASGIApp:
    """Return the app that sends what a stream tells behind the positions `after`, or its whole answer as one body.

    `headers` are sent beside those of all resumable streams. When called, the app raises what `LiveStream.attach`
    raises, before anything is sent.

    Raises:
        Overloaded: the answer is one body, and too much is pending for clients that do not read.
    """
    request, make_wire = Resumable.of(stream)
    reader, wire, headers = (
        WaitingReader(stream, after),
        make_wire(request, framing),
        {**stream_headers(stream), **headers},
    )
    if not request.stream and after is None:
        context.streams.check_pending(stream.account)  # unlike a stream, each body is a copy
        return JsonResponse(context, request, reader, wire, headers)
    return StreamResponse(context, request, reader, NumberedWire(wire, framing, reader.after), headers)


def stream_headers(stream: LiveStream) -> dict[str, str]:
    """Return the headers of a response of a resumable stream, which the end of the process ends."""
    headers = {"x-quire-stream-id": stream.id, "x-quire-durable": str(int(stream.is_durable))}
    return headers | recovered_header(stream)


class StreamResponse:
    """Sends what a wire makes of the session's events, and heartbeats while there are none.

    `headers` are those of this answer beside those of all streams. With `begins_at_once` the stream does not wait for
    the first event of the engine, and a failure before it is the end of the stream instead of a status.
    """

    def __init__(
        self,
        context: ApiContext,
        request: ApiRequest,
        session: Session | SessionGroup | WaitingReader,
        wire: StreamWire,
        headers: Mapping[str, str] = MappingProxyType({}),
        *,
        begins_at_once: bool = False,
    ) -> None:
        self._session = session
        self._wire = wire
        self._piece_lock = context.piece_lock
        self._timers = context.timers
        self._stall_timeout_s = context.config.server.stall_timeout
        self._start = start_message(
            request.ignored,
            {
                "content-type": wire.media_type,
                "cache-control": "no-store",
                "x-accel-buffering": "no",  # nginx would buffer small events
                **headers,
            },
        )
        self._has_begun = False
        self._begins_at_once = begins_at_once
        self._is_generating = False
        self._is_writing = False
        self._last_write = 0.0
        self._ack_monitor: AckMonitor  # set by `__call__`

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream.

        Raises:
            ClientDisconnect: the client disconnected; the session is closed.
            ClientStalled: the client read nothing for the stall timeout; its connection is reset, the session closed.
        """
        connection = connection_of(scope)
        interval_s = observation_interval(self._stall_timeout_s, self._timers.waiting_s, self._timers.generating_s)
        self._ack_monitor = AckMonitor(connection, self._stall_timeout_s, interval_s)
        self._last_write = monotonic()
        try:
            async with self._session:
                with self._ack_monitor.watching():
                    await run_until_disconnect(receive, self._pump(scope, receive, send), self._watch(interval_s))
        except ClientStalled:
            self._session.note_disconnect()
            connection.abort()
            await receive()  # returns when the server has noticed that the connection has ended
            raise
        finally:
            access_record(scope).figures = figures_of(self._session)

    async def _pump(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events of the session, and a heartbeat whenever the session was woken without an event."""
        session, direct = self._session, direct_send(scope, send)
        if self._begins_at_once:
            self._is_generating = True
            await self._write(send, b"".join(self._wire.first()))
        while True:
            events = await session.receive()
            body = b""
            for event in events:
                if isinstance(event, PromptScored):
                    self._is_generating = True
                    body = await self._write_pieces(direct, send, body, self._wire.first(event))
                else:
                    body += self._encode(event)
            if session.is_finished:
                break
            if body or not events:
                await self._write(direct if self._has_begun else send, body or self._wire.heartbeat)
        failure = session.failure
        access_record(scope).reason = failure.code if failure else session.end_reason
        if failure is not None and not self._has_begun:
            await error_response(failure, scope)(scope, receive, send)
            return
        ending = self._end(failure)
        if not isinstance(ending, bytes):
            body, ending = await self._write_pieces(direct, send, body, ending), b""
        await self._write(send, body + ending, more_body=False)

    async def _watch(self, interval_s: float) -> None:
        """Wake the session when a heartbeat is due, and check that the client reads.

        Raises:
            ClientStalled: the client has read none of the pending data for the stall timeout.
        """
        timers = self._timers
        while True:
            interval = timers.generating_s if self._is_generating else timers.waiting_s
            rest = self._last_write + interval - monotonic()
            await asyncio.sleep(min(rest, interval_s) if rest > 0 else interval_s)
            now = monotonic()
            if self._ack_monitor.has_stalled(now):
                raise ClientStalled
            # While a write waits, data is pending for the client: no heartbeat is needed.
            if not self._is_writing and self._last_write + interval <= now:
                self._session.wake()

    async def _write_pieces(self, direct: Send, send: Send, body: bytes, pieces: Iterator[bytes]) -> bytes:
        """Send pieces after `body`, which can be megabytes, as the client reads them; return what is not sent yet."""
        while (piece := await next_piece(pieces, self._piece_lock)) is not None:
            body += piece
            if len(body) >= WRITE_BYTES:
                await self._write(direct if self._has_begun else send, body)
                body = b""
        return body

    async def _write(self, send: Send, body: bytes, *, more_body: bool = True) -> None:
        self._is_writing = True
        if not self._has_begun:
            self._has_begun = True
            await send(self._start)
        await send({"type": "http.response.body", "body": body, "more_body": more_body})
        self._ack_monitor.note_sent(len(body))
        self._is_writing = False
        self._last_write = monotonic()

    def _encode(self, event: EngineEvent) -> bytes:
        if isinstance(event, Progress):
            return b""
        first = b""
        if not self._is_generating:
            self._is_generating = True
            first = b"".join(self._wire.first())
        if isinstance(event, TokenDelta):
            return first + self._wire.delta(event)
        if isinstance(event, Finished) and event.reason is not FinishReason.CANCELLED:
            return first + self._wire.finish(event)
        return first

    def _end(self, failure: ErrorInfo | None) -> Ending:
        if failure is not None:
            return self._wire.error(failure)
        assert self._session.usage is not None
        return self._wire.last(self._session.usage, self._session.span())
