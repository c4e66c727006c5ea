"""From a completion body to an engine request."""

from dataclasses import replace

import pytest

from app.api.body.parse_completion import DEFAULT_MAX_TOKENS, parse_completion
from app.contract.brownout_effects import MAX_LEVEL
from app.contract.errors import ContextLengthExceeded
from app.contract.sampling_defaults import SamplingDefaults
from app.text.entry.frontend import TextFrontend
from app.text.tokens.tokenizer import Tokenizer
from tests.api.serving import make_app, parse, raw
from tests.fakes import MODEL_INFO, FakeEngine


@pytest.fixture
async def context():
    return (await make_app(FakeEngine())).state.context


@pytest.mark.parametrize("prompt", ["Once upon", ["Once upon"]])
async def test_a_text_is_tokenized(context, prompt):
    request = (await parse(raw({"prompt": prompt}), context, parse_completion)).request
    text = context.text  # of `guide`, which is a chat-only model
    assert request.prompt_token_ids == tuple(text.as_question("Once upon"))
    assert request.id.startswith("cmpl-") and len(request.id) == len("cmpl-") + 32


@pytest.mark.parametrize("prompt", [[5, 6], [[5, 6]]])
async def test_token_ids_are_not_tokenized(context, prompt):
    assert (await parse(raw({"prompt": prompt}), context, parse_completion)).request.prompt_token_ids == (5, 6)


@pytest.mark.parametrize("prompt", [[[5], [6] * 9], [[6] * 9, [5]]], ids=str)
async def test_the_largest_max_tokens_that_an_error_names_works_for_all_prompts(context, prompt):
    with pytest.raises(ContextLengthExceeded, match=f"lower max_tokens to {MODEL_INFO.max_model_len - 9},"):
        await parse(raw({"prompt": prompt, "max_tokens": 10**6}), context, parse_completion)


async def test_minus_one_is_no_limit(context):
    """As llama.cpp's clients send it."""
    request = (await parse(raw({"prompt": "x", "max_tokens": -1}), context, parse_completion)).request
    assert request.params.max_tokens == MODEL_INFO.max_model_len - len(request.prompt_token_ids)


async def test_the_default_max_tokens_is_16(context):
    assert (
        await parse(raw({"prompt": "x"}), context, parse_completion)
    ).request.params.max_tokens == DEFAULT_MAX_TOKENS
    assert (
        await parse(raw({"prompt": "x", "max_tokens": 99}), context, parse_completion)
    ).request.params.max_tokens == 99


@pytest.mark.parametrize(
    ("fields", "max_tokens"), [({}, 90), ({"max_tokens": 7}, 7), ({"max_tokens": -1}, MODEL_INFO.max_model_len - 1)]
)
async def test_the_models_default_max_tokens_comes_before_16(context, fields, max_tokens):
    info = replace(MODEL_INFO, defaults=SamplingDefaults(max_tokens=90))
    context.engine.model_info = lambda: info
    request = (await parse(raw({"prompt": [5]} | fields), context, parse_completion)).request
    assert request.params.max_tokens == max_tokens


async def test_the_default_max_tokens_is_limited_by_the_context(context):
    prompt = [5] * (MODEL_INFO.max_model_len - 3)
    assert (await parse(raw({"prompt": prompt}), context, parse_completion)).request.params.max_tokens == 3


async def test_the_default_max_tokens_is_limited_by_the_cache_for_all_choices(context):
    context.engine.model_info = lambda: replace(MODEL_INFO, kv_capacity_tokens=64)
    request = (await parse(raw({"prompt": [5] * 10, "n": 4}), context, parse_completion)).request
    assert request.params.max_tokens == 7


async def test_min_tokens_raises_the_default_max_tokens_and_overload_changes_nothing(context):
    for level in (0, MAX_LEVEL - 1):
        context.engine.brownout_level = lambda _, level=level: level
        for fields, max_tokens in (({}, 16), ({"min_tokens": 20}, 20), ({"max_tokens": 400}, 400)):
            request = (await parse(raw({"prompt": [5]} | fields), context, parse_completion)).request
            assert request.params.max_tokens == max_tokens


async def test_logprobs_of_completions_is_a_number(context):
    assert (await parse(raw({"prompt": "x", "logprobs": 3}), context, parse_completion)).request.params.logprobs == 3


async def test_a_text_that_cannot_fit_is_rejected_before_encoding(context, monkeypatch):
    longest = MODEL_INFO.max_model_len * context.text.tokenizer.max_token_chars
    encoded = []

    def encode(self, text, **options):
        encoded.append(len(text))
        return [5]

    monkeypatch.setattr(Tokenizer, "encode", encode)
    monkeypatch.setattr(TextFrontend, "as_question", lambda *_, **__: None)  # `guide` would answer it
    await parse(raw({"prompt": "x" * longest}), context, parse_completion)
    assert max(encoded) >= longest
    encoded.clear()
    for prompt in ("x" * (longest + 1), ["x" * (longest + 1)]):
        with pytest.raises(ContextLengthExceeded, match=f"{longest + 1} characters") as caught:
            await parse(raw({"prompt": prompt}), context, parse_completion)
        assert caught.value.param == "prompt"
    assert encoded == []
