"""`POST /v1/responses`, and the count of the tokens in its prompt."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from app.api.body.json_body import read_body
from app.api.body.parse_request import parse_answer, parse_post
from app.api.http.context import context_of
from app.api.responses.asked import AskedResponse
from app.api.responses.parse_response import count_prompt, parse_response
from app.api.responses.responses_wire import ResponsesWire
from app.api.wire.response_head import ignored_header
from app.api.wire.stream_response import make_response


class PromptCount(msgspec.Struct, kw_only=True):
    """The number of tokens in the prompt of a response."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


async def create_response(http: Request) -> ASGIApp:
    """Answer a request for a response. Nothing of it is kept, so it cannot be resumed."""
    context = context_of(http)
    body = await read_body(http, context.config.server.max_request_bytes)
    request = await parse_answer(body, context, parse_response, context.keys.sender_of(http))
    with request.released_on_error():
        assert isinstance(request.asked, AskedResponse)
        return make_response(context, request, ResponsesWire(request, request.asked))


async def count_response_tokens(http: Request) -> Response:
    """Answer with the number of tokens in the prompt of a response."""
    num_tokens, ignored = await parse_post(http, count_prompt)
    body = msgspec.json.encode(PromptCount(input_tokens=num_tokens))
    return Response(body, headers=ignored_header(ignored), media_type="application/json")
