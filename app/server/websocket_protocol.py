"""WebSocket connections: uvicorn's protocol with limits of fragments and pings, and a close that the client can read.

The bytes of one read (up to 256 KiB, thousands of frames) are parsed in slices, when it is the connection's turn: a
flood ends the connection after the slice that exceeds a limit. Parsing pauses while the application has messages to
process, and nothing more is read before all is parsed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from app.api.http.access_log import access_record
from app.api.http.accounts import account_of_address
from app.api.http.byte_shares import ByteShares, Receiving
from app.api.http.connection import EXTENSION, SEND
from app.api.http.error_shape import error_body
from app.contract.errors import EngineFailed, ErrorInfo, HttpInvalid, MethodNotAllowed, PermissionDenied, QuireError
from app.runtime.clock import monotonic
from app.runtime.token_bucket import TokenBucket
from app.server.guard import Guard
from app.server.read_turns import ReadTurns
from app.server.sockets import SocketConnection

_SLICE_BYTES = 1024  # up to 170 frames, which take half a millisecond
_FINAL_TEXT = 0x81
_CLOSE_UTF8 = 1007
_CLOSE_POLICY = 1008
_CLOSE_RATE = 4429


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket, from the request of its handshake on. Made by `HttpProtocol`. Event loop only."""

    def __init__(self, *, guard: Guard, turns: ReadTurns, received: ByteShares, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        _untie(self.conn)  # uvicorn's own, which is not needed
        self.conn = _JsonServerProtocol(max_size=self.config.ws_max_size, logger=logging.getLogger("uvicorn.error"))
        self.app = self._run_app
        self._app: ASGIApp = self.config.loaded_app
        self._guard = guard
        self._limits = guard.limits
        self._turns = turns
        self._received = received
        self.close_timeout = guard.limits.close_timeout_s
        self._pings = TokenBucket(guard.limits.max_pings_per_s, guard.limits.ping_burst, monotonic)
        self._unparsed = memoryview(b"")
        self._is_parsing = False  # now, or it waits for its turn
        self._message_bytes = 0  # of fragments, and of messages that wait for the application
        self._timer: asyncio.TimerHandle | None = None  # while a message is not complete
        self._is_over = False  # further received bytes are dropped

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a connection, which is counted already."""
        super().connection_made(transport)
        self._connection = SocketConnection(self.transport)
        self._account = account_of_address(self.client[0]) if self.client else ""
        self._receiving = Receiving(self._received, self._account)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything that belongs to the connection."""
        self._connection.lost()
        self._guard.leave(self.client[0] if self.client else None)
        self._is_over = True
        self._unparsed = memoryview(b"")
        self._drop_message()
        super().connection_lost(exc)
        _untie(self.conn)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, when it is this connection's turn and as far as the application keeps up."""
        if self._is_over:
            return
        if not self.handshake_initiated:
            self._read_handshake(data)
        elif not self.handshake_complete:
            self._is_over = True  # a client must not send anything before the response to its handshake
            self.transport.abort()
        else:
            self._unparsed = memoryview(bytes(self._unparsed) + data)
            self._parse()

    async def receive(self) -> Any:
        """Return the next message for the application, and parse bytes that were received before it was ready."""
        message = await super().receive()
        self._message_bytes = 0
        self._receiving.has(0)
        self._parse()
        return message

    async def send(self, message: Any) -> None:
        """Send a message of the application; text on an open connection (tokens) is written directly.

        Raises:
            ClientDisconnected: the client has disconnected.
        """
        text = message.get("text")
        if text is None or not self.handshake_complete or self.initial_response is not None:
            await super().send(message)
            self._parse()  # a close lets reading go on, and the client's answer may be among what is left
            return
        if not self.writable.is_set():
            await self.writable.wait()
        if self.disconnected or self.close_sent or self.transport.is_closing():
            raise ClientDisconnected
        self.transport.write(text_frame(text.encode()))

    def shutdown(self) -> None:
        """Close because the server is shutting down; abort a connection that is closing already."""
        if self.handshake_complete and not self.close_sent and self.conn.state is not State.OPEN:
            self.stop_keepalive()
            self.transport.abort()
        else:
            super().shutdown()

    def keepalive_timeout(self) -> None:
        """Close the connection of a client that answers no pings; abort it soon, if it does not read the close."""
        super().keepalive_timeout()
        self._abort_soon()

    def handle_close(self, event: Frame) -> None:
        """Answer the client's close; abort the connection soon, if the client does not read the answer."""
        super().handle_close(event)
        self._abort_soon()

    def _abort_soon(self) -> None:
        if self.close_timer is not None:
            self.close_timer.cancel()
        self.close_timer = self.loop.call_later(self._limits.linger_s, self.transport.abort)

    def _parse(self) -> None:
        """Parse what was received, in this turn or the next ones, while the application has no message to process.

        Nothing more is read before that is parsed.
        """
        if self._unparsed and not self._is_parsing and not self.read_paused:
            self._is_parsing = True
            self._turns.take(self._account, self._parse_slice)
        if self._unparsed and not self.transport.is_closing():
            self.transport.pause_reading()

    def _parse_slice(self) -> bool:
        """Parse the next slice; return whether another one may follow."""
        piece, self._unparsed = bytes(self._unparsed[:_SLICE_BYTES]), self._unparsed[_SLICE_BYTES:]
        if not self._is_over:
            self._parse_piece(piece)
        if self._is_over:
            self._unparsed = memoryview(b"")
        self._is_parsing = bool(self._unparsed) and not self.read_paused
        if not self._unparsed and not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()
        return self._is_parsing

    def _parse_piece(self, piece: bytes) -> None:
        try:
            super().data_received(piece)
        except Exception:  # this may be in another connection's call
            self._is_over = True
            self.logger.exception("A WebSocket is closed because its frames could not be processed.")
            self.transport.abort()
            return
        if self._is_over:
            self._drop_message()
            return
        num_bytes = len(self.conn.reader.buffer)
        if not self._receiving.has(num_bytes + self._message_bytes):
            self._fail(_CLOSE_RATE, "too many large messages at once that are not complete")
        elif not self.frames and not num_bytes:
            self._end_message()  # also where the end of a ping was missing: the time is not that of what comes next
        elif self._timer is None:
            self._timer = self.loop.call_later(self._limits.body_timeout_s, self._check_message)

    def _check_message(self) -> None:
        """Close if a message is not complete in time, unless what is missing is here and waits."""
        self._timer = None
        if self._unparsed or self.read_paused:
            self._timer = self.loop.call_later(self._limits.body_timeout_s, self._check_message)
        elif not self._is_over and (self.frames or self.conn.reader.buffer):
            self._fail(_CLOSE_POLICY, "a message was not received in time")

    def _end_message(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop_message(self) -> None:
        """Drop the parts of a message, perhaps megabytes: this object is in cycles, and may wait for a collection."""
        self._end_message()
        self.frames = []
        self._message_bytes = 0
        self.conn.reader.buffer.clear()
        self._receiving.has(0)

    # --- The handshake ---------------------------------------------------------------------------------------

    def _read_handshake(self, data: bytes) -> None:
        super().data_received(data)
        if not self.handshake_initiated:
            # The library closes without a response if it cannot parse the handshake, for example if it is not a GET.
            error = HttpInvalid("The WebSocket handshake is invalid; it must be a GET request with lines up to 8 KiB.")
            self._is_over = True
            self.transport.write(self._guard.rejection(error, self.default_headers, client=self.client))
            self.transport.close()

    def handle_connect(self, event: Request) -> None:
        """Check the handshake; pass a valid one to the application, and log an invalid one."""
        super().handle_connect(event)
        if self.response.status_code == 101:
            extensions: Any = self.scope["extensions"]
            extensions[EXTENSION] = self._connection
            extensions[SEND] = self.send
            return
        self._is_over = True
        self._guard.log.write(
            client=self.client and self.client[0], method="WEBSOCKET", path=event.path.partition("?")[0][:200],
            status=self.response.status_code, reason=_kind_of(self.response.status_code).code,
        )  # fmt: skip

    async def _run_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            # Both refer to this object: with them it would wait for the collector.
            self.app = self._app
            self.scope["extensions"].pop(SEND)
        if self.close_sent:
            # uvicorn does not treat an HTTP response as the end of the handshake, and would log an error.
            self.handshake_complete = True

    # --- Frames ----------------------------------------------------------------------------------------------

    def handle_ping(self) -> None:
        """Answer a ping, unless there are too many."""
        if self._is_over:
            return
        if self._pings.take():
            super().handle_ping()
        else:
            self._fail(_CLOSE_RATE, "too many pings")

    def handle_text(self, event: Frame) -> None:
        """Begin a message of text."""
        self._message_bytes += len(event.data)
        super().handle_text(event)
        event.data = b""  # the library's parser keeps the last frame

    def handle_bytes(self, event: Frame) -> None:
        """Begin a message of bytes."""
        self._message_bytes += len(event.data)
        super().handle_bytes(event)
        event.data = b""

    def handle_cont(self, event: Frame) -> None:
        """Add a fragment to a message, unless it has too many."""
        if self._is_over:
            return
        if len(self.frames) < self._limits.max_fragments:
            self._message_bytes += len(event.data)
            super().handle_cont(event)
            event.data = b""
        else:
            self._fail(_CLOSE_POLICY, f"a message of more than {self._limits.max_fragments} fragments")

    def send_receive_event_to_app(self) -> None:
        """Pass a complete message to the application; text must be UTF-8."""
        if self._is_over:
            return
        self._end_message()
        if self.curr_msg_data_type == "text":
            self.frames = [b"".join(self.frames)]
            try:
                self.frames[0].decode()
            except UnicodeDecodeError:
                self._fail(_CLOSE_UTF8, "the text is not UTF-8")
                return
        self._turns.owe(sum(map(len, self.frames)))
        super().send_receive_event_to_app()
        if self.close_sent:  # the application hears no more
            self._message_bytes = 0

    def _fail(self, code: int, reason: str) -> None:
        self.conn.fail(code, reason)
        self.handle_parser_exception()
        self._drop_message()

    def handle_parser_exception(self) -> None:
        """Close because of a protocol error; the client gets time to read the reason."""
        if self._is_over:
            return
        self._is_over = True
        self.stop_keepalive()
        if not self.close_sent and self.conn.close_sent is not None:
            code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
            access_record(self.scope).reason = f"closed_{code}"  # type: ignore[arg-type]
            self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        if self.close_timer is not None:
            self.close_timer.cancel()
        # Closing with unread bytes resets the connection, which may drop the close frame.
        self.close_timer = self.loop.call_later(self._limits.linger_s, self.transport.close)


class _JsonServerProtocol(ServerProtocol):
    """The library's protocol of a WebSocket server, with the JSON body of our errors in rejected handshakes."""

    def reject(self, status: int, text: str) -> Response:
        """Return the response that rejects the handshake."""
        kind = _kind_of(status)
        info = ErrorInfo(kind.code, text.strip() or "The WebSocket was rejected.", None, int(status), kind.type)
        response = super().reject(status, error_body(info).decode())
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        return response


def _untie(conn: ServerProtocol) -> None:
    """Let the library's protocol of a connection that is over go: its parser refers to it, and so does an exception
    of the parser. Else its 4 KB would wait for the collector, which comes after a thousand connections or more.
    """
    conn.parser.close()
    conn.parser_exc = None


def text_frame(payload: bytes) -> bytes:
    """Return a complete text message of a server as one frame (RFC 6455, section 5.2): final, not masked."""
    size = len(payload)
    if size < 126:
        return bytes((_FINAL_TEXT, size)) + payload
    if size < 1 << 16:
        return bytes((_FINAL_TEXT, 126)) + size.to_bytes(2) + payload
    return bytes((_FINAL_TEXT, 127)) + size.to_bytes(8) + payload


def _kind_of(status: int) -> type[QuireError]:
    """Return the error type of an HTTP status of the library."""
    return {403: PermissionDenied, 405: MethodNotAllowed, 500: EngineFailed}.get(int(status), HttpInvalid)
