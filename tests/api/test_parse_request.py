"""What a body's request becomes: the model's defaults where it names nothing."""

from dataclasses import replace

import pytest

from app.api.chat import parse_chat
from app.contract.sampling_defaults import SamplingDefaults
from tests.api.serving import make_app, parse, raw
from tests.fakes import MODEL_INFO, FakeEngine

BODY = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ({}, 90),
        ({"min_tokens": 95}, 95),
        ({"max_tokens": 99}, 99),
        ({"max_completion_tokens": 99}, 99),
        ({"max_tokens": -1}, None),
        ({"max_completion_tokens": -1}, None),
    ],
)
async def test_the_models_default_max_tokens_is_that_of_chats_that_name_none(fields, max_tokens):
    engine = FakeEngine()
    info = replace(MODEL_INFO, defaults=SamplingDefaults(max_tokens=90))
    engine.model_info = lambda: info  # type: ignore[method-assign]
    request = (await parse(raw(BODY | fields), (await make_app(engine)).state.context, parse_chat)).request
    assert request.params.max_tokens == (max_tokens or MODEL_INFO.max_model_len - len(request.prompt_token_ids))
