"""Answers of a running server, for `quire chat`: over server-sent events or over quire.v1.

Both are ordinary iterators of text deltas. A conversation that ends with an answer gets more of it. Leaving the
iteration (Ctrl-C) closes the connection or cancels the stream, and the server stops generating.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import urllib.parse
from collections.abc import AsyncGenerator, Callable
from typing import Any

from app.client.client import ServerRefused, connect
from app.commands.answer_end import OnEnd, ignore_end
from app.commands.streamed_text import Messages, TextStream, iterate
from app.contract.errors import CannotStart, ConfigurationError
from app.streaming.sse_format import SseDecoder

TIMEOUT_S = 600
_CHUNK = 16384


def sse_answer(
    url: str, key: str | None, messages: Messages, fields: dict[str, Any], on_end: OnEnd = ignore_end
) -> TextStream:
    """Yield the answer of `url` (`http://host:port`) to a conversation, by `POST /v1/chat/completions`.

    Raises:
        ConfigurationError: `url` is not an HTTP URL.
        CannotStart: the server cannot be reached.
        ServerRefused: the server returned an error.
    """
    connection, path = _open(url)
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    body = json.dumps({"messages": list(messages), "stream": True, **fields, **_continuing(messages)})
    try:
        connection.request("POST", f"{path}/v1/chat/completions", body, headers)
        response = connection.getresponse()
        if response.status != 200:
            raise _rejection(response.status, response.read())
        yield from _deltas(response, on_end)
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
    on_end: OnEnd = ignore_end,
) -> TextStream:
    """Yield the same over quire.v1, with one connection per answer; `note` is called with a notice for the user.

    `runner` is the event loop to use. It runs only while a delta is requested: a terminal that is stopped (Ctrl-S)
    makes the server pause the stream, and disconnect after its stall timeout. Raises as `sse_answer`, and

    Raises:
        ConnectionLost: the connection ended before the answer.
    """

    async def deltas() -> AsyncGenerator[str, None]:
        sent = {**fields, **_continuing(messages)}
        async with connect(url, key) as client, await client.chat(messages, **sent) as answer:
            async for delta in answer:
                yield delta
            on_end(answer.finish_reasons.get(0), answer.stop_reasons.get(0))
            if client.is_draining:
                note("the server is shutting down and accepts no new questions")

    try:
        yield from iterate(runner, deltas())
    except OSError as error:
        raise _unreachable(url, error) from None


def _continuing(messages: Messages) -> dict[str, bool]:
    """Return the fields that continue the answer at the end of a conversation, if there is one."""
    goes_on = messages[-1]["role"] == "assistant"
    return {"continue_final_message": True, "add_generation_prompt": False} if goes_on else {}


def _open(url: str) -> tuple[http.client.HTTPConnection, str]:
    parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
    kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    if parts.scheme not in kinds or not parts.hostname:
        raise ConfigurationError(f"--url is {url!r}; it must be a URL such as http://127.0.0.1:8000", param="url")
    return kinds[parts.scheme](parts.hostname, parts.port, timeout=TIMEOUT_S), parts.path.rstrip("/")


def _deltas(response: http.client.HTTPResponse, on_end: OnEnd) -> TextStream:
    decoder = SseDecoder()
    while chunk := response.read1(_CHUNK):
        for data in decoder.feed(chunk):
            if data == "[DONE]":
                return
            fields = json.loads(data)
            if "error" in fields:
                raise _rejection(500, data.encode())
            for choice in fields["choices"]:
                yield choice["delta"].get("content") or ""
                if choice.get("finish_reason") is not None:
                    on_end(choice["finish_reason"], choice.get("stop_reason"))


def _rejection(status: int, body: bytes) -> ServerRefused:
    try:
        error = json.loads(body)["error"]
        return ServerRefused(error["message"], code=error["code"], status=status, param=error["param"])
    except (ValueError, KeyError, TypeError):
        return ServerRefused(f"the server returned status {status}", status=status)


def _unreachable(url: str, error: Exception) -> CannotStart:
    return CannotStart(f"cannot reach {url} ({error}); start a server with `quire serve`, or use --model", param="url")
