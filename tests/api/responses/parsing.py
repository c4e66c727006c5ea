"""Bodies of requests for responses, as the server reads them."""

from __future__ import annotations

import dataclasses
from typing import Any

from app.api.responses.asked import AskedResponse
from app.api.responses.parse_response import parse_response
from tests.api.serving import make_app, parse, raw, with_grammars
from tests.fakes import MODEL_INFO, FakeEngine

BODY = {"input": "Hi", "seed": 7}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}
CHAT_TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
NO_TYPE = {"type": "object", "properties": {"a": {"type": "no type"}}}
ROOM = 60_000


def engine_with_room() -> FakeEngine:
    """An engine whose context has room for the prompts of agents."""
    engine = FakeEngine()
    engine.model_info = lambda: dataclasses.replace(MODEL_INFO, max_model_len=ROOM)  # type: ignore[method-assign]
    return engine


async def context_with_room() -> Any:
    """The context of a server with such an engine, which compiles grammars."""
    return with_grammars(await make_app(engine_with_room())).state.context


async def parsed(context: Any, **fields: Any) -> Any:
    """The request of a body."""
    return await parse(raw({**BODY, **fields}), context, parse_response)


async def asked(context: Any, **fields: Any) -> AskedResponse:
    """The part of a body that its answer needs."""
    request = await parsed(context, **fields)
    assert isinstance(request.asked, AskedResponse)
    return request.asked


async def prompt(context: Any, **fields: Any) -> str:
    """The text of a prompt."""
    token_ids = (await parsed(context, **fields)).request.prompt_token_ids
    return context.text.tokenizer.decode(token_ids, skip_special_tokens=False)


def outcome(request: Any) -> str:
    """What a parsed request says, but for its random id and its time."""
    engine = request.request
    times = {
        name: getattr(engine, name) and round(getattr(engine, name) - engine.arrival_time)
        for name in ("start_deadline", "deadline")
    }
    engine = dataclasses.replace(engine, id="", arrival_time=0.0, **times)
    return repr(
        dataclasses.replace(request, request=engine, created=0, token_bytes=None, demand=None, asked=None, lease=None)
    )


# A value that changes the request, for each field that acts, and what it needs beside it.
