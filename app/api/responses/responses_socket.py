"""The WebSocket at `/v1/responses`: one response after another, which may go on from those before it.

    receiver ──frames──▶ ResponsesProtocol ──Create──▶ answerer: SocketResponse ──Session──▶ engine
    writer ◀── Outbox (control first, then the frames of the response) ◀── SocketResponse

The receiver waits for nothing else, so the socket is always read. A client that reads slowly fills the socket; then no
frames are made, and generation pauses as for an HTTP stream. The four tasks end together, and the response with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from functools import partial

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from app.api.body.parse_request import MAX_SMALL_BYTES, RequestContext
from app.api.http.access_log import access_record
from app.api.http.connection import connection_of, direct_send
from app.api.http.context import ApiContext
from app.api.http.error_response import FROM_OUTSIDE
from app.api.http.first_of import first_of
from app.api.responses.kept.kept_items import Conversations
from app.api.responses.parse_response import parse_response
from app.api.responses.response_memory import NextResponse, ResponseMemory
from app.api.responses.responses import asked_in, begin_response, new_response
from app.api.responses.responses_protocol import Action, Create, ResponsesProtocol, error_frame
from app.api.responses.socket_response import SocketResponse
from app.api.wire.api_request import ApiRequest
from app.contract.errors import EngineFailed, UnsupportedParameter
from app.runtime.clock import monotonic
from app.runtime.contain import contain
from app.runtime.stall_detector import observation_interval
from app.streaming.chat_actions import ChatLimits, Close, Send
from app.streaming.chat_table import CLOSE_RATE, CLOSE_RESTART
from app.streaming.flow.ack_monitor import AckMonitor
from app.streaming.flow.outbox import Outbox

CLOSE_INTERNAL = 1011
CLOSE_TIMEOUT_S = 5.0
MAX_UNREAD_REPLIES = 1024  # errors that may be pending for a client that does not read
OBSERVATION_S = 15.0
LARGE_FRAME = 8 * 1024  # bytes; the last event, and many log-probabilities


class ResponsesSocket:
    """One accepted socket; `run` is called once."""

    def __init__(self, websocket: WebSocket, context: ApiContext, limits: ChatLimits | None = None) -> None:
        stall_timeout_s = context.config.server.stall_timeout
        self._websocket = websocket
        self._context = context
        self._sender = context.keys.sender_of(websocket)
        self._protocol = ResponsesProtocol(limits or ChatLimits())
        self._memory = ResponseMemory(context.remembered)
        self._interval_s = observation_interval(stall_timeout_s, OBSERVATION_S)
        self._connection = connection_of(websocket.scope)
        self._ack_monitor = AckMonitor(self._connection, stall_timeout_s, self._interval_s)
        self._outbox = Outbox()
        self._creates: asyncio.Queue[Create] = asyncio.Queue()  # at most one, which may begin
        self._response: SocketResponse | None = None
        self._is_draining = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def run(self) -> None:
        """Serve the socket until one side closes it; then its response has ended."""
        try:
            with self._context.drain.listening(lambda _: self._is_draining.set()), self._ack_monitor.watching():
                close = await first_of(
                    self._receive(), self._answer(), self._write(), self._watch(), self._wait_for_drain()
                )
                if close is not None:
                    await self._close(close)
        finally:
            self._memory.clear()

    async def _receive(self) -> Close | None:
        """Read frames; return how to close the connection, None if the client has disconnected."""
        while (message := await self._websocket.receive())["type"] == "websocket.receive":
            # No variable here has the frame until the next one comes.
            if close := self._act(self._take(message.pop("text", None))):
                return close
            if self._outbox.num_control > MAX_UNREAD_REPLIES:
                return Close(CLOSE_RATE, "replies are not being read")
        return None

    def _take(self, text: str | None) -> list[Action]:
        """Return the actions for a frame; a binary one has no text. An internal error is told before the close."""
        if text is not None and len(text) > MAX_SMALL_BYTES:
            self._context.heap.note_large()  # it may be rejected, and then nothing else notes it
        with contain(_log, FROM_OUTSIDE):
            return self._protocol.receive_binary() if text is None else self._protocol.receive(text)
        failed = EngineFailed("Internal error on this connection; see the server log.")
        return [Send(error_frame(failed.info())), Close(CLOSE_INTERNAL, "internal error")]

    def _act(self, actions: list[Action]) -> Close | None:
        """Execute the protocol's actions up to a close, which is returned."""
        for action in actions:
            if isinstance(action, Close):
                return action
            if isinstance(action, Send):
                self._outbox.put_control(action.frame)
            else:
                self._is_idle.clear()
                self._creates.put_nowait(action)
        return None

    async def _answer(self) -> None:
        """Answer one response after another."""
        while True:
            await self._response_to(await self._creates.get())  # no variable here has the body until it ends
            self._response = None
            self._act(self._protocol.end_response())
            if not self._protocol.is_busy:
                self._is_idle.set()

    def _response_to(self, create: Create) -> Awaitable[None]:
        """Begin a response; the result ends with it."""
        scope = self._websocket.scope
        remembered = self._memory.next(Conversations(self._context.kept, self._sender.tenant))
        parser = partial(_parse, remembered=remembered, has_output=create.has_output)
        new = new_response(self._context, parser, self._sender, scope["path"], always_streams=True)
        begin = partial(begin_response, new, create.body)
        self._response = SocketResponse(create, self._context, self._outbox, scope, remembered)
        return self._response.run(begin)

    async def _write(self) -> None:
        send = direct_send(self._websocket.scope, self._websocket.send)
        with contextlib.suppress(OSError, WebSocketDisconnect):  # the client disconnected
            while (frame := await self._outbox.get()) is not None:
                await send({"type": "websocket.send", "text": frame})
                num_bytes = len(frame) if frame.isascii() else len(frame.encode())
                self._ack_monitor.note_sent(num_bytes)
                if num_bytes >= LARGE_FRAME:
                    await asyncio.sleep(0)  # between two large frames, other tasks run

    async def _watch(self) -> None:
        """Wait until the client has read none of the pending data for the stall timeout, and reset the connection."""
        while True:
            await asyncio.sleep(self._interval_s)
            if self._ack_monitor.has_stalled(monotonic()):
                if self._response is not None:
                    self._response.note_disconnect()
                access_record(self._websocket.scope).reason = "client_stalled"
                self._connection.abort()  # a close frame would not arrive
                return

    async def _wait_for_drain(self) -> Close:
        """Wait until the server shuts down, and no response is answered any more."""
        await self._is_draining.wait()
        await self._is_idle.wait()
        return Close(CLOSE_RESTART, "the server has stopped")

    async def _close(self, close: Close) -> None:
        """Send the errors that are pending, and the close; abort the connection if the client does not read them."""
        self._outbox.finish()
        with contextlib.suppress(OSError, WebSocketDisconnect, WebSocketDisconnected):
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._write()
                    await self._websocket.close(close.code, close.reason)
            except TimeoutError:
                self._connection.abort()


def _parse(request: RequestContext, *, remembered: NextResponse, has_output: bool) -> ApiRequest:
    """Check a body and tokenize its prompt (see `Parser`). What has no output is remembered alone, and not kept."""
    parsed = parse_response(request, remembered, is_prompt_only=not has_output, can_store=has_output)
    if asked_in(parsed).background:
        raise UnsupportedParameter(
            "background is true, but a response of a WebSocket ends with its connection; leave it out, or send the "
            "request over HTTP.",
            param="background",
        )
    return parsed


def _log(error: BaseException) -> None:
    logging.getLogger(__name__).error("internal error on a connection", exc_info=error)
