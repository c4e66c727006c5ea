"""`/v1/responses` as a WebSocket: one response after another on one connection."""

from __future__ import annotations

from starlette.websockets import WebSocket

from app.api.http.context import ApiContext
from app.api.http.socket_opening import open_socket
from app.api.responses.responses_socket import ResponsesSocket


async def responses_endpoint(websocket: WebSocket) -> None:
    """Serve one WebSocket on `/v1/responses`; a key in the headers has been checked already."""

    async def serve(context: ApiContext) -> None:
        await ResponsesSocket(websocket, context).run()

    await open_socket(websocket, None, serve)
