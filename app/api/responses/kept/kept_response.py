"""`/v1/responses/{id}`: a kept response, as it is or as its events, its input, its cancel and its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from app.api.body.parse_request import on_thread
from app.api.http.context import context_of
from app.api.responses.asked import AskedResponse
from app.api.responses.kept.kept_items import asked_of, listed_items
from app.api.responses.kept.told_response import last_number, told_response
from app.api.responses.response_fields import Include
from app.api.responses.responses_wire import ResponsesWire
from app.api.wire.resumable_answer import Resumable, end_answer, recovered_header
from app.api.wire.stream_response import StreamResponse
from app.contract.errors import InvalidValue, NotFound, StreamNotFound
from app.streaming.kept.delta_reader import DeltaReader
from app.streaming.kept.live_stream import LiveStream

MAX_LISTED, LISTED = 100, 20  # items at a time, and without `limit`
_MAX_DIGITS = 9
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_INCLUDES = frozenset(get_args(Include))


class DeletedResponse(msgspec.Struct, kw_only=True):
    """The answer to the DELETE of a response."""

    id: str
    object: Literal["response.deleted"] = "response.deleted"
    deleted: bool = True


class InputItems(msgspec.Struct, kw_only=True):
    """A part of the items of a response's own input."""

    object: Literal["list"] = "list"
    data: Sequence[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool


async def get_response(http: Request) -> ASGIApp:
    """Answer with a kept response: the object in its present state or, with `stream`, its events."""
    context = context_of(http)
    stream, asked = await _find(http)
    query = http.query_params
    is_streamed = _boolean(query, "stream")
    _boolean(query, "include_obfuscation")  # streams here have none
    after = _number(query, "starting_after", 0, None)
    _check_include(query)
    if not is_streamed:
        if after is not None:
            raise InvalidValue("starting_after needs stream=true; send both, or neither.", param="starting_after")
        context.kept.touch(stream)
        return await told_response(context, stream)
    if after is not None and stream.is_over:
        last = await on_thread(context, stream.told_bytes, stream.account, last_number, stream)
        if after > last:
            raise InvalidValue(
                f"starting_after is {after}, but the response has ended, and its last event has the number {last}; "
                "send at most that.",
                param="starting_after",
            )
    request = replace(Resumable.of(stream).request, stream=True)
    wire = ResponsesWire(request, asked, -1 if after is None else after)
    return StreamResponse(context, request, DeltaReader(stream), wire, recovered_header(stream), begins_at_once=True)


async def cancel_response(http: Request) -> ASGIApp:
    """End a response that is made in the background, and answer with it; one that has ended stays as it is.

    Raises:
        InvalidValue: it is not made in the background.
    """
    context = context_of(http)
    stream, asked = await _find(http)
    if not asked.background:
        raise InvalidValue(
            "Only a response that is made in the background can be cancelled; close the connection of this one, or "
            "delete it.",
            param="id",
        )
    await end_answer(context, stream)
    return await told_response(context, stream)


async def delete_response(http: Request) -> Response:
    """End a response if it runs, and keep it no longer."""
    context = context_of(http)
    stream, asked = await _find(http)
    await end_answer(context, stream)
    if stream.keeper is not None:  # it may have been let go meanwhile
        context.kept.forget(stream)
    if context.journal is not None:
        await context.journal.flush()
    return _json(DeletedResponse(id=asked.response_id))


async def list_input_items(http: Request) -> Response:
    """Answer with a part of the items of a response's own input, the last ones first unless it says otherwise."""
    context = context_of(http)
    stream, asked = await _find(http)
    query = http.query_params
    limit = _number(query, "limit", 1, MAX_LISTED)
    order, after = query.get("order", "desc"), query.get("after")
    if order not in ("asc", "desc"):
        raise InvalidValue(f"order is {order[:100]!r}; it must be asc or desc.", param="order")
    _check_include(query)
    context.kept.touch(stream)
    items = await on_thread(context, len(asked.own_items), stream.account, listed_items, stream)
    if order == "desc":
        items.reverse()
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise InvalidValue(f"after is {after[:100]!r}, which is no item of this input.", param="after")
        items = items[ids.index(after) + 1 :]
    shown = items[: LISTED if limit is None else limit]
    first_id, last_id = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return _json(InputItems(data=shown, first_id=first_id, last_id=last_id, has_more=len(shown) < len(items)))


async def _find(http: Request) -> tuple[LiveStream, AskedResponse]:
    """Return the response of the request's path, which its sender owns.

    Raises:
        NotFound: there is none.
    """
    context = context_of(http)
    if context.journal is not None:
        await context.journal.restored()
    response_id = http.path_params["id"]
    try:
        stream = context.kept.find(response_id, context.keys.sender_of(http).tenant)
        asked = asked_of(stream)
    except StreamNotFound:
        asked = None
    if asked is None:
        raise NotFound(f"Response with id {response_id[:100]!r} not found.", param="id")
    return stream, asked


def _boolean(query: QueryParams, name: str) -> bool:
    value = query.get(name, "false")
    if value.lower() not in _BOOLEANS:
        raise InvalidValue(f"{name} is {value[:100]!r}; it must be true or false.", param=name)
    return _BOOLEANS[value.lower()]


def _number(query: QueryParams, name: str, least: int, most: int | None) -> int | None:
    value = query.get(name)
    if value is None:
        return None
    is_number = value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS
    if not is_number or int(value) < least or (most is not None and int(value) > most):
        range_ = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidValue(f"{name} is {value[:100]!r}; it must be a whole number {range_}.", param=name)
    return int(value)


def _check_include(query: QueryParams) -> None:
    """Check what shall be included: a response always has what was asked for when it was begun."""
    for value in (*query.getlist("include"), *query.getlist("include[]")):
        if value not in _INCLUDES:
            raise InvalidValue(
                f"include is {value[:100]!r}; it must be one of {', '.join(sorted(_INCLUDES))}.", param="include"
            )


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
