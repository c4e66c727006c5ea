"""Routes that may leave out the oldest turns of a chat: the room of the answer, and what is rejected still."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.api.body.parse_chat import ANSWER_SHARE, MAX_MESSAGES, chat_request, parse_chat
from app.api.body.parse_request import RequestContext
from app.api.body.schemas import ChatBody
from app.api.wire.api_request import ApiRequest
from app.contract.errors import ContextLengthExceeded
from tests.api.serving import make_app, parse, raw
from tests.fakes import MODEL_INFO, FakeEngine

CONTEXT = MODEL_INFO.max_model_len
LONG = [
    {"role": role, "content": f"{number} {'word ' * 20}"}
    for number in range(400)
    for role in ("user", "assistant")
] + [{"role": "user", "content": "And now?"}]  # fmt: skip


@pytest.fixture
async def context():
    return (await make_app(FakeEngine())).state.context


def dropping(request: RequestContext) -> ApiRequest:
    """The parser of a route that may leave out turns."""
    return chat_request(request, *request.read(ChatBody), drops_oldest=True)


async def num_tokens(context: Any, **fields: Any) -> int:
    """The length of the prompt of a chat that is too long."""
    body = raw({"messages": LONG, **fields})
    return len((await parse(body, context, dropping)).request.prompt_token_ids)


@pytest.mark.parametrize("fields", [{}, {"max_tokens": -1}, {"max_tokens": CONTEXT // ANSWER_SHARE}])
async def test_an_answer_has_a_quarter_of_the_context(context, fields):
    left = CONTEXT - await num_tokens(context, **fields)
    assert CONTEXT // ANSWER_SHARE <= left < CONTEXT * 3 // 5


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_an_answer_of_few_tokens_needs_room_for_these_alone(context, name):
    left = CONTEXT - await num_tokens(context, **{name: 8})
    assert 8 <= left < CONTEXT * 2 // 5
    assert left < CONTEXT - await num_tokens(context)


async def test_the_kv_cache_is_the_limit_where_it_is_smaller():
    engine = FakeEngine()
    engine.model_info = lambda: replace(MODEL_INFO, kv_capacity_tokens=640)  # type: ignore[method-assign]
    context = (await make_app(engine)).state.context
    assert 640 * 2 // 5 < await num_tokens(context) <= 640 - 640 // ANSWER_SHARE


async def test_a_chat_that_fits_is_the_same(context):
    body = raw({"messages": LONG[-9:]})
    expected, request = [(await parse(body, context, parser)).request for parser in (parse_chat, dropping)]
    assert request.prompt_token_ids == expected.prompt_token_ids


async def test_by_default_a_chat_that_is_too_long_is_rejected(context):
    with pytest.raises(ContextLengthExceeded):
        await parse(raw({"messages": LONG}), context, parse_chat)


async def test_a_question_that_is_too_long_is_rejected(context):
    long = {"role": "user", "content": "word " * 3000}
    with pytest.raises(ContextLengthExceeded) as caught:
        await parse(raw({"messages": [*LONG, long]}), context, dropping)
    assert caught.value.param == "messages"


async def test_as_many_messages_as_are_allowed_are_read(context):
    messages = [*LONG[:2] * (MAX_MESSAGES // 2 - 1), LONG[-1]]
    request = (await parse(raw({"messages": messages}), context, dropping)).request
    assert CONTEXT // 2 < len(request.prompt_token_ids) <= CONTEXT * 3 // 4
