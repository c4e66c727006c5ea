"""The server answers while tokenizer and chat template are loaded, and says what came of it."""

import pytest

from app.api import model_text
from app.api.context import ApiContext, StreamTimers
from app.checkpoint.folder import resolve
from app.config.settings import make_config
from app.contract.engine_status import EngineState
from app.contract.errors import EngineFailed, ModelLoading
from app.observe.metrics import Metrics
from app.text.frontend import TextFrontend
from tests.api.test_context import make_context
from tests.fakes import FakeEngine


async def test_the_server_is_loading_until_the_text_side_is_there():
    context = make_context()
    assert context.health().state is EngineState.LOADING
    with pytest.raises(ModelLoading):
        context.text.get()
    await context.text.load()
    assert context.health().state is EngineState.READY
    assert context.text.get().chat_template is not None


async def test_a_text_side_that_cannot_be_loaded_is_a_failure_with_a_reason(tmp_path):
    context = make_context(model=str(tmp_path))
    await context.text.load()
    assert context.health().state is EngineState.FAILED
    assert "tokenizer.json" in context.health().message
    with pytest.raises(EngineFailed, match=r"tokenizer\.json"):
        context.text.get()


class Panic(BaseException):
    """As a panic in a native library arrives in Python."""


@pytest.mark.parametrize("error", [MemoryError(), TypeError("unhashable"), Panic("index out of bounds")])
async def test_whatever_ends_the_loading_of_the_text_side_is_a_failure_and_is_logged(monkeypatch, caplog, error):
    def fail(settings):
        raise error

    monkeypatch.setattr(model_text, "_load", fail)
    context = make_context()
    await context.text.load()
    assert context.health().state is EngineState.FAILED
    assert "see the server log" in context.health().message
    with pytest.raises(EngineFailed, match="see the server log"):
        context.text.get()
    assert caplog.records[-1].exc_info[1] is error


async def test_a_failed_text_side_is_told_while_the_engine_still_loads(tmp_path):
    context = make_context(model=str(tmp_path))
    context.engine.port.state = EngineState.LOADING
    await context.text.load()
    assert context.health().state is EngineState.FAILED


async def test_an_interrupt_is_no_failure_of_the_text_side(monkeypatch):
    async def interrupted(*args):
        raise KeyboardInterrupt

    context = make_context()
    monkeypatch.setattr(context.text._threads, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        await context.text.load()
    assert context.health().state is EngineState.LOADING


async def test_a_text_side_that_is_given_is_not_loaded_again(monkeypatch):
    monkeypatch.setattr(model_text, "_load", lambda settings: pytest.fail("it was given"))
    text = TextFrontend.load(make_config({}).model, resolve("guide"))
    context = ApiContext(FakeEngine(), make_config({}), Metrics("guide"), StreamTimers(), text)
    assert context.health().state is EngineState.READY
    await context.text.load()
    assert context.text.get() is text
