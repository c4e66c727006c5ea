"""A small asyncio client of quire.v1: several answers at once over one WebSocket.

    async with connect("http://127.0.0.1:8000") as client:
        answer = await client.chat([{"role": "user", "content": "Hello"}], temperature=0)
        async for text in answer:
            print(text, end="")

A reader task of the connection passes each frame to its stream. A stream buffers at most a window of unread tokens of
each choice (`welcome["limits"]["window"]`), because the server gets credit for more only as tokens are read. If a
stream is not read, the server pauses it, and after its `--stall-timeout` closes the connection (4499). Cancel answers
that are no longer needed, with `cancel()` or by leaving their `async with` block.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from app.client.protocol import PROTOCOL, ChatEvent, ClientProtocol, ClientState, ClientStream, Frame
from app.config.base_url import read_base_url
from app.contract.errors import QuireError
from app.runtime.clock import monotonic

WELCOME_TIMEOUT_S = 10.0
_REASONS = {
    1006: "It was not closed by the server.",
    1012: "The server has shut down; connect again later.",
    4499: "The server disconnected, because this client did not read an answer within the stall timeout.",
}


class ServerRefused(QuireError):
    """The server returned an error; `code` and `http_status` are the server's."""

    def __init__(
        self, message: str, *, code: str = "engine_error", status: int = 500, param: str | None = None
    ) -> None:
        super().__init__(message, param=param)
        self.code = code
        self.http_status = status


class ConnectionLost(QuireError):
    """The connection ended before the answer; `close_code` is the reason (1006: no close frame was received)."""

    def __init__(self, close_code: int, reason: str) -> None:
        reason = _REASONS.get(close_code, reason)
        super().__init__(f"The connection to the server was lost (close code {close_code}). {reason}".rstrip())
        self.close_code = close_code


class ClientAnswer(ClientStream):
    """One answer. Iterate over it for text, or over `events()` for numbered deltas; one reader at a time.

    Reading grants the server credit: it sends at most a window of unread tokens of each choice.
    """

    def __init__(self, client: ChatClient, client_id: str, request: Mapping[str, Any], window: int) -> None:
        super().__init__(client_id, request, window)
        self._client = client
        self._changed = asyncio.Event()

    @property
    def is_paused(self) -> bool:
        """Whether the server has paused generation because too much is pending for this stream."""
        return self.state is ClientState.PAUSED

    def receive(self, frame: Frame) -> None:
        """Process a frame of this answer, and wake its reader. For the connection's reader task."""
        super().receive(frame)
        self._changed.set()

    def disconnect(self) -> None:
        """End the answer, because the connection has ended. For the connection's reader task."""
        super().disconnect()
        self._changed.set()

    async def cancel(self) -> None:
        """Ask the server to end this answer; it can be read up to its end, with finish reason `cancelled`."""
        frame = self.cancel_frame()
        if frame is not None:
            await self._client.send(frame)

    async def events(self) -> AsyncIterator[ChatEvent]:
        """Yield the deltas of all choices; each counts as read when the next one is requested.

        Raises:
            ServerRefused: the server returned an error.
            ConnectionLost: the connection ended first.
        """
        while True:
            await self._grant_credit()
            event = self.take()
            if event is not None:
                yield event
            elif self.is_over:
                break
            else:
                await self._wait()
        if self.failure is not None:
            code, status = self.failure["code"], self.failure["status"]
            raise ServerRefused(self.failure["message"], code=code, status=status, param=self.failure["param"])
        if self.state is ClientState.DISCONNECTED:
            raise self._client.loss

    async def text(self) -> str:
        """Read to the end and return all the text of the first choice. Raises as `events`."""
        return "".join([event.text async for event in self.events() if event.choice == 0])

    async def texts(self) -> list[str]:
        """Read to the end and return all the text of every choice, in their order. Raises as `events`."""
        deltas: dict[int, list[str]] = {}
        async for event in self.events():
            deltas.setdefault(event.choice, []).append(event.text)
        return ["".join(deltas.get(choice, ())) for choice in sorted(self.ends)]

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield the text deltas of the first choice. Raises as `events`."""
        async for event in self.events():
            if event.choice == 0 and event.text:
                yield event.text

    async def __aenter__(self) -> ClientAnswer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ConnectionLost):
            await self.cancel()

    async def _grant_credit(self) -> None:
        """Send credit for the deltas that were read; a lost connection is raised only after the buffered deltas."""
        frame = self.credit_frame(monotonic())
        if frame is not None:
            with contextlib.suppress(ConnectionLost):
                await self._client.send(frame)

    async def _wait(self) -> None:
        """Wait for a frame, or for the time when credit is due."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.credit_in(monotonic())):
                await self._changed.wait()


