"""One connection of quire.v1 on the client's side: it is opened, and its ends are errors."""

from __future__ import annotations

import asyncio

import orjson
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from app.client.protocol import PROTOCOL, ClientProtocol, Frame
from app.contract.errors import CannotStart, QuireError, RateLimitExceeded, ServiceUnavailable

WELCOME_TIMEOUT_S = 10.0
_PASSING = (RateLimitExceeded.http_status, ServiceUnavailable.http_status)
_REASONS = {
    1006: "It was not closed by the server.",
    1012: "The server has shut down; connect again later.",
    4499: "The server disconnected, because this client did not read an answer within the stall timeout.",
}


class ServerRefused(QuireError):
    """The server returned an error; `code` and `http_status` are the server's.

    A command ends as one that cannot start now if the error will pass, as while the server loads its model.
    """

    def __init__(
        self, message: str, *, code: str = "engine_error", status: int = 500, param: str | None = None
    ) -> None:
        super().__init__(message, param=param)
        self.code = code
        self.http_status = status
        if status in _PASSING:
            self.exit_code = CannotStart.exit_code


class ConnectionLost(QuireError):
    """The connection ended before the answer; `close_code` is the reason (1006: no close frame was received).

    `then` says why it did not come back.
    """

    def __init__(self, close_code: int, reason: str, then: str = "") -> None:
        reason = _REASONS.get(close_code, reason)
        super().__init__(f"The connection to the server was lost (close code {close_code}). {reason} {then}".rstrip())
        self.close_code = close_code
        self.reason = reason


async def open_connection(address: str, key: str | None, protocol: ClientProtocol) -> ClientConnection:
    """Return a connection to the WebSocket at `address` whose welcome `protocol` has.

    Raises:
        ServerRefused: the server rejected the WebSocket (with its status and error code).
        ConnectionLost: the server closed the connection at once (4401: wrong key).
        OSError: the server cannot be reached, or does not answer.
    """
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
    except InvalidHandshake as broken:
        raise ConnectionAbortedError(f"the handshake of the WebSocket failed: {broken}") from None
    try:
        async with asyncio.timeout(WELCOME_TIMEOUT_S):
            await _send(websocket, protocol.hello(key))
            while not protocol.welcome:
                for frame in protocol.receive(orjson.loads(await websocket.recv())):
                    await _send(websocket, frame)
    except BaseException as error:
        await websocket.close()
        if isinstance(error, ConnectionClosed):
            raise loss_of(error) from None
        raise
    return websocket


def loss_of(closed: ConnectionClosed) -> ConnectionLost:
    """Return the error of a connection that has ended."""
    return ConnectionLost(closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else ConnectionLost(1006, "")


async def _send(websocket: ClientConnection, frame: Frame) -> None:
    await websocket.send(orjson.dumps(frame).decode())


def _denial(rejected: InvalidStatus) -> ServerRefused:
    status = rejected.response.status_code
    try:
        body = orjson.loads(rejected.response.body or b"")["error"]
        return ServerRefused(body["message"], code=body["code"], status=status, param=body["param"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = f"The server rejected the connection with status {status}."
        return ServerRefused(message, code="engine_error", status=status)
