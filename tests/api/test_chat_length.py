"""How long an answer of a chat may be: limits that are given, lowered, or left to the server."""

from __future__ import annotations

import pytest

from app.api.chat import parse_chat
from app.contract.engine_status import EngineStats
from app.contract.errors import InvalidValue
from app.contract.overload_levels import MAX_LEVEL, effects
from tests.api.serving import make_app, parse, raw
from tests.fakes import MODEL_INFO, FakeEngine

BODY = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
async def context():
    return (await make_app(FakeEngine())).state.context


@pytest.mark.parametrize(
    ("level", "fields", "max_tokens"),
    [
        (MAX_LEVEL, {}, effects(MAX_LEVEL).default_max_tokens),
        (MAX_LEVEL, {"default_max_tokens": 1000}, effects(MAX_LEVEL).default_max_tokens),
        (MAX_LEVEL, {"default_max_tokens": 7}, 7),
        (MAX_LEVEL, {"max_tokens": 1000}, 1000),
        (MAX_LEVEL, {"max_completion_tokens": 1000}, 1000),
        (MAX_LEVEL, {"min_tokens": 700}, 700),
        (1, {"n": 1}, None),
    ],
)
async def test_overload_lowers_the_default_max_tokens_and_no_given_one(level, fields, max_tokens):
    engine = FakeEngine()
    engine.stats = lambda: EngineStats(brownout_level=level)  # type: ignore[method-assign]
    request = (await parse(raw(BODY | fields), (await make_app(engine)).state.context, parse_chat)).request
    assert request.params.max_tokens == (max_tokens or MODEL_INFO.max_model_len - len(request.prompt_token_ids))


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ({"default_max_tokens": 12}, 12),
        ({"default_max_tokens": 100_000_000}, None),  # the rest of the context, and no error
        ({"default_max_tokens": 12, "max_tokens": 40}, 40),
        ({"default_max_tokens": 12, "max_completion_tokens": 40}, 40),
        ({"default_max_tokens": 12, "max_tokens": -1}, 12),
        ({"default_max_tokens": 12, "min_tokens": 15}, 15),
    ],
)
async def test_default_max_tokens_limits_an_answer_that_has_no_limit_of_its_own(context, fields, max_tokens):
    request = (await parse(raw(BODY | fields), context, parse_chat)).request
    assert request.params.max_tokens == (max_tokens or MODEL_INFO.max_model_len - len(request.prompt_token_ids))


async def test_default_max_tokens_must_be_positive(context):
    with pytest.raises(InvalidValue, match="default_max_tokens is 0; it must be at least 1") as caught:
        await parse(raw(BODY | {"default_max_tokens": 0}), context, parse_chat)
    assert caught.value.param == "default_max_tokens"


async def test_a_server_may_lower_max_tokens_instead():
    context = (await make_app(clamp_max_tokens=True)).state.context
    for field in ("max_tokens", "max_completion_tokens"):
        request = (await parse(raw(BODY | {field: 100_000_000}), context, parse_chat)).request
        assert request.params.max_tokens == MODEL_INFO.max_model_len - len(request.prompt_token_ids)
    assert (await parse(raw(BODY | {"max_tokens": 3}), context, parse_chat)).request.params.max_tokens == 3
