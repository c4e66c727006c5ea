"""WebSocket connections: uvicorn's protocol with bounds on fragments and pings, and an end that the client can read.

What one read of the socket brought (up to 256 KiB, thousands of frames) is parsed in slices: a flood is cut after the
first slice that is too much, and messages that the application has not taken keep the rest unparsed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from app.api.access_log import access_record
from app.api.connection import EXTENSION, SEND
from app.api.error_response import error_body
from app.contract.errors import EngineFailed, ErrorInfo, HttpInvalid, MethodNotAllowed, PermissionDenied, QuireError
from app.observe.log import log_request
from app.runtime.clock import monotonic
from app.runtime.token_bucket import TokenBucket
from app.server.guard import Guard, refusal
from app.server.transport_connection import SocketConnection

_SLICE_BYTES = 4096
_FINAL_TEXT = 0x81
_CLOSE_UTF8 = 1007
_CLOSE_FRAGMENTS = 1008
_CLOSE_PINGS = 4429


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket, from its handshake's request on. `HttpProtocol` makes it. Event loop only."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        guard: Guard,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = _Conversation(max_size=config.ws_max_size, logger=logging.getLogger("uvicorn.error"))
        self.app = self._run_app
        self._app: ASGIApp = config.loaded_app
        self._guard = guard
        self._limits = guard.limits
        self.close_timeout = guard.limits.close_timeout_s
        self._pings = TokenBucket(guard.limits.max_pings_per_s, guard.limits.ping_burst, monotonic)
        self._unparsed = b""
        self._is_over = False  # what still comes is thrown away

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a connection over; its address has been counted."""
        super().connection_made(transport)
        self._connection = SocketConnection(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything that belongs to the connection."""
        self._connection.lost()
        self._guard.peers.leave(self.client[0] if self.client else None)
        self._is_over = True
        self._unparsed = b""
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, as far as the application keeps up."""
        if self._is_over:
            return
        if not self.handshake_initiated:
            self._read_handshake(data)
        elif not self.handshake_complete:
            self._is_over = True  # no client may speak before its handshake is answered
            self.transport.abort()
        else:
            self._parse(self._unparsed + data)

    async def receive(self) -> Any:
        """Return the next message for the application; parse further what it was too slow for."""
        message = await super().receive()
        if self._unparsed and not self.read_paused:
            self._parse(self._unparsed)
        return message

    async def send(self, message: Any) -> None:
        """Send a message of the application's; a text on an open connection, as tokens are, without detours.

        Raises:
            ClientDisconnected: the client is gone.
        """
        text = message.get("text")
        if text is None or not self.handshake_complete or self.initial_response is not None:
            await super().send(message)
            return
        if not self.writable.is_set():
            await self.writable.wait()
        if self.disconnected or self.close_sent or self.transport.is_closing():
            raise ClientDisconnected
        self.transport.write(text_frame(text.encode()))

    def shutdown(self) -> None:
        """Close because the server stops; a connection that is closing already is not waited for."""
        if self.handshake_complete and not self.close_sent and self.conn.state is not State.OPEN:
            self.stop_keepalive()
            self.transport.abort()
        else:
            super().shutdown()

    def keepalive_timeout(self) -> None:
        """Give up a client that answers no pings, also when it takes no last word."""
        super().keepalive_timeout()
        self._hang_up_soon()

    def handle_close(self, event: Frame) -> None:
        """Answer the client's close; what it does not take after it is dropped."""
        super().handle_close(event)
        self._hang_up_soon()

    def _hang_up_soon(self) -> None:
        if self.close_timer is not None:
            self.close_timer.cancel()
        self.close_timer = self.loop.call_later(self._limits.linger_s, self.transport.abort)

    def _parse(self, data: bytes) -> None:
        self._unparsed = b""
        for start in range(0, len(data), _SLICE_BYTES):
            if self.read_paused:
                self._unparsed = data[start:]
                return
            super().data_received(data[start : start + _SLICE_BYTES])
            if self._is_over:
                return

    # --- The handshake ---------------------------------------------------------------------------------------

    def _read_handshake(self, data: bytes) -> None:
        super().data_received(data)
        if not self.handshake_initiated:
            # The library ends without a word what is no handshake to it, as one that is no GET.
            error = HttpInvalid("This is no WebSocket handshake: it must be a GET whose lines are not too long.")
            self._is_over = True
            self.transport.write(refusal(error, self.default_headers, client=self.client))
            self.transport.close()

    def handle_connect(self, event: Request) -> None:
        """Judge the handshake; a good one goes to the application, a bad one leaves its line in the log."""
        super().handle_connect(event)
        if self.response.status_code == 101:
            extensions: Any = self.scope["extensions"]
            extensions[EXTENSION] = self._connection
            extensions[SEND] = self.send
            return
        self._is_over = True
        log_request(
            client=self.client and self.client[0], method="WEBSOCKET", path=event.path.partition("?")[0][:200],
            status=self.response.status_code, reason=_kind_of(self.response.status_code).code,
        )  # fmt: skip

    async def _run_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
        if self.close_sent:
            # uvicorn does not count an HTTP answer as the handshake's end, and would log it as forgotten.
            self.handshake_complete = True

    # --- Frames ----------------------------------------------------------------------------------------------

    def handle_ping(self) -> None:
        """Answer a ping, if it is not one too many."""
        if self._is_over:
            return
        if self._pings.take():
            super().handle_ping()
        else:
            self._fail(_CLOSE_PINGS, "too many pings")

    def handle_cont(self, event: Frame) -> None:
        """Take a further fragment of a message, if it is not one too many."""
        if self._is_over:
            return
        if len(self.frames) < self._limits.max_fragments:
            super().handle_cont(event)
        else:
            self._fail(_CLOSE_FRAGMENTS, f"a message of more than {self._limits.max_fragments} fragments")

    def send_receive_event_to_app(self) -> None:
        """Hand a complete message over; text must be UTF-8."""
        if self._is_over:
            return
        if self.curr_msg_data_type == "text":
            self.frames = [b"".join(self.frames)]
            try:
                self.frames[0].decode()
            except UnicodeDecodeError:
                self._fail(_CLOSE_UTF8, "the text is not UTF-8")
                return
        super().send_receive_event_to_app()

    def _fail(self, code: int, reason: str) -> None:
        self.conn.fail(code, reason)
        self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        """Close for what the client did wrong; it gets a moment to read why."""
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
        # Closing on unread bytes would reset the connection, which can take the close frame away again.
        self.close_timer = self.loop.call_later(self._limits.linger_s, self.transport.close)


class _Conversation(ServerProtocol):
    """The library's side of a WebSocket, whose refusals have the body that all our errors have."""

    def reject(self, status: int, text: str) -> Response:
        """Return the answer that refuses the handshake, or says that it failed."""
        kind = _kind_of(status)
        info = ErrorInfo(kind.code, text.strip() or "This WebSocket is refused.", None, int(status), kind.type)
        response = super().reject(status, error_body(info).decode())
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        return response


def text_frame(payload: bytes) -> bytes:
    """Return a whole text message of a server as one frame (RFC 6455, section 5.2): final, not masked."""
    size = len(payload)
    if size < 126:
        return bytes((_FINAL_TEXT, size)) + payload
    if size < 1 << 16:
        return bytes((_FINAL_TEXT, 126)) + size.to_bytes(2) + payload
    return bytes((_FINAL_TEXT, 127)) + size.to_bytes(8) + payload


def _kind_of(status: int) -> type[QuireError]:
    """The error that a status of the library's stands for."""
    return {403: PermissionDenied, 405: MethodNotAllowed, 500: EngineFailed}.get(int(status), HttpInvalid)
