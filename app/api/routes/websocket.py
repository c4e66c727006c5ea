"""The driver of quire.v1 on `/ws`: a receiver, a writer and a monitor for each socket.

    receiver ──frames──▶ ChatProtocol ──actions──▶ SocketStream ──Session──▶ engine
    writer ◀── Outbox (control first, then one frame of each stream in turn) ◀── SocketStream

The receiver is the endpoint's own task and never waits for anything else, so the socket is always read: a server that
queued messages would stop reading, miss pongs and lose the connection. When the receiver ends, for any reason, it
closes the streams, and each stream aborts its request unless its answer is kept. A stream has no task: the writer makes
its frames.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from app.api.body.new_answer import NewAnswer
from app.api.body.parse_chat import parse_chat
from app.api.body.parse_request import MAX_SMALL_BYTES
from app.api.http.access_log import access_record
from app.api.http.connection import connection_of, direct_send
from app.api.http.context import ApiContext
from app.api.http.socket_opening import open_socket
from app.api.routes.chat import chat_wire
from app.api.wire.socket_stream import SocketStream
from app.contract.errors import RateLimitExceeded
from app.runtime.clock import monotonic
from app.runtime.stall_detector import StallDetector, observation_interval
from app.streaming.chat_actions import Action, Cancel, ChatLimits, Close, Detach, Resume, Send, Start
from app.streaming.chat_protocol import ChatProtocol
from app.streaming.chat_table import CLOSE_RATE, CLOSE_RESTART, CLOSE_SLOW, PROTOCOL, State
from app.streaming.flow.ack_monitor import AckMonitor
from app.streaming.flow.flow_window import Credit
from app.streaming.flow.outbox import Outbox
from app.streaming.kept.kept_streams import MAX_TTL_S

MAX_UNREAD_REPLIES = 1024  # control frames that may be pending for a client that does not read
CLOSE_TIMEOUT_S = 5.0
LARGE_FRAME = 8 * 1024  # bytes; only many log-probabilities or long texts have so many


async def websocket_endpoint(websocket: WebSocket, limits: ChatLimits | None = None) -> None:
    """Serve one WebSocket on `/ws`; a key in the headers has been checked already."""

    async def serve(context: ApiContext) -> None:
        await ChatSocket(websocket, context, limits).run()

    await open_socket(websocket, PROTOCOL, serve)


class ChatSocket:
    """One accepted socket; `run` is called once."""

    def __init__(self, websocket: WebSocket, context: ApiContext, limits: ChatLimits | None = None) -> None:
        server = context.config.server
        self._websocket = websocket
        self._context = context
        self._limits = limits or ChatLimits(
            max_frame_bytes=server.max_request_bytes,
            max_paused=server.max_paused_per_connection,
            stall_timeout_s=server.stall_timeout,
            max_ttl_s=MAX_TTL_S if server.resume_memory else 0,
        )
        self._has_key = context.keys.check_headers(websocket.headers)
        self._sender = context.keys.sender_of(websocket)
        self._protocol = ChatProtocol(self._check_key, self._limits)
        self._interval_s = observation_interval(self._limits.stall_timeout_s, self._limits.heartbeat_ms / 1000)
        self._connection = connection_of(websocket.scope)
        self._ack_monitor = AckMonitor(self._connection, self._limits.stall_timeout_s, self._interval_s)
        self._outbox = Outbox()
        self._streams: dict[str, SocketStream] = {}
        self._starts: dict[SocketStream, asyncio.Task[None]] = {}
        self._timer: asyncio.Timeout | None = None  # ends the receiver
        self._close: Close | None = None  # a close that no received frame has caused
        self._is_sending = False
        self._is_draining = False

    async def run(self) -> None:
        """Serve the socket until one side closes it; then all its streams have ended."""
        end_reason = "client_disconnected"
        with self._context.drain.listening(self._on_drain), self._ack_monitor.watching():
            try:
                async with asyncio.TaskGroup() as group:
                    writer = group.create_task(self._write(), name="quire-ws-writer")
                    watch = group.create_task(self._watch(), name="quire-ws-watch")
                    close = await self._receive(group)
                    end_reason = end_reason if close is None else f"closed_{close.code}"
                    if self._streams:
                        access_record(self._websocket.scope).reason = end_reason
                    self._end_streams(end_reason)
                    watch.cancel()
                    if close is not None:
                        await self._close_gracefully(close, writer)
                    writer.cancel()
            finally:
                self._end_streams(end_reason)
                self._protocol.end()
                self._outbox.finish()

    def _end_streams(self, end_reason: str) -> None:
        for stream, task in self._starts.items():
            if not stream.must_end_kept:
                task.cancel()
        for stream in tuple(self._streams.values()):
            stream.close(end_reason)

    def _check_key(self, key: str | None) -> bool:
        """Return whether the key of `hello` is accepted; a key in the headers has precedence."""
        if not self._has_key:
            self._sender = self._context.keys.sender_of(self._websocket, key)
        return self._has_key or self._context.keys.check(key)

    async def _receive(self, group: asyncio.TaskGroup) -> Close | None:
        """Read frames; return how to close the connection, or None if the client has disconnected."""
        try:
            async with asyncio.timeout(self._limits.hello_timeout_s) as self._timer:
                if self._close is not None:
                    self._timer.reschedule(0)
                while (message := await self._websocket.receive())["type"] == "websocket.receive":
                    # No variable here has the frame until the next one comes.
                    if close := self._act(self._take(message.pop("text", None)), group):
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

    def _take(self, text: str | None) -> list[Action]:
        """Return the actions for a frame; a binary one has no text."""
        if text is not None and len(text) > MAX_SMALL_BYTES:
            self._context.heap.note_large()  # it may be rejected, and then nothing else notes it
        return self._protocol.receive_binary() if text is None else self._protocol.receive(text)

    def _act(self, actions: list[Action], group: asyncio.TaskGroup) -> Close | None:
        """Execute the protocol's actions up to a close, which is returned."""
        for action in actions:
            if isinstance(action, Close):
                return action
            if isinstance(action, Send):
                self._outbox.put_control(action.frame)
            elif isinstance(action, Start | Resume):
                self._open(action, group)
            elif stream := self._streams.get(action.client_id):
                if isinstance(action, Cancel):
                    stream.cancel()
                elif isinstance(action, Detach):
                    self._detach(stream)
                else:
                    stream.grant_credit(action.upto)
        return None

    def _open(self, action: Start | Resume, group: asyncio.TaskGroup) -> None:
        num_paused = sum(stream.is_paused for stream in self._streams.values())
        if num_paused >= self._limits.max_paused:
            full = RateLimitExceeded(
                f"{num_paused} streams of this connection are paused; send credit or end some first."
            )
            self._outbox.put_control(self._protocol.fail(action.client_id, full.info()))
            return
        after = action.after if isinstance(action, Resume) else ()
        credit = Credit(action.credit)
        credit.grant([position + action.credit for position in after])
        stream = self._streams[action.client_id] = SocketStream(
            action.client_id,
            self._context,
            self._protocol,
            self._outbox,
            self._websocket.scope,
            credit,
            StallDetector(self._limits.stall_timeout_s, self._interval_s),
            self._forget,
            outlives_detach=isinstance(action, Start) and bool(action.ttl_s or action.idempotency_key),
        )
        if isinstance(action, Resume):
            opening = stream.resume(action.stream, after, self._sender.tenant)
        else:
            opening = stream.start(partial(self._new_answer(action).begin, action.request))
        self._starts[stream] = task = group.create_task(opening, name="quire-ws-start")
        task.add_done_callback(lambda _: self._starts.pop(stream, None))

    def _new_answer(self, start: Start) -> NewAnswer:
        return NewAnswer(
            self._context,
            parse_chat,
            chat_wire,
            route=self._websocket.scope["path"],
            sender=self._sender,
            ttl_s=start.ttl_s,
            key=start.idempotency_key,
            always_streams=True,
        )

    def _detach(self, stream: SocketStream) -> None:
        """Let a stream go on without this socket, also one that is being started; one that is not kept is aborted."""
        task = self._starts.pop(stream, None)
        if task is not None and not (stream.outlives_detach or stream.must_end_kept):
            task.cancel()
        stream.close("detached")

    def _forget(self, client_id: str) -> None:
        del self._streams[client_id]
        self._close_if_drained()

    async def _write(self) -> None:
        send = direct_send(self._websocket.scope, self._websocket.send)
        with contextlib.suppress(OSError, WebSocketDisconnect):  # the client disconnected
            while (frame := await self._outbox.get()) is not None:
                self._is_sending = True
                await send({"type": "websocket.send", "text": frame})
                num_bytes = len(frame) if frame.isascii() else len(frame.encode())
                self._ack_monitor.note_sent(num_bytes)
                self._is_sending = False
                if num_bytes >= LARGE_FRAME:
                    await asyncio.sleep(0)  # between two large frames, other tasks run

    async def _watch(self) -> None:
        """Send heartbeats, and end the connection of a client that reads none of the pending data."""
        next_beat = monotonic() + self._limits.heartbeat_ms / 1000
        while True:
            await asyncio.sleep(self._interval_s)
            now = monotonic()
            if now >= next_beat and self._protocol.state is not State.GREETING:
                next_beat = now + self._limits.heartbeat_ms / 1000
                self._outbox.put_control(self._protocol.heartbeat())
            stalled = [stream for stream in self._streams.values() if stream.has_stalled(now)]
            if self._ack_monitor.has_stalled(now):
                stalled = list(self._streams.values())
                self._end(Close(CLOSE_SLOW, "the client has read nothing for the stall timeout"))
            elif stalled:
                self._end(Close(CLOSE_SLOW, "the client has granted no credit for the stall timeout"))
            for stream in stalled:
                stream.note_disconnect()

    def _on_drain(self, deadline_s: float) -> None:
        """Inform the client that the server shuts down; close the socket when no stream is open."""
        self._is_draining = True
        self._outbox.put_control(self._protocol.drain(round(deadline_s * 1000)))
        self._close_if_drained()

    def _close_if_drained(self) -> None:
        if self._is_draining and not self._streams:
            self._end(Close(CLOSE_RESTART, "the server has stopped"))

    def _end(self, close: Close) -> None:
        """Make the receiver return `close`; the first close counts."""
        if self._close is None:
            self._close = close
            if self._timer is not None:
                self._timer.reschedule(0)

    async def _close_gracefully(self, close: Close, writer: asyncio.Task[None]) -> None:
        """Send the pending control frames and the close; abort the connection if the client does not read them."""
        self._outbox.finish()
        with contextlib.suppress(WebSocketDisconnect, WebSocketDisconnected):
            try:
                async with asyncio.timeout(0 if close.code == CLOSE_SLOW and self._is_sending else CLOSE_TIMEOUT_S):
                    await asyncio.wait([writer])
                    await self._websocket.close(close.code, close.reason)
            except TimeoutError:
                self._connection.abort()
