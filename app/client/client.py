"""A small asyncio client of quire.v1: several answers at once over one WebSocket.

    async with connect("http://127.0.0.1:8000") as client:
        answer = await client.chat([{"role": "user", "content": "Hello"}], temperature=0)
        async for text in answer:
            print(text, end="")

A reader task of the connection passes each frame to its stream. A stream buffers at most a window of unread tokens of
each choice (`welcome["limits"]["window"]`), because the server gets credit for more only as tokens are read. If a
stream is not read, the server pauses it, and after its `--stall-timeout` closes the connection (4499). Cancel answers
that are no longer needed, with `cancel()` or by leaving their `async with` block.

`connect(url, reconnect=True)` connects again when the connection was lost (`comeback`). The server keeps the answers
meanwhile; their readers wait, and get every token once. A server without a journal has forgotten them when it is
started again: their readers get `ServerRefused` with the code `stream_not_found`. Answers that are open at the end of
the block are cancelled; for that, it waits up to 5 s for a connection that is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from app.client.comeback import Backoff, Comeback, comeback_after, comeback_after_status
from app.client.opening import ConnectionLost, ServerRefused, loss_of, open_connection
from app.client.protocol import ChatEvent, ClientProtocol, ClientState, ClientStream, Frame
from app.config.base_url import read_base_url
from app.runtime.clock import monotonic

LAST_WAIT_S = 5.0  # for a connection that is away, to cancel answers at the end of the block


class ClientAnswer(ClientStream):
    """One answer. Iterate over it for text, or over `events()` for numbered deltas; one reader at a time.

    Reading grants the server credit: it sends at most a window of unread tokens of each choice.
    """

    def __init__(
        self, client: ChatClient, client_id: str, request: Mapping[str, Any], window: int, key: str | None
    ) -> None:
        super().__init__(client_id, request, window, key)
        self._client = client
        self._changed = asyncio.Event()

    @property
    def is_paused(self) -> bool:
        """Whether the server has paused generation because too much is pending for this stream."""
        return self.state is ClientState.PAUSED

    def receive(self, frame: Frame) -> None:
        """Process a frame of this answer, and wake its reader. For the connection's reader task."""
        super().receive(frame)
        if self.is_away:
            self._client.resume_later(self.num_refused)
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
            ConnectionLost: the connection ended first, and did not come back.
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
        with self._client.reading(), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.credit_in(monotonic())):
                await self._changed.wait()


