"""`POST /v1/responses`, and the count of the tokens in its prompt."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from app.api.body.new_answer import BegunAnswer, NewAnswer
from app.api.body.parse_request import Parser, RequestContext, parse_post, read_post
from app.api.http.accounts import Sender
from app.api.http.context import ApiContext, context_of
from app.api.responses.asked import AskedResponse
from app.api.responses.kept.kept_items import Conversations
from app.api.responses.kept.told_response import told_response
from app.api.responses.parse_response import CountedPrompt, count_prompt, parse_response
from app.api.responses.responses_wire import ResponsesWire
from app.api.wire.api_request import ApiRequest
from app.api.wire.framing import SSE, Framing
from app.api.wire.json_response import JsonResponse
from app.api.wire.response_head import ignored_header
from app.api.wire.stream_response import StreamResponse, make_response
from app.contract.errors import Overloaded, StreamNotFound
from app.streaming.kept.delta_reader import DeltaReader
from app.streaming.kept.live_stream import LiveStream


class PromptCount(msgspec.Struct, kw_only=True):
    """The number of tokens in the prompt of a response."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


async def create_response(http: Request) -> ASGIApp:
    """Answer a request for a response, which is kept unless its body says otherwise or there is no memory for it."""
    context = context_of(http)
    body = await read_post(http)
    new = new_response(context, parse_kept_response, context.keys.sender_of(http), http.scope["path"])
    begun = await begin_response(new, body)
    request = begun.request
    if begun.stream is not None:
        return await _answer_kept(context, request, begun.stream)
    with request.released_on_error():
        if asked_in(request).background:
            raise Overloaded(
                "There is no memory to keep the response (see --resume-memory and --response-ttl), so it cannot be "
                "made in the background; try again later, or leave background out."
            )
        return make_response(context, request, response_wire(request))


def new_response(
    context: ApiContext, parser: Parser[ApiRequest], sender: Sender, route: str, *, always_streams: bool = False
) -> NewAnswer:
    """Return a request for a response whose body is not read yet; the response is kept if its body says so."""
    return NewAnswer(
        context,
        parser,
        response_wire,
        route=route,
        sender=sender,
        ttl_s=context.config.server.response_ttl,
        always_streams=always_streams,
        is_kept=_is_stored,
    )


async def begin_response(new: NewAnswer, body: bytes) -> BegunAnswer:
    """Check the body of a request for a response, and begin the response if it is kept (see `NewAnswer.begin`).

    One that is not kept says so. The response that it goes on from is kept as if it had just been read, and so are all
    before that one.

    Raises:
        QuireError: see `NewAnswer.begin`.
    """
    context = new.context
    if context.journal is not None:
        context.engine.model_info()  # while it loads, the request is rejected as every other one
        await context.journal.restored()  # it may go on from a response of the earlier process
    begun = await new.begin(body)
    asked = asked_in(begun.request)
    if asked.previous_response_id is not None:
        with suppress(StreamNotFound):  # it was deleted meanwhile
            context.kept.touch(context.kept.find(asked.previous_response_id, new.sender.tenant))
    if begun.stream is not None:
        return begun
    return replace(begun, request=replace(begun.request, asked=replace(asked, store=False)))


async def _answer_kept(context: ApiContext, request: ApiRequest, stream: LiveStream) -> ASGIApp:
    """Return the app that answers with a kept response, which the client owns unless it is made in the background."""
    asked = asked_in(request)
    if asked.background and not request.stream:
        return await told_response(context, stream, request.ignored)
    reader, wire = DeltaReader(stream, is_owner=not asked.background), ResponsesWire(request, asked)
    if not request.stream:
        return JsonResponse(context, request, reader, wire)
    return StreamResponse(context, request, reader, wire, begins_at_once=asked.background)


async def count_response_tokens(http: Request) -> Response:
    """Answer with the number of tokens in the prompt of a response."""
    num_tokens, ignored = await parse_post(http, _count_kept)
    body = msgspec.json.encode(PromptCount(input_tokens=num_tokens))
    return Response(body, headers=ignored_header(ignored), media_type="application/json")


def asked_in(request: ApiRequest) -> AskedResponse:
    """Return the part of a request for a response that its answer needs."""
    assert isinstance(request.asked, AskedResponse)
    return request.asked


def response_wire(request: ApiRequest, framing: Framing = SSE) -> ResponsesWire:
    """Return the wire of the answer to a request for a response, which has one framing."""
    return ResponsesWire(request, asked_in(request))


def parse_kept_response(request: RequestContext) -> ApiRequest:
    """Check a body and tokenize its prompt (see `Parser`); it may go on from a response of its sender."""
    return parse_response(request, _conversations(request), can_store=True)


def parse_restored_response(request: RequestContext) -> ApiRequest:
    """Read a body that an earlier process has answered (see `Parser`), also if what it went on from is gone: a response
    that has ended is told again all the same, and one that has not has another prompt then.
    """
    conversations = Conversations(request.context.kept, request.sender.tenant, is_lenient=True)
    return parse_response(request, conversations, can_store=True)


def as_before(request: ApiRequest) -> ApiRequest:
    """Return a request that was read again, whose response has the id, time and model that it has."""
    return replace(request, asked=asked_in(request).as_before(request.id, request.created, request.model))


def _count_kept(request: RequestContext) -> CountedPrompt:
    return count_prompt(request, _conversations(request), can_store=True)


def _conversations(request: RequestContext) -> Conversations:
    return Conversations(request.context.kept, request.sender.tenant)


def _is_stored(request: ApiRequest) -> bool:
    return asked_in(request).store
