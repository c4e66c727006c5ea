"""Answers of a running server, for `quire chat`: over server-sent events or over quire.v1.

Both are ordinary iterators of text deltas. A conversation that ends with an answer gets more of it. Leaving the
iteration (Ctrl-C) closes the connection or cancels the stream, and the server stops generating.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, NamedTuple

from app.client.client import connect
from app.client.comeback import Backoff
from app.client.opening import ServerRefused
from app.commands.answers.answer_limits import CHAT_LIMITS
from app.commands.answers.openai_answer import count_of, count_usage, read_answer
from app.commands.answers.server_connection import (
    NO_KEY,
    NO_ROUTE,
    authorization,
    connection_to,
    gone,
    key_refused,
    no_api,
    unreachable,
)
from app.commands.answers.server_errors import refusal
from app.commands.answers.streamed_text import AnswerEnd, Messages, TextStream, iterate
from app.commands.dialog.responder import ModelChoice
from app.config.base_url import BaseUrl
from app.config.nearest import nearest
from app.contract.errors import CannotStart, ConfigurationError, StreamNotFound

TIMEOUT_S = 600
COMEBACK = Backoff(give_up_s=30.0)
FIRST_TIMEOUT_S = 10
_FORBIDDEN = 403
_MAX_BYTES = 65536  # of an error
Unreached = Callable[[BaseUrl, Exception], CannotStart]
"""Makes the error of a server that cannot be reached."""

Answer = Callable[[Messages, dict[str, Any]], TextStream]
"""Takes a conversation and the other fields of a request, and yields the answer."""


class Listing(NamedTuple):
    """The models that a server lists, and whether it is Quire, which knows fields that others reject.

    A server without such a route never `can_list` them; one that loads its model can, later. `has_route`: whether it
    may have it.
    """

    models: Sequence[ModelChoice] = ()
    is_quire: bool = False
    can_list: bool = True
    has_route: bool = True


class RemoteModels:
    """Implements `Responder` for a server, which is asked at once what it has.

    Raises:
        CannotStart: the server cannot be reached.
        ServerRefused: it rejects all requests of this machine.
        ConfigurationError: it rejects the API key, has no such API, or does not have the model `name`.
    """

    def __init__(self, url: BaseUrl, key: str | None, answer: Answer, fields: dict[str, Any], name: str | None) -> None:
        self._url = url
        self._key = key
        self._answer = answer
        self._fields = fields
        self._chosen: ModelChoice | None = None
        self._listing = listed_models(url, key, unreached)
        if not self._listing.has_route and not _can_answer(url, key):
            raise no_api(url)
        if name is not None:
            self._choose(name)

    @property
    def model(self) -> ModelChoice:
        return self._chosen or next(iter(self._listing.models), ModelChoice("the server's model"))

    def answer(self, messages: Messages) -> TextStream:
        if not self._listing.models and self._listing.can_list:  # it may have been loading one
            self._listing = listed_models(self._url, self._key)
        named = {"model": self.model.name} if self._chosen or self._listing.models else {}
        fields = {**CHAT_LIMITS, **self._fields}
        if not self._listing.is_quire:  # others refuse requests with fields that they do not know
            fields = {name: value for name, value in fields.items() if name not in CHAT_LIMITS}
        return self._answer(messages, {**named, **fields})

    def models(self) -> Sequence[ModelChoice]:
        """Return the models that the server lists now."""
        self._listing = listed_models(self._url, self._key)
        return self._listing.models

    def use(self, name: str) -> None:
        self._listing = listed_models(self._url, self._key)
        self._choose(name)

    def _choose(self, name: str) -> None:
        found = {model.name: model for model in self._listing.models}
        if found and name not in found:
            known = ", ".join(found)
            raise ConfigurationError(f"the server has no model {name!r}{nearest(name, found)}; it lists {known}")
        self._chosen = found.get(name, ModelChoice(name))


def unreached(url: BaseUrl, error: Exception) -> CannotStart:
    """Return the error of a server that has not answered yet."""
    return unreachable(url, error, ", or leave --url out to load a model in this process")


def listed_models(url: BaseUrl, key: str | None, unreached: Unreached = gone) -> Listing:
    """Return the models that a server lists; none if it cannot say, for example while it loads one.

    Raises:
        CannotStart: the server cannot be reached.
        ServerRefused: it rejects all requests of this machine.
        ConfigurationError: it rejects the API key.
    """
    connection = connection_to(url, FIRST_TIMEOUT_S)
    try:
        connection.request("GET", f"{url.path}/v1/models", headers=authorization(key))
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise unreached(url, error) from None
    finally:
        connection.close()
    if response.status == NO_KEY:
        raise key_refused(url, key)
    if response.status == _FORBIDDEN:
        raise refusal(response.status, body)
    try:
        listed = [each for each in json.loads(body)["data"] or () if isinstance(each, dict) and each.get("id")]
    except (ValueError, LookupError, TypeError, RecursionError):
        return Listing(can_list=response.status >= 500, has_route=response.status not in NO_ROUTE)
    models = [ModelChoice(str(each["id"]), count_of(each.get("max_model_len"))) for each in listed]
    return Listing(models, is_quire=any(each.get("owned_by") == "quire" for each in listed))


def _can_answer(url: BaseUrl, key: str | None) -> bool:
    """Return whether a server that lists no models has the route for answers: it rejects a request without fields."""
    connection = connection_to(url, FIRST_TIMEOUT_S)
    headers = {"content-type": "application/json", **authorization(key)}
    try:
        connection.request("POST", f"{url.path}/v1/chat/completions", "{}", headers)
        response = connection.getresponse()
        is_there = response.status not in NO_ROUTE or b"model" in response.read(_MAX_BYTES)  # it misses one
    except (OSError, http.client.HTTPException):
        return True  # the first question tells more
    finally:
        connection.close()
    return is_there


def sse_answer(url: BaseUrl, key: str | None, messages: Messages, fields: dict[str, Any]) -> TextStream:
    """Yield the answer of a server to a conversation, by `POST /v1/chat/completions`.

    Raises:
        CannotStart: the server cannot be reached.
        ServerRefused: the server returned an error, or its answer broke off.
    """
    connection = connection_to(url, TIMEOUT_S)
    headers = {"content-type": "application/json", **authorization(key)}
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    body = json.dumps({"messages": list(messages), **streaming, **fields, **_continuing(messages)})
    try:
        try:
            connection.request("POST", f"{url.path}/v1/chat/completions", body, headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise gone(url, error) from None
        with response:
            return (yield from read_answer(response))
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

    After a lost connection, or a server with a journal that was killed, the answer goes on for those who wait.

    `runner` is the event loop to use. It runs only while a delta is requested: a terminal that is stopped (Ctrl-S)
    makes the server pause the stream, and disconnect after its stall timeout. Raises as `sse_answer`, and

    Raises:
        ConnectionLost: the connection ended before the answer.
    """
    end = AnswerEnd()

    async def deltas() -> AsyncGenerator[str, None]:
        sent = {**fields, **_continuing(messages)}
        num_lost = 0

        def count() -> None:
            nonlocal num_lost
            num_lost += 1

        opening = connect(str(url), key, reconnect=COMEBACK, on_lost=count)
        async with opening as client, await client.chat(messages, **sent) as answer:
            async for delta in answer:
                yield delta
            end.choice = answer.ends.get(0)
            count_usage(end, answer.usage)
            if num_lost:  # not before: the screen draws the open line of the answer again
                note("the connection was lost meanwhile, and the answer went on")
            if client.is_draining:
                note("the server is shutting down and accepts no new questions")

    try:
        yield from iterate(runner, deltas())
        return end
    except ServerRefused as error:
        if error.code == StreamNotFound.code:
            raise CannotStart(
                f"{url} was started again and has no journal, so it has forgotten the rest of the answer; what had "
                "arrived stays, and /continue goes on"
            ) from None
        raise
    except OSError as error:
        raise gone(url, error) from None


def _continuing(messages: Messages) -> dict[str, bool]:
    """Return the fields that continue the answer at the end of a conversation, if there is one."""
    goes_on = messages[-1]["role"] == "assistant"
    return {"continue_final_message": True, "add_generation_prompt": False} if goes_on else {}
