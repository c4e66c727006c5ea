"""The context that all routes share."""

import pytest

from app.api.body.grammar_trials import GrammarTrials
from app.api.http.context import ApiContext, StreamTimers
from app.config.settings import make_config
from app.contract.errors import ModelNotFound
from app.text.grammar.cache import GrammarCache
from tests.api.serving import load_text
from tests.fakes import FakeEngine


def make_context(**settings: object) -> ApiContext:
    config = make_config(settings)
    return ApiContext(FakeEngine(), config, load_text(config), StreamTimers(), GrammarCache(), GrammarTrials)


def test_the_model_may_be_left_out_but_must_not_be_another():
    context = make_context()
    assert context.check_model(None) == context.check_model("guide") == "guide"
    with pytest.raises(ModelNotFound):
        context.check_model("")


def test_an_alias_names_the_served_model_and_a_star_any():
    context = make_context(model_alias=("one", "two"))
    assert [context.check_model(name) for name in ("one", "two", "guide", None)] == ["guide"] * 4
    with pytest.raises(ModelNotFound, match="'three' is not served here; use 'guide'"):
        context.check_model("three")
    assert make_context(model_alias=("*",)).check_model("three") == "guide"
    with pytest.raises(ModelNotFound):
        make_context().check_model("*")
