"""A first prompt that does not fit is told once in the log, with what would let it fit."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from app.contract.engine_status import ModelInfo
from tests.api.serving import client_of, make_app
from tests.fakes import MODEL_INFO, FakeEngine

LONG = {"role": "user", "content": "word " * MODEL_INFO.max_model_len}
ANSWER = {"role": "assistant", "content": "Yes."}


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture):
    """The warnings of the server so far."""
    caplog.set_level(logging.WARNING, "quire")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "quire"]


def engine_of(model: ModelInfo) -> FakeEngine:
    """An engine with another model."""
    engine = FakeEngine()
    engine.model_info = lambda: model  # type: ignore[method-assign]
    return engine


async def refuse(app, *messages: dict[str, str]) -> str:
    """Send a chat that is too long; return the message of its error."""
    async with client_of(app) as client:
        response = await client.post("/v1/chat/completions", json={"messages": list(messages)})
    assert response.status_code == 400
    return response.json()["error"]["message"]


async def test_the_first_rejection_is_told_and_no_further_one(warnings):
    app = await make_app()
    errors = [await refuse(app, LONG) for _ in range(3)]
    (line,) = warnings()
    num_tokens = int(errors[0].split("The prompt has ")[1].split(" tokens")[0])
    assert f"more than {num_tokens:,} tokens, and this server's has {MODEL_INFO.max_model_len:,}:" in line
    assert "serve a model with a longer one." in line and "docs/agents.md" in line


async def test_a_context_that_was_set_is_to_be_raised(warnings):
    await refuse(await make_app(max_model_len=MODEL_INFO.max_model_len), LONG)
    assert "raise --max-model-len." in warnings()[0]


async def test_a_kv_cache_that_is_too_small_is_told(warnings):
    model = replace(MODEL_INFO, max_model_len=2**20, kv_capacity_tokens=256)
    await refuse(await make_app(engine_of(model)), LONG)
    assert "the KV cache holds 256: start with a larger --kv-cache-memory." in warnings()[0]


async def test_a_conversation_that_has_grown_is_not_told(warnings):
    app = await make_app()
    await refuse(app, LONG, ANSWER, LONG)
    assert warnings() == []
    await refuse(app, LONG)
    assert len(warnings()) == 1


async def test_a_prompt_that_leaves_too_little_room_for_its_answer_is_not_told(warnings):
    app = await make_app()
    async with client_of(app) as client:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": MODEL_INFO.max_model_len}
        response = await client.post("/v1/chat/completions", json=body)
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert warnings() == []
