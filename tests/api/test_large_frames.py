"""Large frames of both kinds of sockets: behind those that are rejected the heap is trimmed, too."""

import json
from contextlib import suppress
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from app.api.body.parse_request import MAX_SMALL_BYTES
from tests.api.chat_client import HELLO
from tests.api.serving import make_app, serving

SMALL, LARGE = "x", "x" * (MAX_SMALL_BYTES + 1)


class NotedFrames:
    """Stands for the heap's trimmer, and counts what is noted."""

    num_noted = 0

    def note_large(self) -> None:
        self.num_noted += 1

    def close(self) -> None:
        """Nothing is to be ended."""


async def exchange(socket: ClientConnection, sent: str) -> str:
    """Send a frame, and return the first answer that is no heartbeat, or how the connection was closed."""
    await socket.send(sent)
    with suppress(ConnectionClosed):
        while (found := str(await socket.recv())).startswith('{"t":"ping"'):
            pass
        return found
    return f"closed {socket.close_code}"


@pytest.mark.parametrize(
    ("path", "subprotocols", "hello", "rejected"),
    [
        ("/ws", ["quire.v1"], HELLO, {"t": "nonsense"}),
        ("/ws", ["quire.v1"], HELLO, {"t": "start", "id": "", "request": {}}),
        ("/v1/responses", None, None, {"type": "nonsense"}),
    ],
    ids=["quire.v1", "quire.v1's start", "responses"],
)
async def test_a_large_frame_that_is_rejected_is_noted(
    path: str, subprotocols: Any, hello: dict[str, Any] | None, rejected: dict[str, Any]
):
    app = await make_app()
    noted = app.state.context.heap = NotedFrames()
    async with (
        serving(app) as url,
        connect(url.replace("http", "ws") + path, subprotocols=subprotocols, compression=None, proxy=None) as socket,
    ):
        if hello is not None:
            assert "welcome" in await exchange(socket, json.dumps(hello))
        assert "error" in await exchange(socket, json.dumps({**rejected, "padding": SMALL}))
        assert noted.num_noted == 0
        assert "error" in await exchange(socket, json.dumps({**rejected, "padding": LARGE}))
        assert noted.num_noted == 1


async def test_a_large_frame_that_closes_the_socket_is_noted():
    app = await make_app()
    noted = app.state.context.heap = NotedFrames()
    async with (
        serving(app) as url,
        connect(url.replace("http", "ws") + "/ws", subprotocols=["quire.v1"], compression=None, proxy=None) as socket,
    ):
        await exchange(socket, json.dumps(HELLO))
        assert await exchange(socket, LARGE) == "closed 4400"
    assert noted.num_noted == 1
