"""A small asyncio client of quire.v1: several answers at once over one WebSocket.

    async with connect("http://127.0.0.1:8000") as client:
        answer = await client.chat([{"role": "user", "content": "Hello"}], temperature=0)
        async for text in answer:
            print(text, end="")

The connection has one reader task that hands each frame to its stream. A stream that is not read to its end is
cancelled by `cancel()`, or by leaving its `async with` block.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import orjson
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from app.errors import QuireError

PROTOCOL = Subprotocol("quire.v1")
WELCOME_TIMEOUT_S = 10.0


class ServerRefused(QuireError):
    """The server has answered with an error; `code` and `http_status` are the server's."""

    def __init__(
        self, message: str, *, code: str = "engine_error", status: int = 500, param: str | None = None
    ) -> None:
        super().__init__(message, param=param)
        self.code = code
        self.http_status = status


class ConnectionLost(QuireError):
    """The connection ended before the answer did; `close_code` says why (1006: without a word)."""

    def __init__(self, close_code: int, reason: str) -> None:
        super().__init__(f"The connection to the server has ended (close code {close_code}). {reason}".rstrip())
        self.close_code = close_code


class ChatEvent(NamedTuple):
    """Tokens of one choice: the number of the first, how many, the text they released, OpenAI logprobs entries."""

    choice: int
    first: int
    num_tokens: int
    text: str
    logprobs: list[dict[str, Any]] | None


