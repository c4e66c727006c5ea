"""`POST /v1/chat/completions`: from messages to a response."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from app.api.body.parse_chat import parse_chat
from app.api.body.parse_request import parse_answer_post
from app.api.http.context import context_of
from app.api.wire.chat_format import ChatFormat
from app.api.wire.framing import choose_framing
from app.api.wire.openai_wire import OpenAiWire
from app.api.wire.stream_response import make_response


async def chat_completions(request: Request) -> ASGIApp:
    """Answer a chat request."""
    chat = await parse_answer_post(request, parse_chat)
    with chat.released_on_error():
        wire = OpenAiWire(chat, ChatFormat(chat), choose_framing(request.headers))
        return make_response(context_of(request), chat, wire)
