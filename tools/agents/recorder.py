"""Records the shapes of the requests that reach an application, and what became of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tools.agents.shapes import shape_of

MAX_ERROR_BYTES = 2000


class Recorder:
    """The same application, which appends a line of JSON to a file for each request and frame. Loop only."""

    def __init__(self, app: ASGIApp, file: Path) -> None:
        self._app = app
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, a WebSocket, or the life of the application."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, error = bytearray(), bytearray()
        record = _head(scope)

        def note_response(message: Message) -> None:
            if message["type"] == "http.response.start":
                record["status"] = message["status"]
                record["ignored"] = _header(message["headers"], b"x-quire-ignored")
            elif record["status"] >= 400:
                error.extend(message.get("body", b"")[:MAX_ERROR_BYTES])

        try:
            await self._app(
                scope,
                _noting(receive, lambda message: body.extend(message.get("body", b""))),
                _told(send, note_response),
            )
        finally:
            self._write(
                {**record, **({"error": error.decode(errors="replace")} if error else {}), **_body(bytes(body))}
            )

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = _head(scope)

        def note_frame(message: Message) -> None:
            if message["type"] == "websocket.receive":
                self._write({**head, "method": "FRAME", **_body((message.get("text") or "").encode())})

        def note_close(message: Message) -> None:
            if message["type"] == "websocket.close":
                self._write({**head, "method": "CLOSE", "status": message.get("code", 1000)})
            elif message["type"] == "websocket.http.response.start":  # instead of a WebSocket
                self._write({**head, "status": message["status"]})

        await self._app(scope, _noting(receive, note_frame), _told(send, note_close))

    def _write(self, record: dict[str, Any]) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(record) + "\n")


def _head(scope: Scope) -> dict[str, Any]:
    headers = {name.decode("latin-1") for name, _ in scope["headers"]}
    return {
        "method": scope.get("method", "SOCKET"),
        "path": scope["path"],
        "query": scope["query_string"].decode("latin-1"),
        "headers": sorted(headers),
    }


def _header(headers: list[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key.lower() == name]


def _body(body: bytes) -> dict[str, Any]:
    if not body:
        return {}
    try:
        return {"bytes": len(body), "body": shape_of(json.loads(body))}
    except ValueError:
        return {"bytes": len(body), "body": "no JSON"}


def _noting(receive: Receive, note: Callable[[Message], object]) -> Receive:
    async def noting() -> Message:
        message = await receive()
        note(message)
        return message

    return noting


def _told(send: Send, note: Callable[[Message], object]) -> Send:
    async def telling(message: Message) -> None:
        note(message)
        await send(message)

    return telling