class ChatClient:
    """One open connection; made by `connect`.

    Attributes:
        loss: the error of answers that had not ended when the connection did.
    """

    def __init__(self, websocket: ClientConnection) -> None:
        self.loss = ConnectionLost(1006, "")
        self._websocket = websocket
        self._protocol = ClientProtocol()
        self._num_started = 0

    @property
    def welcome(self) -> dict[str, Any]:
        """The server's first frame (its name, limits and heartbeat)."""
        return self._protocol.welcome

    @property
    def is_draining(self) -> bool:
        """Whether the server is shutting down: open answers may finish, new ones are rejected."""
        return self._protocol.is_draining

    async def chat(self, messages: Sequence[Mapping[str, Any]], **params: Any) -> ClientAnswer:
        """Start an answer; `params` are further fields of an OpenAI chat request (`temperature`, `max_tokens` ...).

        Raises:
            ConnectionLost: the connection has ended.
        """
        self._num_started += 1
        request = {"messages": list(messages), **params}
        answer = ClientAnswer(self, f"c{self._num_started}", request, self._protocol.window)
        await self.send(self._protocol.start(answer, request))
        return answer

    async def send(self, frame: Mapping[str, Any]) -> None:
        """Send one frame.

        Raises:
            ConnectionLost: the connection has ended.
        """
        try:
            await self._websocket.send(orjson.dumps(frame).decode())
        except ConnectionClosed as closed:
            raise _loss(closed) from None

    async def greet(self, key: str | None) -> None:
        """Send `hello` and wait for `welcome`. Called by `connect`.

        Raises:
            ConnectionLost: the server closed the connection instead (4401: wrong key).
        """
        await self.send(self._protocol.hello(key))
        try:
            while not self.welcome:
                await self._receive(await self._websocket.recv())
        except ConnectionClosed as closed:
            raise _loss(closed) from None

    async def read(self) -> None:
        """Pass frames to their streams until the connection ends; the reader task of `connect`."""
        try:
            async for message in self._websocket:
                await self._receive(message)
            self.loss = ConnectionLost(self._websocket.close_code or 1006, self._websocket.close_reason or "")
        except ConnectionClosed as closed:
            self.loss = _loss(closed)
        finally:
            self._protocol.close()

    async def _receive(self, message: str | bytes) -> None:
        for answer in self._protocol.receive(orjson.loads(message)):
            with contextlib.suppress(ConnectionLost):
                await self.send(answer)


@contextlib.asynccontextmanager
async def connect(url: str, key: str | None = None) -> AsyncIterator[ChatClient]:
    """Connect to a server (`http://host:port`, or the `ws://` URL of its WebSocket) for the duration of a block.

    Raises:
        ConfigurationError: `url` is no URL of a server.
        ServerRefused: the server rejected the WebSocket (with its status and error code).
        ConnectionLost: the server closed the connection at once (4401: wrong key).
        OSError: the server cannot be reached.
    """
    address = str(read_base_url(url, "url")).replace("http", "ws", 1) + "/ws"
    opening = open_websocket(
        address,
        subprotocols=[Subprotocol(PROTOCOL)],
        compression=None,
        proxy=None,  # a proxy of the environment would be used even for loopback addresses
        max_size=None,
        open_timeout=WELCOME_TIMEOUT_S,
    )
    try:
        websocket = await opening
    except InvalidStatus as rejected:
        raise _denial(rejected) from None
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


def _denial(rejected: InvalidStatus) -> ServerRefused:
    status = rejected.response.status_code
    try:
        body = orjson.loads(rejected.response.body or b"")["error"]
        return ServerRefused(body["message"], code=body["code"], status=status, param=body["param"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = f"The server rejected the connection with status {status}."
        return ServerRefused(message, code="engine_error", status=status)
