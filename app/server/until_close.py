"""Responses to clients of HTTP/1.0, which knows neither chunks nor `100 Continue`.

A body ends where its length says, or where the connection does.
"""

from __future__ import annotations

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

VERSION = "1.0"


class UntilClose:
    """The `send` of a request of HTTP/1.0. uvicorn closes its connection after the response. Event loop only."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._has_length = False
        cycle.waiting_for_100_continue = False

    async def __call__(self, message: ASGISendEvent) -> None:
        """Send a part of the response; without a length, each part of the body is as long as it is said to be."""
        if message["type"] == "http.response.start":
            self._has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", []))
            if not self._has_length:
                self._cycle.chunked_encoding = False
        elif message["type"] == "http.response.body" and not self._has_length:
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)
