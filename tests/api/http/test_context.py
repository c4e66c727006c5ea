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
