"""`/v1/responses` as a WebSocket, which this server does not have: clients then send the request over HTTP."""

from __future__ import annotations

from starlette.websockets import WebSocket

from app.api.http.middleware import reject
from app.contract.errors import NoWebSocketHere


async def refuse_socket(websocket: WebSocket) -> None:
    """Refuse a WebSocket with 426, after which Codex goes on over HTTP at once."""
    error = NoWebSocketHere("There is no WebSocket at /v1/responses; send the request as a POST.")
    await reject(error, websocket.scope, websocket.receive, websocket.send)