class ChatStream:
    """One answer. Iterate over it for text, over `events()` for numbered pieces; one reader at a time.

    Attributes:
        id: the client's id of this stream.
        model: the model's name, once the request is accepted.
        stream_id: the server's id of this stream, once accepted.
        finish_reasons: why each choice ended, as far as they have.
        usage, timings: the server's figures, once the stream is done.
    """

    def __init__(self, client: ChatClient, stream_id: str) -> None:
        self.id = stream_id
        self.model: str | None = None
        self.stream_id: str | None = None
        self.finish_reasons: dict[int, str] = {}
        self.usage: dict[str, Any] | None = None
        self.timings: dict[str, float] | None = None
        self._client = client
        self._frames: asyncio.Queue[dict[str, Any] | QuireError] = asyncio.Queue()
        self._is_over = False

    async def cancel(self) -> None:
        """Ask the server to end this answer; reading goes on to its end, with finish reason `cancelled`."""
        if not self._is_over:
            await self._client.send({"t": "cancel", "id": self.id})

    async def events(self) -> AsyncIterator[ChatEvent]:
        """Yield the pieces of all choices as they come.

        Raises:
            ServerRefused: the server has answered with an error.
            ConnectionLost: the connection ended first.
        """
        while not self._is_over:
            frame = await self._frames.get()
            if isinstance(frame, QuireError):
                self._is_over = True
                raise frame
            if frame["t"] == "delta":
                yield ChatEvent(frame["i"], frame["n"], frame["k"], frame["x"], frame.get("lp"))
            else:
                self._note(frame)

    async def text(self) -> str:
        """Read to the end and return all the text of the first choice. Raises as `events`."""
        return "".join([event.text async for event in self.events() if event.choice == 0])

    async def texts(self) -> list[str]:
        """Read to the end and return all the text of every choice, in their order. Raises as `events`."""
        pieces: dict[int, list[str]] = {}
        async for event in self.events():
            pieces.setdefault(event.choice, []).append(event.text)
        return ["".join(pieces.get(choice, ())) for choice in sorted(self.finish_reasons)]

    def take(self, frame: dict[str, Any] | QuireError) -> None:
        """Queue a frame for the reader, or the error that ends the stream. For the connection's reader task."""
        self._frames.put_nowait(frame)

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield the text of the first choice, piece by piece. Raises as `events`."""
        async for event in self.events():
            if event.choice == 0 and event.text:
                yield event.text

    async def __aenter__(self) -> ChatStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ConnectionLost):
            await self.cancel()

    def _note(self, frame: dict[str, Any]) -> None:
        if frame["t"] == "accepted":
            self.stream_id, self.model = frame["stream"], frame["model"]
        elif frame["t"] == "finish":
            self.finish_reasons[frame["i"]] = frame["finish_reason"]
        elif frame["t"] == "done":
            self.usage, self.timings = frame["usage"], frame["timings"]
            self._is_over = True
        elif frame["t"] == "error":
            self._is_over = True
            raise _refusal(frame)


class ChatClient:
    """One open connection; made by `connect`.

    Attributes:
        welcome: the server's first frame (its name, limits and heartbeat).
    """

    def __init__(self, websocket: ClientConnection) -> None:
        self.welcome: dict[str, Any] = {}
        self._websocket = websocket
        self._streams: dict[str, ChatStream] = {}
        self._num_started = 0

    async def chat(self, messages: Sequence[Mapping[str, Any]], **params: Any) -> ChatStream:
        """Start an answer; `params` are further fields of an OpenAI chat body (`temperature`, `max_tokens` ...).

        Raises:
            ConnectionLost: the connection has ended.
        """
        self._num_started += 1
        stream = ChatStream(self, f"c{self._num_started}")
        self._streams[stream.id] = stream
        await self.send({"t": "start", "id": stream.id, "request": {"messages": list(messages), **params}})
        return stream

    async def send(self, frame: Mapping[str, Any]) -> None:
        """Send one frame as it is.

        Raises:
            ConnectionLost: the connection has ended.
        """
        try:
            await self._websocket.send(orjson.dumps(frame).decode())
        except ConnectionClosed as closed:
            raise _loss(closed) from None

    async def greet(self, key: str | None) -> None:
        """Say hello and wait for the welcome; `connect` has done it.

        Raises:
            ConnectionLost: the server has closed the connection instead (4401: wrong key).
        """
        await self.send({"t": "hello", "protocol": PROTOCOL} | ({"key": key} if key else {}))
        try:
            self.welcome = orjson.loads(await self._websocket.recv())
        except ConnectionClosed as closed:
            raise _loss(closed) from None

    async def read(self) -> None:
        """Hand frames to their streams until the connection ends; the task behind `connect`."""
        loss = ConnectionLost(1006, "")
        try:
            async for message in self._websocket:
                await self._dispatch(orjson.loads(message))
            loss = ConnectionLost(self._websocket.close_code or 1006, self._websocket.close_reason or "")
        except ConnectionClosed as closed:
            loss = _loss(closed)
        finally:
            for stream in self._streams.values():
                stream.take(loss)
            self._streams.clear()

    async def _dispatch(self, frame: dict[str, Any]) -> None:
        if frame["t"] == "ping":
            with contextlib.suppress(ConnectionLost):
                await self.send({"t": "pong", "ts": frame["ts"]})
        elif stream := self._streams.get(frame.get("id", "")):
            stream.take(frame)
            if frame["t"] in ("done", "error"):
                del self._streams[stream.id]


@contextlib.asynccontextmanager
async def connect(url: str, key: str | None = None) -> AsyncIterator[ChatClient]:
    """Connect to a server (`http://host:port`, or the `ws://` URL of its WebSocket) for the length of a block.

    Raises:
        ServerRefused: the server refuses WebSockets from here (its status and error code).
        ConnectionLost: it has closed the connection at once (4401: wrong key).
        OSError: nobody listens there.
    """
    address = url.rstrip("/").replace("http", "ws", 1) + "/ws" if url.startswith("http") else url
    opening = open_websocket(
        address,
        subprotocols=[PROTOCOL],
        compression=None,
        proxy=None,  # a proxy of the environment would be asked even for this machine's own address
        max_size=None,
        open_timeout=WELCOME_TIMEOUT_S,
    )
    try:
        websocket = await opening
    except InvalidStatus as refused:
        raise _denial(refused) from None
    async with websocket:
        client = ChatClient(websocket)
        async with asyncio.timeout(WELCOME_TIMEOUT_S):
            await client.greet(key)
        reader = asyncio.create_task(client.read(), name="quire-client-reader")
        try:
            yield client
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader


def _loss(closed: ConnectionClosed) -> ConnectionLost:
    return ConnectionLost(closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else ConnectionLost(1006, "")


def _refusal(error: Mapping[str, Any]) -> ServerRefused:
    return ServerRefused(error["message"], code=error["code"], status=error["status"], param=error["param"])


def _denial(refused: InvalidStatus) -> ServerRefused:
    status = refused.response.status_code
    try:
        body = orjson.loads(refused.response.body or b"")["error"]
        return ServerRefused(body["message"], code=body["code"], status=status, param=body["param"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = f"The server has refused the connection with status {status}."
        return ServerRefused(message, code="engine_error", status=status)
