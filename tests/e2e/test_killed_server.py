"""A server that is killed serves nobody, also not who connects at that moment: else a page would call it reachable."""

import asyncio
import contextlib
import socket

import pytest

from tests.api.serving import until
from tests.e2e.scripted import ScriptedServer

pytestmark = pytest.mark.asyncio(loop_scope="session")
REQUEST = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("attempt", range(4))  # without the last cut about half of them find a connection that lives
async def test_no_connection_outlives_the_server(attempt: int) -> None:
    server = ScriptedServer()
    await server.listen()
    await until(lambda: server._server.started)
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    connections: list[socket.socket] = []
    is_over = False

    def connect() -> None:
        """Connect in every turn of the loop, until that is refused."""
        with contextlib.suppress(OSError):
            connections.append(socket.create_connection(address, timeout=1))
            if not is_over:
                asyncio.get_running_loop().call_soon(connect)

    connect()
    await until(lambda: len(connections) > 3)
    await server.kill()
    is_over = True
    for connection in connections:
        with connection, contextlib.suppress(ConnectionError):
            connection.sendall(REQUEST)
            assert await asyncio.to_thread(connection.recv, 1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=1)
