"""The connection that handlers get: the number of unread bytes, abort, and the kernel's timeout."""

import asyncio
import socket

import pytest

from app.api.http.connection import connection_of
from tests.server.wire import HANG_S, HOST, handshake, on_uvloop, served, until

SIZE = 4 * 1024 * 1024
GET = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"


class FloodingApp:
    """An application that keeps its connection in an attribute, and sends more than any buffer holds."""

    def __init__(self, app):
        self.connection = None
        self.unread_at_first = None
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        self.connection = connection_of(scope)
        self.unread_at_first = self.connection.unread_bytes()
        piece = b"x" * 1024
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            while True:
                await send({"type": "websocket.send", "bytes": piece})
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(SIZE // len(piece)):
            await send({"type": "http.response.body", "body": piece, "more_body": True})


async def stalled(server, app, request):
    """A client that has sent its request and reads nothing; returned when the buffers are full."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, server.address)
    await loop.sock_sendall(client, request)
    await until(lambda: app.connection is not None and app.connection.unread_bytes() > 4096)
    return client


@pytest.mark.parametrize("request_bytes", [GET, handshake()], ids=["http", "websocket"])
@on_uvloop
async def test_unread_bytes_are_bounded_and_fall_to_zero_with_the_connection(request_bytes):
    apps = []
    async with served(wrap=lambda app: apps.append(FloodingApp(app)) or apps[0]) as server:
        client = await stalled(server, apps[0], request_bytes)
        before = -1
        while (now := apps[0].connection.unread_bytes()) != before:
            before = now
            await asyncio.sleep(0.05)
        assert apps[0].unread_at_first == 0
        assert 4096 < now < 256 * 1024
        client.close()
        await until(lambda: server.num_connections == 0)
        assert apps[0].connection.unread_bytes() == 0


@pytest.mark.parametrize("request_bytes", [GET, handshake()], ids=["http", "websocket"])
@on_uvloop
async def test_an_abort_resets_the_connection_at_once(request_bytes):
    apps = []
    async with served(wrap=lambda app: apps.append(FloodingApp(app)) or apps[0]) as server:
        client = await stalled(server, apps[0], request_bytes)
        apps[0].connection.abort()
        apps[0].connection.abort()
        await until(lambda: server.num_connections == 0)
        with pytest.raises(ConnectionResetError):
            async with asyncio.timeout(HANG_S):
                while await asyncio.get_running_loop().sock_recv(client, 65536):
                    pass
        client.close()


@on_uvloop
async def test_the_kernels_user_timeout_is_switched_off_and_on_again():
    apps = []
    async with served(wrap=lambda app: apps.append(FloodingApp(app)) or apps[0], stall_timeout=50) as server:
        client = await stalled(server, apps[0], GET)
        connection = apps[0].connection
        peer = connection._transport.get_extra_info("socket")
        found = []
        for is_on in (False, False, True, True):
            connection.set_kernel_patience(is_on=is_on)
            found.append(peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
        assert found == [0, 0, 60_000, 60_000]
        client.close()
        await until(lambda: connection.unread_bytes() == 0)
        connection.set_kernel_patience(is_on=True)  # on a closed connection, this does nothing
