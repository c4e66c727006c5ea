"""Requests of the engine: the same for all entries, with the terms of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.api.body import parse_request
from app.api.body.parse_chat import parse_chat
from app.api.body.parse_completion import parse_completion
from app.api.body.parse_embeddings import parse_embeddings
from app.api.http.accounts import Sender
from app.config.settings import ModelConfig
from app.contract.admission import DefaultLength
from app.contract.errors import ContextLengthExceeded, InvalidValue, UnsupportedParameter
from app.contract.grammar import StructuredOutputs
from app.contract.requests import EngineRequest, Pooling, PoolingKind
from app.contract.sampling_params import SamplingParams
from app.text.answer.answer_demand import AnswerDemand, Requested
from app.text.answer.tool_use import NO_TOOLS, ToolUse, choose_tools
from app.text.entry.chat_prompt import ChatPrompt, EncodedPrompt
from app.text.entry.request_builder import PlannedRequest, RequestBuilder, Terms
from app.text.template.chat_template import RenderOptions
from tests.api.serving import EOS, VOCAB_SIZE, load, make_app, parse, raw
from tests.fakes import MODEL_INFO

HI = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
TEXT = load(ModelConfig(reasoning_parser="think"))
BUILDER = RequestBuilder(TEXT, MODEL_INFO)
NOW = Terms(arrival_time=7.0)


def demand(regex: str | None = None, tools: ToolUse = NO_TOOLS) -> AnswerDemand:
    """What an answer must satisfy."""
    requested = None if regex is None else Requested(StructuredOutputs(regex=regex), "regex")
    return AnswerDemand(TEXT.answers, requested, tools)


def answer(params: SamplingParams, prompt: EncodedPrompt | None = None, **fields: Any) -> PlannedRequest:
    """A request for an answer."""
    return BUILDER.answer("r", prompt or BUILDER.encode([5, 6]), params, demand(**fields), NOW)


def test_terms_say_when_a_request_ends_and_whose_it_is():
    terms = Terms(arrival_time=5.0, queue_timeout=2.0, timeout=9.0, priority=3, tenant="t", account="a", cache_salt="s")
    request = terms.request("r", EncodedPrompt([5]), SamplingParams())
    assert request == EngineRequest("r", (5,), SamplingParams(), 5.0, 7.0, 14.0, 3, "t", "s", "a")
    for never in (0, None):
        of_ever = Terms(arrival_time=5.0, queue_timeout=never).request("r", EncodedPrompt([5]), SamplingParams())
        assert (of_ever.start_deadline, of_ever.deadline) == (None, None)


def test_a_prompt_is_a_text_or_its_ids():
    ids = TEXT.tokenizer.encode("Hi")
    assert BUILDER.encode("Hi") == BUILDER.encode(ids) == EncodedPrompt(ids)
    assert BUILDER.encode_for_completion("Hi").token_ids == TEXT.as_question("Hi")
    assert BUILDER.encode_for_completion(ids).token_ids == ids
    with pytest.raises(ContextLengthExceeded, match="characters, more than fit"):
        BUILDER.encode("a" * (MODEL_INFO.max_model_len * TEXT.tokenizer.max_token_chars + 1))


def test_an_answer_of_text_alone_has_no_plan():
    request, plan = answer(SamplingParams(seed=1))
    assert plan is None and request.grammar is None and request.reasoning is None and not request.shown_token_ids


def test_an_answer_to_a_chat_is_read_by_its_plan():
    assert TEXT.chat_template is not None
    tools = choose_tools(TOOLS, "required", None, TEXT.answers.calls)
    prompt = ChatPrompt(TEXT, TEXT.chat_template, [*HI], RenderOptions(), tools, 1000)
    request, plan = answer(SamplingParams(seed=1), prompt.encode(), tools=tools)
    assert plan is not None and plan.schemas is not None and plan.start is not None
    assert request.grammar is not None and request.shown_token_ids == plan.shown_token_ids


def test_parameters_are_checked_before_a_grammar_is_made():
    with pytest.raises(ContextLengthExceeded):
        answer(SamplingParams(max_tokens=10**6), regex="[")


def test_a_servers_limits_are_those_of_its_builder():
    busy = RequestBuilder(TEXT, MODEL_INFO, is_clamped=True, most_tokens=9)
    prompt = BUILDER.encode([5, 6])
    assert busy.admit(prompt, SamplingParams(max_tokens=None)).max_tokens == 9
    assert busy.admit(prompt, SamplingParams(max_tokens=10**6)).max_tokens == MODEL_INFO.max_model_len - 2
    assert BUILDER.admit(prompt, SamplingParams(max_tokens=None), length=DefaultLength(otherwise=4)).max_tokens == 4


@pytest.mark.parametrize(
    ("kind", "dimensions", "expected"),
    [
        (None, None, Pooling(PoolingKind.MEAN)),
        ("last", 8, Pooling(PoolingKind.LAST, 8)),
        ("max", None, "pooling is 'max'; it must be mean or last."),
        (None, 0, "dimensions is 0; it must be between 1 and 8."),
        (None, 9, "dimensions is 9; it must be between 1 and 8."),
    ],
)
def test_a_vector_has_numbers_that_the_model_has(kind: str | None, dimensions: int | None, expected: Pooling | str):
    if isinstance(expected, Pooling):
        assert BUILDER.pooling(kind, dimensions, is_normalized=True) == expected
        return
    with pytest.raises(InvalidValue) as caught:
        BUILDER.pooling(kind, dimensions, is_normalized=True)
    assert caught.value.message == expected


def test_a_device_that_reads_no_prompts_makes_no_vectors():
    builder = RequestBuilder(TEXT, replace(MODEL_INFO, hidden_size=0))
    with pytest.raises(UnsupportedParameter, match="they need a CPU"):
        builder.pooling(None, None, is_normalized=True)


async def test_a_servers_requests_are_those_of_the_builder():
    """HTTP and quire.v1 add their terms; the rest is what `LLM` and the commands of the terminal have."""
    assert TEXT.chat_template is not None
    context = (await make_app(reasoning_parser="think", queue_timeout=3.0)).state.context
    context.grammars.load(context.text.tokenizer, VOCAB_SIZE, (EOS,))
    sender = Sender(tenant="t", account="a")
    params = SamplingParams(max_tokens=5, seed=1, structured_outputs=StructuredOutputs(regex="a+"))
    body = {"max_tokens": 5, "seed": 1, "regex": "a+"}
    prompt = ChatPrompt(TEXT, TEXT.chat_template, [*HI], RenderOptions(), NO_TOOLS, 1000).encode()
    for parser, fields, encoded in (
        (parse_chat, {"messages": HI}, prompt),
        (parse_completion, {"prompt": "Hi"}, BUILDER.encode_for_completion("Hi")),
    ):
        found = await parse(raw({**fields, **body}), context, parser, sender)
        terms = Terms(arrival_time=found.request.arrival_time, queue_timeout=3.0, tenant="t", account="a")
        assert (found.request, found.answer) == BUILDER.answer(found.id, encoded, params, demand("a+"), terms)
        found.release()
    (vector,) = (
        await parse_request.parse(raw({"input": "Hi", "dimensions": 2}), context, parse_embeddings, sender)
    ).requests
    terms = Terms(arrival_time=vector.arrival_time, queue_timeout=3.0, tenant="t", account="a")
    assert vector == BUILDER.pooled(vector.id, BUILDER.encode("Hi"), Pooling(num_dimensions=2), terms)
