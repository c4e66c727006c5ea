"""How long an answer of a chat may be: limits that are given, lowered, or left to the server."""

from __future__ import annotations

import pytest

from app.api.body.parse_chat import parse_chat
from app.contract.brownout_effects import MAX_LEVEL, effects
from app.contract.errors import InvalidValue
from tests.api.serving import make_app, parse, raw
from tests.fakes import MODEL_INFO, FakeEngine

QUARTER = MODEL_INFO.max_model_len // 4
BODY = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
async def context():
    return (await make_app(FakeEngine())).state.context


@pytest.mark.parametrize(
    ("level", "fields", "max_tokens"),
    [
        (MAX_LEVEL - 1, {}, effects(MAX_LEVEL - 1).default_max_tokens),
        (MAX_LEVEL - 1, {"context_share": 0.5}, effects(MAX_LEVEL - 1).default_max_tokens),
        (MAX_LEVEL - 1, {"context_share": 7 / MODEL_INFO.max_model_len}, 7),
        (MAX_LEVEL - 1, {"max_tokens": 1000}, 1000),
        (MAX_LEVEL - 1, {"max_completion_tokens": 1000}, 1000),
        (MAX_LEVEL - 1, {"min_tokens": 700}, 700),
        (1, {"n": 1}, None),
    ],
)
async def test_overload_lowers_the_default_max_tokens_and_no_given_one(level, fields, max_tokens):
    engine = FakeEngine()
    engine.brownout_level = lambda _: level  # type: ignore[method-assign]
    request = (await parse(raw(BODY | fields), (await make_app(engine)).state.context, parse_chat)).request
    assert request.params.max_tokens == (max_tokens or MODEL_INFO.max_model_len - len(request.prompt_token_ids))


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ({"context_share": 0.25}, QUARTER),
        ({"context_share": 1}, None),  # the rest of the context, and no error
        ({"context_share": 1e-9}, 1),
        ({"context_share": 0.25, "max_tokens": QUARTER + 1}, QUARTER + 1),
        ({"context_share": 0.25, "max_completion_tokens": 40}, 40),
        ({"context_share": 0.25, "max_tokens": -1}, QUARTER),
        ({"context_share": 0.25, "min_tokens": QUARTER + 1}, QUARTER + 1),
    ],
)
async def test_a_share_of_the_context_limits_an_answer_that_has_no_limit_of_its_own(context, fields, max_tokens):
    request = (await parse(raw(BODY | fields), context, parse_chat)).request
    assert request.params.max_tokens == (max_tokens or MODEL_INFO.max_model_len - len(request.prompt_token_ids))


async def test_a_conversation_that_leaves_less_than_the_share_is_answered(context):
    long = {"messages": [{"role": "user", "content": "word " * 1400}]}
    request = (await parse(raw(long | {"context_share": 0.5}), context, parse_chat)).request
    assert request.params.max_tokens == MODEL_INFO.max_model_len - len(request.prompt_token_ids)
    assert request.params.max_tokens < MODEL_INFO.max_model_len // 2


@pytest.mark.parametrize("share", [0, -0.25, 1.01])
async def test_the_share_is_above_0_and_at_most_1(context, share):
    with pytest.raises(InvalidValue, match="it must be a number above 0 and at most 1") as caught:
        await parse(raw(BODY | {"context_share": share}), context, parse_chat)
    assert caught.value.param == "context_share"


async def test_a_server_may_lower_max_tokens_instead():
    context = (await make_app(clamp_max_tokens=True)).state.context
    for field in ("max_tokens", "max_completion_tokens"):
        request = (await parse(raw(BODY | {field: 100_000_000}), context, parse_chat)).request
        assert request.params.max_tokens == MODEL_INFO.max_model_len - len(request.prompt_token_ids)
    assert (await parse(raw(BODY | {"max_tokens": 3}), context, parse_chat)).request.params.max_tokens == 3
