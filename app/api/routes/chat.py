"""`POST /v1/chat/completions`: from messages to a response."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from app.api.body.new_answer import answer_post
from app.api.body.parse_chat import parse_chat
from app.api.wire.api_request import ApiRequest
from app.api.wire.chat_format import ChatFormat
from app.api.wire.framing import Framing
from app.api.wire.openai_wire import OpenAiWire
from app.api.wire.wire import Wire


async def chat_completions(request: Request) -> ASGIApp:
    """Answer a chat request."""
    return await answer_post(request, parse_chat, chat_wire)


def chat_wire(chat: ApiRequest, framing: Framing) -> Wire:
    """Return the wire of the answer to a chat request."""
    return OpenAiWire(chat, ChatFormat(chat), framing)
