"""`POST /v1/completions`: from prompts to their continuations."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from app.api.body.new_answer import answer_post
from app.api.body.parse_completion import parse_completion
from app.api.wire.api_request import ApiRequest
from app.api.wire.completion_format import CompletionFormat
from app.api.wire.framing import Framing
from app.api.wire.openai_wire import OpenAiWire
from app.api.wire.wire import Wire


async def completions(request: Request) -> ASGIApp:
    """Answer a completion request."""
    return await answer_post(request, parse_completion, completion_wire)


def completion_wire(completion: ApiRequest, framing: Framing) -> Wire:
    """Return the wire of the answer to a completion request."""
    return OpenAiWire(completion, CompletionFormat(completion), framing)
