"""A quire.v1 client for tests that must see every frame; it is connected to a real server."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from app.api.routes.websocket import ChatSocket, websocket_endpoint
from app.streaming.chat_actions import ChatLimits
from tests.api.serving import HANG_S, make_app, serving
from tests.fakes import FakeEngine

HELLO = {"t": "hello", "protocol": "quire.v1"}


SMALL_BUFFER = 65536


def body(content: str = "Hello", **params: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **params}


class ChatClient:
    """A connection of a client: sends frames, and reads all but pings."""

    def __init__(self, socket: ClientConnection, app: Starlette | None = None) -> None:
        self.socket = socket
        self.app = app
        self.welcome: dict[str, Any] = {}

    async def send(self, **frame: Any) -> None:
        await self.socket.send(json.dumps(frame))

    async def start(self, client_id: str = "a", **params: Any) -> None:
        await self.send(t="start", id=client_id, request=body(**params))

    async def receive(self) -> dict[str, Any]:
        async with asyncio.timeout(HANG_S):
            while (frame := json.loads(await self.socket.recv()))["t"] == "ping":
                pass
            return frame

    async def receive_until(self, *kinds: str, count: int = 1) -> list[dict[str, Any]]:
        """Read up to and including the `count`-th frame of one of `kinds`."""
        frames: list[dict[str, Any]] = []
        while count:
            frames.append(await self.receive())
            count -= frames[-1]["t"] in kinds
        return frames

    async def closed(self) -> int | None:
        """Read to the end of the connection and return its close code."""
        try:
            while True:
                await self.receive()
        except ConnectionClosed as closed:
            return closed.rcvd and closed.rcvd.code


class StuckTransport:
    """An ASGI connection whose `send` never returns: a client that reads nothing, with every buffer full."""

    def __init__(self, app: Any) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {
            "type": "websocket",
            "headers": [],
            "subprotocols": ["quire.v1"],
            "app": app,
            "state": {},
            "path": "/ws",
        }
        self.websocket = WebSocket(scope, self.messages.get, self.send)

    async def serve(self, limits: ChatLimits | None = None) -> asyncio.Task[None]:
        """Accept the connection and deliver `hello`; return the task that serves the connection."""
        self.messages.put_nowait({"type": "websocket.connect"})
        await self.websocket.accept()
        self.chat = ChatSocket(self.websocket, self.websocket.app.state.context, limits)
        self.deliver(**HELLO)
        return asyncio.create_task(self.chat.run())

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] != "websocket.accept":
            await asyncio.Event().wait()

    def deliver(self, **frame: Any) -> None:
        self.messages.put_nowait({"type": "websocket.receive", "text": json.dumps(frame)})


def text(frames: list[dict[str, Any]], client_id: str = "a", choice: int = 0) -> str:
    """The text of a choice of a stream; asserts that the token numbers have no gaps."""
    deltas = [frame for frame in frames if frame["t"] == "delta" and (frame["id"], frame["i"]) == (client_id, choice)]
    after = 1
    for delta in deltas:
        assert delta["n"] == after
        after += delta["k"]
    return "".join(delta["x"] for delta in deltas)


@asynccontextmanager
async def open_chat(
    engine: FakeEngine | None = None,
    *,
    app: Starlette | None = None,
    greet: bool = True,
    key: str | None = None,
    limits: ChatLimits | None = None,
    **settings: Any,
) -> AsyncIterator[ChatClient]:
    """A client connected to a real server of `app`, or over `engine`; its receive buffer is small and does not grow."""
    app = app or await make_app(engine, **settings)
    app.router.routes.insert(0, WebSocketRoute("/ws", partial(websocket_endpoint, limits=limits)))
    async with serving(app) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        buffer = socket.socket()
        buffer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        buffer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(buffer, (host, int(port)))
        async with connect_socket(url, sock=buffer) as websocket:
            chat = ChatClient(websocket, app)
            if greet:
                await chat.send(**HELLO, key=key)
                chat.welcome = await chat.receive()
                assert chat.welcome["t"] == "welcome"
            yield chat


def connect_socket(url: str, **options: Any) -> connect:
    options = {"subprotocols": ["quire.v1"], "compression": None, "proxy": None, "max_size": None} | options
    return connect(url.replace("http", "ws") + "/ws", **options)


def socket_tasks() -> list[str]:
    """Names of the tasks of open sockets."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("quire-ws")]
