"""Answers of a server that runs elsewhere, for `quire chat`: over server-sent events or over quire.v1.

Both yield pieces of text like any iterator; leaving the iteration (Ctrl-C) closes the connection or cancels the
stream, and the server stops generating.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import urllib.parse
from collections.abc import AsyncGenerator, Callable
from typing import Any

from app.client.client import ServerRefused, connect
from app.commands.streamed_text import Messages, Pieces, iterate
from app.contract.errors import CannotStart, ConfigurationError
from app.streaming.sse_format import SseDecoder

TIMEOUT_S = 600
_CHUNK = 16384


def sse_answer(url: str, key: str | None, messages: Messages, fields: dict[str, Any]) -> Pieces:
    """Yield the answer of `url` (`http://host:port`) to a conversation, by `POST /v1/chat/completions`.

    Raises:
        ConfigurationError: `url` is no HTTP address.
        CannotStart: nobody listens there.
        ServerRefused: the server has answered with an error.
    """
    connection, path = _open(url)
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    body = json.dumps({"messages": list(messages), "stream": True, **fields})
    try:
        connection.request("POST", f"{path}/v1/chat/completions", body, headers)
        response = connection.getresponse()
        if response.status != 200:
            raise _refusal(response.status, response.read())
        yield from _pieces(response)
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, error) from None
    finally:
        connection.close()


def websocket_answer(
    runner: asyncio.Runner,
    url: str,
    key: str | None,
    messages: Messages,
    fields: dict[str, Any],
    note: Callable[[str], None] = lambda text: None,
) -> Pieces:
    """Yield the same over quire.v1, one connection per answer; `note` gets what the reader should know at its end.

    `runner` is the event loop to use. It runs only while a piece is asked for, so a terminal that is held (Ctrl-S)
    makes the server pause, and cut the answer after its stall timeout. Raises as above, and

    Raises:
        ConnectionLost: the connection has ended before the answer.
    """

    async def pieces() -> AsyncGenerator[str, None]:
        async with connect(url, key) as client, await client.chat(messages, **fields) as answer:
            async for piece in answer:
                yield piece
            if client.is_draining:
                note("the server is stopping and takes no new questions until it is back")

    try:
        yield from iterate(runner, pieces())
    except OSError as error:
        raise _unreachable(url, error) from None


def _open(url: str) -> tuple[http.client.HTTPConnection, str]:
    parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
    kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    if parts.scheme not in kinds or not parts.hostname:
        raise ConfigurationError(f"--url is {url!r}; it must look like http://127.0.0.1:8000", param="url")
    return kinds[parts.scheme](parts.hostname, parts.port, timeout=TIMEOUT_S), parts.path.rstrip("/")


def _pieces(response: http.client.HTTPResponse) -> Pieces:
    decoder = SseDecoder()
    while chunk := response.read1(_CHUNK):
        for event in decoder.feed(chunk):
            if event.data == "[DONE]":
                return
            fields = json.loads(event.data)
            if "error" in fields:
                raise _refusal(500, event.data.encode())
            for choice in fields["choices"]:
                yield choice["delta"].get("content") or ""


def _refusal(status: int, body: bytes) -> ServerRefused:
    try:
        error = json.loads(body)["error"]
        return ServerRefused(error["message"], code=error["code"], status=status, param=error["param"])
    except (ValueError, KeyError, TypeError):
        return ServerRefused(f"the server has answered with status {status}", status=status)


def _unreachable(url: str, error: Exception) -> CannotStart:
    return CannotStart(f"cannot talk with {url} ({error}); start one with `quire serve`, or use --model", param="url")
