"""Answers of a running server, for `quire chat`: over server-sent events or over quire.v1.

Both are ordinary iterators of text deltas. A conversation that ends with an answer gets more of it. Leaving the
iteration (Ctrl-C) closes the connection or cancels the stream, and the server stops generating.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from typing import Any

from app.client.client import ServerRefused, connect
from app.commands.dialog.responder import ModelChoice
from app.commands.streamed_text import AnswerEnd, Messages, TextStream, iterate
from app.config.base_url import BaseUrl
from app.config.nearest import nearest
from app.contract.errors import CannotStart, ConfigurationError
from app.streaming.sse_format import SseDecoder

TIMEOUT_S = 600
FIRST_TIMEOUT_S = 10
_CHUNK = 16384
_KEY_STATUSES = (401, 403)

Answer = Callable[[Messages, dict[str, Any]], TextStream]
"""Takes a conversation and the other fields of a request, and yields the answer."""


class RemoteModels:
    """Implements `Responder` for a server, which is asked at once what it has.

    Raises:
        CannotStart: the server cannot be reached.
        ServerRefused: it rejects the API key.
        ConfigurationError: it does not have the model `name`.
    """

    def __init__(self, url: BaseUrl, key: str | None, answer: Answer, fields: dict[str, Any], name: str | None) -> None:
        self._url = url
        self._key = key
        self._answer = answer
        self._fields = fields
        self._models = listed_models(url, key)
        self._model = self._models[0] if self._models else ModelChoice("the server's model")
        if name is not None:
            self.use(name)

    @property
    def model(self) -> ModelChoice:
        """See Responder.model."""
        return self._model

    def answer(self, messages: Messages) -> TextStream:
        """See Responder.answer."""
        named = {"model": self._model.name} if self._models else {}
        return self._answer(messages, named | self._fields)

    def models(self) -> Sequence[ModelChoice]:
        """See Responder.models: those that the server lists now."""
        self._models = listed_models(self._url, self._key)
        return self._models

    def use(self, name: str) -> None:
        """See Responder.use."""
        found = {model.name: model for model in self.models()}
        if found and name not in found:
            known = ", ".join(found)
            raise ConfigurationError(f"the server has no model {name!r}{nearest(name, found)}; it lists {known}")
        self._model = found.get(name, ModelChoice(name))


def listed_models(url: BaseUrl, key: str | None) -> list[ModelChoice]:
    """Return the models that a server lists; none if it cannot say, for example while it loads one.

    Raises:
        CannotStart: the server cannot be reached.
        ServerRefused: it rejects the API key.
    """
    connection = _connection(url, FIRST_TIMEOUT_S)
    try:
        connection.request("GET", f"{url.path}/v1/models", headers=_authorization(key))
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, error) from None
    finally:
        connection.close()
    if response.status in _KEY_STATUSES:
        raise _rejection(response.status, body)
    try:
        return [ModelChoice(str(model["id"]), _count(model.get("max_model_len"))) for model in json.loads(body)["data"]]
    except (ValueError, LookupError, TypeError, AttributeError):
        return []


def sse_answer(url: BaseUrl, key: str | None, messages: Messages, fields: dict[str, Any]) -> TextStream:
    """Yield the answer of a server to a conversation, by `POST /v1/chat/completions`.

    Raises:
        CannotStart: the server cannot be reached.
        ServerRefused: the server returned an error.
    """
    connection = _connection(url, TIMEOUT_S)
    headers = {"content-type": "application/json", **_authorization(key)}
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    body = json.dumps({"messages": list(messages), **streaming, **fields, **_continuing(messages)})
    try:
        connection.request("POST", f"{url.path}/v1/chat/completions", body, headers)
        response = connection.getresponse()
        if response.status != 200:
            raise _rejection(response.status, response.read())
        end = AnswerEnd()
        yield from _deltas(response, end)
        return end
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, error) from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ServerRefused(f"the server's answer is not that of an OpenAI-compatible API: {error!r:.200}") from None
    finally:
        connection.close()


def websocket_answer(
    runner: asyncio.Runner,
    url: BaseUrl,
    key: str | None,
    messages: Messages,
    fields: dict[str, Any],
    note: Callable[[str], None] = lambda text: None,
) -> TextStream:
    """Yield the same over quire.v1, with one connection per answer; `note` is called with a notice for the user.

    `runner` is the event loop to use. It runs only while a delta is requested: a terminal that is stopped (Ctrl-S)
    makes the server pause the stream, and disconnect after its stall timeout. Raises as `sse_answer`, and

    Raises:
        ConnectionLost: the connection ended before the answer.
    """
    end = AnswerEnd()

    async def deltas() -> AsyncGenerator[str, None]:
        sent = {**fields, **_continuing(messages)}
        async with connect(str(url), key) as client, await client.chat(messages, **sent) as answer:
            async for delta in answer:
                yield delta
            end.finish_reason, end.stop_reason = answer.finish_reasons.get(0), answer.stop_reasons.get(0)
            _count_usage(end, answer.usage)
            if client.is_draining:
                note("the server is shutting down and accepts no new questions")

    try:
        yield from iterate(runner, deltas())
        return end
    except OSError as error:
        raise _unreachable(url, error) from None


def _continuing(messages: Messages) -> dict[str, bool]:
    """Return the fields that continue the answer at the end of a conversation, if there is one."""
    goes_on = messages[-1]["role"] == "assistant"
    return {"continue_final_message": True, "add_generation_prompt": False} if goes_on else {}


def _connection(url: BaseUrl, timeout_s: float) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    return kind(url.host, url.port, timeout=timeout_s)


def _authorization(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def _deltas(response: http.client.HTTPResponse, end: AnswerEnd) -> Generator[str, None, None]:
    decoder = SseDecoder()
    while chunk := response.read1(_CHUNK):
        for data in decoder.feed(chunk):
            if data == "[DONE]":
                return
            fields = json.loads(data)
            if "error" in fields:
                raise _rejection(500, data.encode())
            _count_usage(end, fields.get("usage"))
            for choice in fields["choices"]:
                end.finish_reason = choice.get("finish_reason") or end.finish_reason
                end.stop_reason = choice.get("stop_reason") or end.stop_reason
                yield choice["delta"].get("content") or ""
    if end.finish_reason is None:
        raise ServerRefused("the connection to the server was lost before the end of the answer")


def _count_usage(end: AnswerEnd, usage: dict[str, Any] | None) -> None:
    if usage is not None:
        end.prompt_tokens = _count(usage.get("prompt_tokens"))
        end.completion_tokens = _count(usage.get("completion_tokens"))


def _count(given: object) -> int | None:
    """Return a number that a server has sent; None for anything else."""
    return given if isinstance(given, int) else None


def _rejection(status: int, body: bytes) -> ServerRefused:
    try:
        error = json.loads(body)["error"]
        return ServerRefused(str(error["message"]), code=error["code"], status=status, param=error["param"])
    except (ValueError, KeyError, TypeError):
        return ServerRefused(f"the server returned status {status}", status=status)


def _unreachable(url: BaseUrl, error: Exception) -> CannotStart:
    return CannotStart(f"cannot reach {url} ({error}); start a server with `quire serve`, or use --model", param="url")
