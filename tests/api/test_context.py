"""What all routes share: keys, the model's name, and the text side's state."""

import hmac

import pytest
from starlette.datastructures import Headers

from app.api.context import ApiContext, StreamTimers, served_model_name
from app.config import ModelConfig, make_config
from app.errors import EngineFailed, ModelLoading, ModelNotFound
from app.messages import EngineState
from app.observe.metrics import Metrics
from tests.fakes import FakeEngine


def make_context(**settings: object) -> ApiContext:
    return ApiContext(FakeEngine(), make_config(settings), Metrics("guide"), StreamTimers())


@pytest.mark.parametrize(
    ("headers", "is_open"),
    [
        ([], False),
        ([("authorization", "Bearer one")], True),
        ([("authorization", "Bearer two")], True),
        ([("x-api-key", "two")], True),
        ([("authorization", "Bearer one"), ("x-api-key", "two")], True),
        ([("authorization", "Bearer wrong")], False),
        ([("authorization", "Bearer ")], False),
        ([("authorization", "bearer one")], False),
        ([("authorization", "Basic one")], False),
        ([("authorization", "one")], False),
        ([("authorization", "Bearer one ")], False),
        ([("authorization", "Bearer one"), ("authorization", "Bearer one")], False),
        ([("x-api-key", "one"), ("x-api-key", "one")], False),
        ([("authorization", "Bearer one"), ("x-api-key", "wrong")], False),
        ([("authorization", "Bearer wrong"), ("x-api-key", "one")], False),
        ([("x-api-key", "")], False),
        ([("x-api-key", "\xff")], False),
    ],
)
def test_one_right_key_opens_and_anything_else_does_not(headers, is_open):
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    assert make_context(api_key=("one", "two")).check_headers(Headers(raw=raw)) is is_open


def test_without_a_key_everything_opens():
    context = make_context()
    for raw in ([], [(b"authorization", b"x"), (b"authorization", b"y")]):
        assert context.check_headers(Headers(raw=raw))
    assert context.check_key(None)


def test_keys_are_compared_as_digests_in_constant_time(monkeypatch):
    compared = []

    def compare(a, b):
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", compare)
    context = make_context(api_key=("one", "two", "three"))
    assert context.check_key("one") and not context.check_key("wrong")
    assert len(compared) == 6
    assert {len(digest) for pair in compared for digest in pair} == {32}


@pytest.mark.parametrize(
    ("model", "served", "name"),
    [
        ("guide", None, "guide"),
        ("guide", "mine", "mine"),
        ("/models/Qwen3-0.6B/", None, "Qwen3-0.6B"),
        ("owner/name", None, "name"),
    ],
)
def test_the_served_name_is_the_set_one_or_the_last_of_the_folder(model, served, name):
    assert served_model_name(ModelConfig(model=model, served_model_name=served)) == name


def test_a_request_may_leave_the_model_out_but_not_name_another():
    context = make_context()
    assert context.check_model(None) == context.check_model("guide") == "guide"
    with pytest.raises(ModelNotFound):
        context.check_model("")


async def test_the_server_is_loading_until_the_text_side_is_there():
    context = make_context()
    assert context.health().state is EngineState.LOADING
    with pytest.raises(ModelLoading):
        context.text()
    await context.load_text()
    assert context.health().state is EngineState.READY
    assert context.text().chat_template is not None


async def test_a_text_side_that_cannot_be_loaded_is_a_failure_with_a_reason(tmp_path):
    context = make_context(model=str(tmp_path))
    await context.load_text()
    assert context.health().state is EngineState.FAILED
    assert "tokenizer.json" in context.health().message
    with pytest.raises(EngineFailed, match=r"tokenizer\.json"):
        context.text()
