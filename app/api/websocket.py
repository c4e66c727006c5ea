"""The driver of quire.v1 on `/ws`: one socket, one receiver, one writer, and a watch over both.

    receiver ──frames──▶ ChatProtocol ──actions──▶ SocketStream ──Session──▶ engine
    writer ◀── Outbox (control first, then one frame of each stream in turn) ◀── SocketStream

The receiver is the endpoint's own task and does nothing that waits, so the socket is always read: a server that lets
messages queue stops reading, misses pongs and loses the connection. When it ends, for whatever reason, it closes the
streams, and each of them aborts its request. A stream is no task: its frame is made when the writer comes to it.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from app.api.access_log import access_record
from app.api.accounts import Sender
from app.api.connection import connection_of, direct_send
from app.api.context import ApiContext, context_of
from app.api.middleware import refuse
from app.api.socket_stream import SocketStream
from app.contract.engine_status import EngineState
from app.contract.errors import Draining, PermissionDenied, QuireError, RateLimitExceeded
from app.runtime.clock import monotonic
from app.runtime.stall_detector import StallDetector, observation_interval
from app.streaming.chat_protocol import Action, Cancel, ChatLimits, ChatProtocol, Close, Send, Start
from app.streaming.chat_table import CLOSE_RATE, CLOSE_RESTART, CLOSE_SLOW, CLOSE_SUBPROTOCOL, PROTOCOL, State
from app.streaming.flow.ack_monitor import AckMonitor
from app.streaming.flow.outbox import Outbox

MAX_UNREAD_REPLIES = 1024  # control frames that a client which does not read may leave unsent
CLOSE_PATIENCE_S = 5.0
LARGE_FRAME = 8 * 1024  # bytes; only many log-probabilities or much text make one


async def websocket_endpoint(websocket: WebSocket, limits: ChatLimits | None = None) -> None:
    """Serve one WebSocket on `/ws`; the key of its headers, if there was one, has been checked before."""
    context = context_of(websocket)
    try:
        _check_origin(websocket, context)
        if context.engine.health().state is EngineState.DRAINING:
            raise Draining("The server is shutting down and takes no new connections.")
    except QuireError as error:
        await refuse(error, websocket.scope, websocket.receive, websocket.send)
        return
    with contextlib.suppress(OSError, WebSocketDisconnect):  # a client that is gone before its accept
        if PROTOCOL in websocket.scope["subprotocols"]:
            await websocket.accept(subprotocol=PROTOCOL)
            await ChatSocket(websocket, context, limits).run()
        else:
            await websocket.accept()
            await websocket.close(CLOSE_SUBPROTOCOL, f"the subprotocol must be {PROTOCOL}")


class ChatSocket:
    """One accepted socket; `run` it once."""

    def __init__(self, websocket: WebSocket, context: ApiContext, limits: ChatLimits | None = None) -> None:
        server = context.config.server
        self._websocket = websocket
        self._context = context
        self._limits = limits or ChatLimits(
            max_frame_bytes=server.max_request_bytes,
            max_paused=server.max_paused_per_connection,
            stall_timeout_s=server.stall_timeout,
        )
        self._has_key = context.keys.check_headers(websocket.headers)
        self._sender = context.keys.sender_of(websocket)
        self._protocol = ChatProtocol(self._check_key, self._limits)
        self._look_s = observation_interval(self._limits.stall_timeout_s, self._limits.heartbeat_ms / 1000)
        self._connection = connection_of(websocket.scope)
        self._ack_monitor = AckMonitor(self._connection, self._limits.stall_timeout_s, self._look_s)
        self._outbox = Outbox()
        self._streams: dict[str, SocketStream] = {}
        self._starts: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Timeout | None = None  # ends the receiver
        self._close: Close | None = None  # a close that does not come from a frame
        self._is_sending = False
        self._is_draining = False

    async def run(self) -> None:
        """Converse until one side ends it; no stream outlives this call."""
        ending = "client_disconnected"
        with self._context.drain.listening(self._begin_to_leave), self._ack_monitor.watching():
            try:
                async with asyncio.TaskGroup() as group:
                    writer = group.create_task(self._write(), name="quire-ws-writer")
                    watch = group.create_task(self._watch(), name="quire-ws-watch")
                    close = await self._receive(group)
                    ending = ending if close is None else f"closed_{close.code}"
                    if self._streams:
                        access_record(self._websocket.scope).reason = ending
                    self._end_streams(ending)
                    watch.cancel()
                    if close is not None:
                        await self._close_gracefully(close, writer)
                    writer.cancel()
            finally:
                self._end_streams(ending)

    def _end_streams(self, ending: str) -> None:
        for task in self._starts:
            task.cancel()
        for stream in tuple(self._streams.values()):
            stream.close(ending)

    def _check_key(self, key: str | None) -> bool:
        """Whether the client may go on with `hello`; its key counts only where no header has brought one."""
        if not self._has_key:
            self._sender = Sender.of(self._context.keys.name_of(key), self._websocket)
        return self._has_key or self._context.keys.check(key)

    async def _receive(self, group: asyncio.TaskGroup) -> Close | None:
        """Read until the connection is to be closed (returns how) or the client has gone (None)."""
        try:
            async with asyncio.timeout(self._limits.hello_timeout_s) as self._timer:
                if self._close is not None:
                    self._timer.reschedule(0)
                while (message := await self._websocket.receive())["type"] == "websocket.receive":
                    text = message.get("text")
                    actions = self._protocol.receive_binary() if text is None else self._protocol.receive(text)
                    if close := self._act(actions, group):
                        return close
                    if self._protocol.state is not State.GREETING and self._close is None:
                        self._timer.reschedule(None)
                    if self._outbox.num_control > MAX_UNREAD_REPLIES:
                        return Close(CLOSE_RATE, "replies are not being read")
        except TimeoutError:
            return self._close or self._act(self._protocol.time_out(), group)
        finally:
            self._timer = None
        return None

    def _act(self, actions: list[Action], group: asyncio.TaskGroup) -> Close | None:
        """Do what the protocol says, up to a close, which is returned."""
        for action in actions:
            if isinstance(action, Close):
                return action
            if isinstance(action, Send):
                self._outbox.put_control(action.frame)
            elif isinstance(action, Start):
                self._start(action, group)
            elif stream := self._streams.get(action.client_id):
                stream.cancel() if isinstance(action, Cancel) else stream.grant_credit(action.upto)
        return None

    def _start(self, action: Start, group: asyncio.TaskGroup) -> None:
        num_paused = sum(stream.is_paused for stream in self._streams.values())
        if num_paused >= self._limits.max_paused:
            full = RateLimitExceeded(
                f"{num_paused} streams of this connection are paused; send credit or end some first."
            )
            self._outbox.put_control(self._protocol.fail(action.client_id, full.info()))
            return
        stream = self._streams[action.client_id] = SocketStream(
            action.client_id,
            self._context,
            self._protocol,
            self._outbox,
            self._websocket.scope,
            credit=action.credit,
            stall_detector=StallDetector(self._limits.stall_timeout_s, self._look_s),
            on_end=self._forget,
        )
        task = group.create_task(stream.start(action.request, self._sender), name="quire-ws-start")
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)

    def _forget(self, client_id: str) -> None:
        del self._streams[client_id]
        self._leave_if_done()

    async def _write(self) -> None:
        send = direct_send(self._websocket.scope, self._websocket.send)
        with contextlib.suppress(OSError, WebSocketDisconnect):  # a client that is gone
            while (frame := await self._outbox.get()) is not None:
                self._is_sending = True
                await send({"type": "websocket.send", "text": frame})
                num_bytes = len(frame) if frame.isascii() else len(frame.encode())
                self._ack_monitor.note_sent(num_bytes)
                self._is_sending = False
                if num_bytes >= LARGE_FRAME:
                    await asyncio.sleep(0)  # others have their turn between two of them

    async def _watch(self) -> None:
        """Send heartbeats, and end a connection whose client takes nothing of what waits for it."""
        next_beat = monotonic() + self._limits.heartbeat_ms / 1000
        while True:
            await asyncio.sleep(self._look_s)
            now = monotonic()
            if now >= next_beat and self._protocol.state is not State.GREETING:
                next_beat = now + self._limits.heartbeat_ms / 1000
                self._outbox.put_control(self._protocol.heartbeat())
            stalled = [stream for stream in self._streams.values() if stream.has_stalled(now)]
            if self._ack_monitor.has_stalled(now):
                stalled = list(self._streams.values())
                self._end(Close(CLOSE_SLOW, "nothing is being read"))
            elif stalled:
                self._end(Close(CLOSE_SLOW, "no credit came for what waits"))
            for stream in stalled:
                stream.note_disconnect()

    def _begin_to_leave(self, deadline_s: float) -> None:
        """The server stops: say so, and leave once nothing is open."""
        self._is_draining = True
        self._outbox.put_control(self._protocol.drain(round(deadline_s * 1000)))
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        if self._is_draining and not self._streams:
            self._end(Close(CLOSE_RESTART, "the server has stopped"))

    def _end(self, close: Close) -> None:
        """Let the receiver end with `close`; the first one counts."""
        if self._close is None:
            self._close = close
            if self._timer is not None:
                self._timer.reschedule(0)

    async def _close_gracefully(self, close: Close, writer: asyncio.Task[None]) -> None:
        """Send the control frames that wait, then the close; give up on a client that takes neither."""
        self._outbox.finish()
        with contextlib.suppress(WebSocketDisconnect, WebSocketDisconnected):
            try:
                async with asyncio.timeout(0 if close.code == CLOSE_SLOW and self._is_sending else CLOSE_PATIENCE_S):
                    await asyncio.wait([writer])
                    await self._websocket.close(close.code, close.reason)
            except TimeoutError:
                self._connection.abort()


def _check_origin(websocket: WebSocket, context: ApiContext) -> None:
    """Refuse pages of other origins: browsers open WebSockets across sites without asking the server.

    Compared is the origin's host and port with the Host header; behind a proxy that ends TLS the scheme differs. No
    Origin is allowed: only browsers are the threat, and they send one.
    """
    origins = websocket.headers.getlist("origin")
    if not origins:
        return
    allowed = {origin.lower().rstrip("/") for origin in context.config.server.allowed_origins}
    host = websocket.headers.get("host", "").lower()
    for origin in map(str.lower, origins):
        scheme, _, authority = origin.partition("://")
        if origin not in allowed and not (scheme in ("http", "https") and authority == host):
            raise PermissionDenied(
                f"WebSockets from the origin {origin[:100]!r} are not allowed; add it with --allowed-origins."
            )
