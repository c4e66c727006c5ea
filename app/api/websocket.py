"""The driver of quire.v1 on `/ws`: one socket, one receiver, one writer, one task per stream.

    receiver ──frames──▶ ChatProtocol ──actions──▶ stream tasks ──Session──▶ engine
    writer ◀── Outbox (control first, then one frame of each stream in turn) ◀── stream tasks

The receiver is the endpoint's own task and does nothing that waits, so the socket is always read: a server that lets
messages queue stops reading, misses pongs and loses the connection. When it ends, for whatever reason, it takes the
stream tasks with it, and each of them aborts its request on the way out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from app.api.chat import prepare_chat
from app.api.context import ApiContext, context_of
from app.api.error_response import FROM_OUTSIDE, note_reason
from app.api.middleware import refuse
from app.api.stream_log import log_stream
from app.clock import monotonic
from app.errors import Draining, EngineFailed, ErrorInfo, PermissionDenied, QuireError
from app.messages import EngineState
from app.streaming.chat_protocol import (
    CLOSE_RATE,
    CLOSE_SUBPROTOCOL,
    PROTOCOL,
    Action,
    ChatLimits,
    ChatProtocol,
    Close,
    Send,
    Start,
    State,
)
from app.streaming.outbox import Outbox
from app.streaming.session import Session

MAX_UNREAD_REPLIES = 1024  # control frames that a client which does not read may leave unsent
CLOSE_PATIENCE_S = 5.0


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
        self._websocket = websocket
        self._context = context
        self._limits = limits or ChatLimits(max_frame_bytes=context.config.server.max_request_bytes)
        self._has_key = context.check_headers(websocket.headers)
        self._tenant = context.tenant_of(websocket.headers)
        self._protocol = ChatProtocol(self._check_key, self._limits)
        self._outbox = Outbox()
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._sessions: dict[str, Session] = {}
        self._cancelled: set[str] = set()  # ids cancelled before their session was open
        self._ending = "cancelled"  # why streams end that have not ended by themselves

    async def run(self) -> None:
        """Converse until one side ends it; no stream outlives this call."""
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(self._write(), name="quire-ws-writer")
            beat = group.create_task(self._beat(), name="quire-ws-heartbeat")
            close = await self._receive(group)
            self._ending = "client_disconnected" if close is None else f"closed_{close.code}"
            for task in (beat, *self._streams.values()):
                task.cancel()
            if close is not None:
                await self._say_goodbye(close, writer)
            elif self._streams:
                note_reason(self._websocket.scope, self._ending)
            writer.cancel()

    def _check_key(self, key: str | None) -> bool:
        """Whether the client may go on with `hello`; its key counts only where no header has brought one."""
        if not self._has_key:
            self._tenant = self._context.key_name(key)
        return self._has_key or self._context.check_key(key)

    async def _receive(self, group: asyncio.TaskGroup) -> Close | None:
        """Read until the connection is to be closed (returns how) or the client has gone (None)."""
        try:
            async with asyncio.timeout(self._limits.hello_timeout_s) as hello_timer:
                while (message := await self._websocket.receive())["type"] == "websocket.receive":
                    text = message.get("text")
                    actions = self._protocol.receive_binary() if text is None else self._protocol.receive(text)
                    if close := self._act(actions, group):
                        return close
                    if self._protocol.state is not State.GREETING:
                        hello_timer.reschedule(None)
                    if self._outbox.num_control > MAX_UNREAD_REPLIES:
                        return Close(CLOSE_RATE, "replies are not being read")
        except TimeoutError:
            return self._act(self._protocol.time_out(), group)
        return None

    def _act(self, actions: list[Action], group: asyncio.TaskGroup) -> Close | None:
        """Do what the protocol says, up to a close, which is returned."""
        for action in actions:
            if isinstance(action, Close):
                return action
            if isinstance(action, Send):
                self._outbox.put_control(action.frame)
            elif isinstance(action, Start):
                stream = self._stream(action.client_id, action.request)
                self._streams[action.client_id] = group.create_task(stream, name="quire-ws-stream")
            elif session := self._sessions.get(action.client_id):
                session.cancel()
            else:
                self._cancelled.add(action.client_id)
        return None

    async def _stream(self, client_id: str, body: dict[str, Any]) -> None:
        """Answer one `start`, from its check to its `done` or `error`, and leave its line in the log."""
        began = monotonic()
        failure: ErrorInfo | None = None
        try:
            prepared = await prepare_chat(body, self._context, self._tenant)
            async with Session(self._context.engine, prepared.request) as session:
                self._outbox.put_control(self._protocol.accept(client_id, session.request.id, prepared.model))
                self._sessions[client_id] = session
                if client_id in self._cancelled:
                    session.cancel()
                last = await self._relay(client_id, session)
                failure = session.error
        except QuireError as error:
            failure = error.info()
            last = self._protocol.fail(client_id, failure)
        except FROM_OUTSIDE:
            raise
        except BaseException:
            logging.getLogger(__name__).exception("a stream failed for a reason of our own")
            failure = EngineFailed("The server made a mistake on this stream; its log says more.").info()
            last = self._protocol.fail(client_id, failure)
        finally:
            self._streams.pop(client_id, None)
            self._cancelled.discard(client_id)
            opened = self._sessions.pop(client_id, None)
            duration_s = monotonic() - began
            log_stream(self._websocket.scope, opened, failure, ending=self._ending, duration_s=duration_s)
        self._outbox.put_control(last)

    async def _relay(self, client_id: str, session: Session) -> str:
        """Pass a stream's events on as the connection takes them; return the frame that ends it."""
        async for events in session:
            await self._outbox.put(self._protocol.tell(client_id, events))
        if session.error is not None:
            return self._protocol.fail(client_id, session.error)
        timings = session.timings()
        assert session.usage is not None and timings is not None
        return self._protocol.finish(client_id, session.usage, timings)

    async def _write(self) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            while (frame := await self._outbox.get()) is not None:
                await self._websocket.send_text(frame)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._limits.heartbeat_ms / 1000)
            if self._protocol.state is State.READY:
                self._outbox.put_control(self._protocol.heartbeat())

    async def _say_goodbye(self, close: Close, writer: asyncio.Task[None]) -> None:
        """Send the control frames that wait, then the close; give up on a client that takes neither."""
        self._outbox.finish()
        with contextlib.suppress(TimeoutError, WebSocketDisconnect, WebSocketDisconnected):
            async with asyncio.timeout(CLOSE_PATIENCE_S):
                await asyncio.wait([writer])
                await self._websocket.close(close.code, close.reason)


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
