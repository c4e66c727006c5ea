"""How every WebSocket begins: refused as a request would be, or accepted with its subprotocol."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from starlette.websockets import WebSocket, WebSocketDisconnect

from app.api.http.context import ApiContext, context_of
from app.api.http.cors import check_origin
from app.api.http.middleware import reject
from app.contract.engine_status import EngineState
from app.contract.errors import Draining, QuireError
from app.streaming.chat_table import CLOSE_SUBPROTOCOL


async def open_socket(
    websocket: WebSocket,
    protocol: str | None,
    serve: Callable[[ApiContext], Awaitable[None]],
    check: Callable[[ApiContext], object] = lambda context: None,
) -> None:
    """Accept a WebSocket and `serve` it, if its client speaks `protocol`; None is a path without subprotocols. Loop
    only; a key in the headers has been checked already. A `QuireError` of `check` refuses it.
    """
    context = context_of(websocket)
    try:
        check_origin(websocket.headers, context.config.server)
        check(context)
        if context.engine.health().state is EngineState.DRAINING:
            raise Draining("The server is shutting down and takes no new connections.")
    except QuireError as error:
        await reject(error, websocket.scope, websocket.receive, websocket.send)
        return
    with contextlib.suppress(OSError, WebSocketDisconnect):  # the client disconnected before its accept
        if protocol is None or protocol in websocket.scope["subprotocols"]:
            await websocket.accept(subprotocol=protocol)
            await serve(context)
        else:
            await websocket.accept()
            await websocket.close(CLOSE_SUBPROTOCOL, f"the subprotocol must be {protocol}")