class ChatClient:
    """A connection and its answers; made by `connect`.

    Attributes:
        loss: the error of answers that had not ended when the connection did.
    """

    def __init__(
        self, address: str, key: str | None, backoff: Backoff | None, on_lost: Callable[[], None] = lambda: None
    ) -> None:
        self.loss = ConnectionLost(1006, "")
        self._address = address
        self._key = key
        self._backoff = backoff
        self._on_lost = on_lost
        self._protocol = ClientProtocol()
        self._websocket: ClientConnection  # set by `open`
        self._is_open = asyncio.Event()  # or has ended for good
        self._has_ended = False
        self._num_started = 0
        self._num_attempts = 0  # to connect again, since the server has sent anything
        self._num_readers = 0
        self._has_reader = asyncio.Event()
        self._later: set[asyncio.Task[None]] = set()  # that resume answers

    @property
    def welcome(self) -> dict[str, Any]:
        """The server's first frame (its name, limits and heartbeat); empty while there is no connection."""
        return self._protocol.welcome

    @property
    def is_draining(self) -> bool:
        """Whether the server is shutting down: open answers may finish, new ones are rejected."""
        return self._protocol.is_draining

    async def chat(self, messages: Sequence[Mapping[str, Any]], **params: Any) -> ClientAnswer:
        """Start an answer; `params` are further fields of an OpenAI chat request (`temperature`, `max_tokens` ...).

        Waits while the connection may come back.

        Raises:
            ConnectionLost: the connection has ended.
        """
        with self.reading():
            await self._is_open.wait()
        self._num_started += 1
        request = {"messages": list(messages), **params}
        key = uuid.uuid4().hex if self._backoff is not None else None
        answer = ClientAnswer(self, f"c{self._num_started}", request, self._protocol.window, key)
        await self.send(self._protocol.start(answer))
        return answer

    async def send(self, frame: Mapping[str, Any]) -> None:
        """Send one frame. While the connection may come back it is dropped: what matters of it is sent then.

        Raises:
            ConnectionLost: the connection has ended.
        """
        websocket = self._websocket
        try:
            await websocket.send(orjson.dumps(frame).decode())
        except ConnectionClosed as closed:
            if self._backoff is None or self._has_ended:
                raise loss_of(closed) from None
            if websocket is self._websocket:
                self._is_open.clear()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Note that somebody waits for the server for the time of the block. For answers."""
        self._num_readers += 1
        self._has_reader.set()
        try:
            yield
        finally:
            self._num_readers -= 1
            if not self._num_readers:
                self._has_reader.clear()

    def resume_later(self, num_refused: int) -> None:
        """Ask again for an answer that cannot go on yet, later each time. For answers."""
        delay_s = (self._backoff or Backoff()).delay(num_refused - 1, Comeback.SOON)
        task = asyncio.create_task(self._resume_after(delay_s), name="quire-client-resume")
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def open(self) -> None:
        """Open the connection. Called by `connect`. Raises as `open_connection`."""
        websocket = self._websocket = await open_connection(self._address, self._key, self._protocol)
        await self._resume()
        if websocket.state is State.OPEN:
            self._is_open.set()

    async def run(self) -> None:
        """Pass frames to their streams until the connection has ended for good; the reader task of `connect`."""
        try:
            await self._read()
            while self._backoff is not None and await self._comes_back(self._backoff):
                await self._read()
        finally:
            self._has_ended = True
            self._protocol.close()
            self._is_open.set()
            for task in self._later:
                task.cancel()

    async def cancel_kept(self) -> None:
        """Cancel the open answers that the server would keep; the next connection does, if this one is away. Called by
        `connect`.
        """
        kept = [stream for stream in self._protocol.streams.values() if stream.key is not None]
        for frame in filter(None, [stream.cancel_frame() for stream in kept]):
            with contextlib.suppress(ConnectionLost):
                await self.send(frame)
        if kept:
            with self.reading(), contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WAIT_S):
                    await self._is_open.wait()

    async def close(self) -> None:
        """Close the connection. Called by `connect`."""
        await self._websocket.close()

    async def _resume_after(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        if self._is_open.is_set():  # else the next connection does
            with contextlib.suppress(ConnectionLost):
                await self._resume()

    async def _resume(self) -> None:
        for frame in self._protocol.resume():
            await self.send(frame)

    async def _read(self) -> None:
        """Pass frames to their streams until the connection is lost, and note the loss."""
        try:
            async for message in self._websocket:
                self._num_attempts = 0
                for answer in self._protocol.receive(orjson.loads(message)):
                    with contextlib.suppress(ConnectionLost):
                        await self.send(answer)
            self.loss = ConnectionLost(self._websocket.close_code or 1006, self._websocket.close_reason or "")
        except ConnectionClosed as closed:
            self.loss = loss_of(closed)

    async def _comes_back(self, backoff: Backoff) -> bool:
        """Connect again, and let the answers go on; return whether that was possible."""
        comeback = comeback_after(self.loss.close_code)
        if comeback is Comeback.NEVER:
            return False
        self._is_open.clear()
        self._on_lost()
        self._protocol.suspend()
        if comeback is Comeback.WHEN_READ:
            await self._has_reader.wait()
        lost = self.loss
        then = f"There was no other one for {backoff.give_up_s:.0f} s."
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(backoff.give_up_s):
                while comeback is not Comeback.NEVER:
                    await asyncio.sleep(backoff.delay(self._num_attempts, comeback))
                    self._num_attempts += 1
                    try:
                        await self.open()
                        return True
                    except ServerRefused as refused:
                        comeback, then = comeback_after_status(refused.http_status), str(refused)
                    except ConnectionLost as again:
                        comeback = comeback_after(again.close_code)
                        then = f"The next one was closed: {again.reason or again.close_code}."
                    except OSError:
                        comeback = Comeback.SOON
        self.loss = ConnectionLost(lost.close_code, lost.reason, then)
        return False


@contextlib.asynccontextmanager
async def connect(
    url: str,
    key: str | None = None,
    *,
    reconnect: bool | Backoff = False,
    on_lost: Callable[[], None] = lambda: None,
) -> AsyncIterator[ChatClient]:
    """Connect to a server (`http://host:port`, or the `ws://` URL of its WebSocket) for the duration of a block.

    With `reconnect` a connection that is lost later is opened again, and its answers go on; it is given up when there
    was none for 60 s, or a `Backoff` says otherwise. `on_lost` is called each time before that.

    Raises:
        ConfigurationError: `url` is no URL of a server.
        ServerRefused: the server rejected the WebSocket (with its status and error code).
        ConnectionLost: the server closed the connection at once (4401: wrong key).
        OSError: the server cannot be reached.
    """
    address = str(read_base_url(url, "url")).replace("http", "ws", 1) + "/ws"
    usual = Backoff() if reconnect else None
    client = ChatClient(address, key, reconnect if isinstance(reconnect, Backoff) else usual, on_lost)
    await client.open()
    reader = asyncio.create_task(client.run(), name="quire-client-reader")
    try:
        yield client
    finally:
        await client.cancel_kept()
        reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reader
        await client.close()
