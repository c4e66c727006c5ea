"""A client of a server's API, also for responses that are not streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httptools
import orjson

from app.loadgen.load_client import Client

MAX_BODY_BYTES = 4 << 20


class ApiClient(Client):
    """Sends requests to one server; the time limit is that of a complete exchange."""

    async def get(self, path: str) -> Body:
        """Return the response to a GET. Raises OSError as `exchange`, and TimeoutError."""
        return await self._fetch(self._target.head("GET", path).encode() + b"\r\n")

    async def post(self, path: str, fields: Mapping[str, Any]) -> Body:
        """Return the response to a POST of JSON. Raises as `get`."""
        return await self._fetch(self._target.post(path, orjson.dumps(fields)))

    async def delete(self, path: str) -> Body:
        """Return the response to a DELETE. Raises as `get`."""
        return await self._fetch(self._target.head("DELETE", path).encode() + b"\r\n")

    async def _fetch(self, message: bytes) -> Body:
        body = Body()
        async with asyncio.timeout(self._timeout_s):
            await self.exchange(message, body)
        return body


class Body:
    """Parses an answer that is not streamed.

    Attributes:
        is_over: no more bytes are needed.
        status: 0 if the answer is not HTTP.
        content: the body; it is over after MAX_BODY_BYTES.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.status = 0
        self.content = b""
        self._http = httptools.HttpResponseParser(self)

    def connected(self, now: float) -> None:
        """Do nothing."""

    def feed(self, piece: bytes, now: float) -> None:
        try:
            self._http.feed_data(piece)
        except httptools.HttpParserError:
            self.status, self.is_over = 0, True

    def on_headers_complete(self) -> None:
        """Note the status; called by the parser."""
        self.status = self._http.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Keep the next bytes; called by the parser."""
        self.content += body
        self.is_over |= len(self.content) > MAX_BODY_BYTES

    def on_message_complete(self) -> None:
        """Note the end; called by the parser."""
        self.is_over = True
