"""What all routes share: keys, the model's name, and the text side's state."""

import hmac

import pytest
from starlette.datastructures import Headers

from app.api import context as context_module
from app.api.context import ApiContext, StreamTimers
from app.checkpoint.folder import resolve
from app.config.settings import make_config
from app.contract.engine_status import EngineState
from app.contract.errors import EngineFailed, ModelLoading, ModelNotFound
from app.observe.metrics import Metrics
from app.text.frontend import TextFrontend
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
        ([("authorization", "bearer one")], True),
        ([("authorization", "BEARER \t  one")], True),
        ([("authorization", "Bearerone")], False),
        ([("authorization", "Bearer")], False),
        ([("authorization", "Bearer one two")], False),
        ([("authorization", "Basic one")], False),
        ([("authorization", "one")], False),
        ([("authorization", "Bearer one ")], True),
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


def test_a_key_is_known_by_its_place_and_not_by_itself():
    context = make_context(api_key=("one", "two"))
    assert [context.key_name(key) for key in ("one", "two", "wrong", "", None)] == ["key-1", "key-2", None, None, None]
    assert [make_context().key_name(key) for key in ("one", None)] == [None, None]


@pytest.mark.parametrize(
    ("headers", "tenant"),
    [
        ({"authorization": "Bearer two"}, "key-2"),
        ({"x-api-key": "one"}, "key-1"),
        ({"authorization": "Bearer two", "x-api-key": "one"}, "key-2"),
        ({}, None),
    ],
)
def test_the_tenant_is_the_key_that_let_a_request_in(headers, tenant):
    assert make_context(api_key=("one", "two")).tenant_of(Headers(headers)) == tenant
    assert make_context().tenant_of(Headers(headers)) is None


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


class Panic(BaseException):
    """As a panic in a native library arrives in Python."""


@pytest.mark.parametrize("error", [MemoryError(), TypeError("unhashable"), Panic("index out of bounds")])
async def test_whatever_ends_the_loading_of_the_text_side_is_a_failure_and_is_logged(monkeypatch, caplog, error):
    def fail(settings):
        raise error

    monkeypatch.setattr(context_module, "_load_text", fail)
    context = make_context()
    await context.load_text()
    assert context.health().state is EngineState.FAILED
    assert "the server's log" in context.health().message
    with pytest.raises(EngineFailed, match="the server's log"):
        context.text()
    assert caplog.records[-1].exc_info[1] is error


async def test_a_failed_text_side_is_told_while_the_engine_still_loads(tmp_path):
    context = make_context(model=str(tmp_path))
    context.engine.port.state = EngineState.LOADING
    await context.load_text()
    assert context.health().state is EngineState.FAILED


async def test_an_interrupt_is_no_failure_of_the_text_side(monkeypatch):
    async def interrupted(*args):
        raise KeyboardInterrupt

    context = make_context()
    monkeypatch.setattr(context.background, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        await context.load_text()
    assert context.health().state is EngineState.LOADING


async def test_a_text_side_that_is_given_is_not_loaded_again(monkeypatch):
    monkeypatch.setattr(context_module, "_load_text", lambda settings: pytest.fail("it was given"))
    text = TextFrontend.load(make_config({}).model, resolve("guide"))
    context = ApiContext(FakeEngine(), make_config({}), Metrics("guide"), StreamTimers(), text)
    assert context.health().state is EngineState.READY
    await context.load_text()
    assert context.text() is text
