"""The driver of quire.live.v1 on `/live`: a receiver, a writer and a monitor for each socket.

The client says nothing but its key. The writer takes the newest message when the socket has taken the last one, so that
nothing is pending for a client that reads slowly but the one message it reads.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from app.api.http.access_log import access_record
from app.api.http.connection import connection_of, direct_send
from app.api.http.context import ApiContext
from app.api.http.first_of import first_of
from app.api.http.socket_opening import open_socket
from app.contract.errors import NotFound, RateLimitExceeded
from app.contract.live_state import LIVE_PROTOCOL
from app.runtime.clock import monotonic
from app.runtime.stall_detector import observation_interval
from app.streaming import chat_table
from app.streaming.chat_actions import ChatLimits, Close
from app.streaming.chat_frames import read_frame
from app.streaming.flow.ack_monitor import AckMonitor
from app.streaming.live.live_room import LiveRoom

_LIMITS = ChatLimits()  # its hello is ours
HELLO_TIMEOUT_S = _LIMITS.hello_timeout_s
MAX_HELLO_BYTES = _LIMITS.max_hello_bytes
OBSERVATION_S = 15.0
CLOSE_TIMEOUT_S = 5.0

CLOSE_REASONS = {
    1000: "closed by the client",
    chat_table.CLOSE_BINARY: "a binary frame",
    chat_table.CLOSE_BAD_FRAMES: "a frame after `hello`",
    chat_table.CLOSE_TOO_LARGE: "a frame of more than 8 KiB",
    chat_table.CLOSE_RESTART: "the server shuts down; connect again later",
    chat_table.CLOSE_MALFORMED: "a frame that is not one JSON object with `t`",
    chat_table.CLOSE_UNAUTHENTICATED: "the key is missing or wrong, or the first frame was not `hello`",
    chat_table.CLOSE_SUBPROTOCOL: "the subprotocol is not `quire.live.v1`",
    chat_table.CLOSE_HELLO_TIMEOUT: "no `hello` in time",
    chat_table.CLOSE_RATE: "too many watch already, or another account has taken the place",
}


async def live_endpoint(websocket: WebSocket, hello_timeout_s: float = HELLO_TIMEOUT_S) -> None:
    """Serve one WebSocket on `/live`; a key in the headers has been checked already."""

    async def serve(context: ApiContext) -> None:
        await LiveSocket(websocket, context, _room_of(context), hello_timeout_s).run()

    await open_socket(websocket, LIVE_PROTOCOL, serve, check=_room_of)


def _room_of(context: ApiContext) -> LiveRoom:
    if context.live is None:
        raise NotFound("This server does not show its engine (--live-view off).")
    return context.live


class LiveSocket:
    """One accepted socket; `run` is called once."""

    def __init__(self, websocket: WebSocket, context: ApiContext, room: LiveRoom, hello_timeout_s: float) -> None:
        stall_timeout_s = context.config.server.stall_timeout
        self._websocket = websocket
        self._context = context
        self._room = room
        self._hello_timeout_s = hello_timeout_s
        self._account = context.keys.sender_of(websocket).account
        self._needs_key = not context.keys.check_headers(websocket.headers)
        self._is_known = asyncio.Event()  # who watches
        self._interval_s = observation_interval(stall_timeout_s, OBSERVATION_S)
        self._connection = connection_of(websocket.scope)
        self._ack_monitor = AckMonitor(self._connection, stall_timeout_s, self._interval_s)
        self._drain = asyncio.Event()

    async def run(self) -> None:
        """Serve the socket until one side closes it."""
        if not self._needs_key:
            self._is_known.set()
        with self._context.drain.listening(lambda _: self._drain.set()), self._ack_monitor.watching():
            close = await first_of(self._receive(), self._send(), self._watch(), self._wait_for_drain())
            if close is not None:
                await self._close(close)

    async def _receive(self) -> Close | None:
        """Read the client's frames; return how to close the connection, None if the client has disconnected."""
        has_greeted = False
        while (message := await self._websocket.receive())["type"] == "websocket.receive":
            if has_greeted:
                return Close(chat_table.CLOSE_BAD_FRAMES, "nothing is read after hello")
            if close := self._greet(message.get("text")):
                return close
            has_greeted = True
        return None

    def _greet(self, text: str | None) -> Close | None:
        """Check the first frame; return how to close the connection if it is not accepted."""
        if text is None:
            return Close(chat_table.CLOSE_BINARY, "frames must be text")
        if len(text.encode(errors="replace")) > MAX_HELLO_BYTES:
            return Close(chat_table.CLOSE_TOO_LARGE, f"hello has at most {MAX_HELLO_BYTES} bytes")
        try:
            frame = read_frame(text)
        except ValueError:
            return Close(chat_table.CLOSE_MALFORMED, "a frame is one JSON object")
        key = frame.get("key")
        if frame.get("t") != "hello":
            return Close(chat_table.CLOSE_UNAUTHENTICATED, "the first frame must be hello")
        if self._needs_key:
            if not isinstance(key, str) or not self._context.keys.check(key):
                return Close(chat_table.CLOSE_UNAUTHENTICATED, "the API key is missing or wrong")
            self._account = self._context.keys.sender_of(self._websocket, key).account
            self._is_known.set()
        return None

    async def _send(self) -> Close | None:
        """Send the messages, from when it is known who watches."""
        try:
            async with asyncio.timeout(self._hello_timeout_s):
                await self._is_known.wait()
        except TimeoutError:
            return Close(chat_table.CLOSE_HELLO_TIMEOUT, "no hello in time")
        send = direct_send(self._websocket.scope, self._websocket.send)
        try:
            with self._room.watching(self._account) as watcher:
                while True:
                    message = await watcher.next()
                    await send({"type": "websocket.send", "bytes": message})
                    self._ack_monitor.note_sent(len(message))
        except RateLimitExceeded as error:
            return Close(chat_table.CLOSE_RATE, error.message)
        except (OSError, WebSocketDisconnect):  # the client disconnected
            return None

    async def _watch(self) -> Close | None:
        """Wait until the client has read none of the pending data for the stall timeout, and reset the connection."""
        while True:
            await asyncio.sleep(self._interval_s)
            if self._ack_monitor.has_stalled(monotonic()):
                access_record(self._websocket.scope).reason = "client_stalled"
                self._connection.abort()  # a close frame would not arrive
                return None

    async def _wait_for_drain(self) -> Close:
        await self._drain.wait()
        return Close(chat_table.CLOSE_RESTART, "the server is shutting down")

    async def _close(self, close: Close) -> None:
        with contextlib.suppress(OSError, WebSocketDisconnect, WebSocketDisconnected):
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._websocket.close(close.code, close.reason)
            except TimeoutError:
                self._connection.abort()
