"""`POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's Messages API."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from app.api.anthropic.message_errors import REQUEST_ID
from app.api.anthropic.messages_wire import MessagesWire
from app.api.anthropic.parse_message import parse_count, parse_message
from app.api.body.parse_request import parse_answer, parse_post, read_post
from app.api.http.access_log import access_record
from app.api.http.context import context_of
from app.api.wire.answers import CountAnswer
from app.api.wire.response_head import ignored_header
from app.api.wire.stream_response import make_response


async def create_message(request: Request) -> ASGIApp:
    """Answer with a message, as a stream or as one JSON body."""
    context = context_of(request)
    body = await read_post(request)
    message = await parse_answer(body, context, parse_message, context.keys.sender_of(request))
    with message.released_on_error():
        return make_response(context, message, MessagesWire(message), _headers(request))


async def count_tokens(request: Request) -> Response:
    """Answer with the number of tokens in the prompt of a body."""
    counted = await parse_post(request, parse_count)
    body = msgspec.json.encode(CountAnswer(counted.input_tokens))
    return Response(
        body, headers={**ignored_header(counted.ignored), **_headers(request)}, media_type="application/json"
    )


def _headers(request: Request) -> dict[str, str]:
    return {REQUEST_ID: access_record(request.scope).request_id}
